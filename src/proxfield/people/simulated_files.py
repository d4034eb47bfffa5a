"""A simulation as a folder of files: scene, calibration, masks and truth."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from proxfield.core.common.checks import whole_number
from proxfield.io.folders import new_folder
from proxfield.io.images import import_pillow, png_bytes
from proxfield.io.pom import format_pom
from proxfield.people.cameras import save_cameras
from proxfield.people.scene import Scene
from proxfield.people.simulate import Simulation

MASKS = "mask-f%f-c%c.png"
"""Names of the masks: %f is the number of the frame, %c that of the camera."""

_README = """\
A simulated scene ({kind}): {people} people, {cameras} cameras, {frames} frames, {rate:g} per s.
Made by proxfield make people --kind {kind} --seed {seed}, with the options that show below.

scene.pom         what people at each of {locations} locations would cover in each camera
locations.csv     where these locations are: x and y in meters, one line each
calibration.json  the cameras: x = K (R X + t), in meters and pixels
{masks}  masks of frame %f and camera %c: 0 background, 255 foreground
truth.csv         where people are: frame, x and y in meters

Locations are those of a grid, row by row: {columns} columns from x = {x:g} m, {rows} rows from
y = {y:g} m, {spacing:g} m apart. Of each body {missing:g} is missing, {speckle:g} of each image is
speckle, and each image has {blobs} blobs. Bodies have the shape "{shape}".
"""


def write_simulation(
    simulation: Simulation,
    folder: str | os.PathLike[str],
    frames: int,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write frames of a simulation into a new or empty folder; all of it or nothing.

    Args:
        simulation: What to write.
        folder: Where; see the README.txt in it for its files.
        frames: Number of frames.
        progress: Called with the number of frames that are done.

    Raises:
        InputError: If the folder can't be written.
    """
    count = whole_number(frames, "frames", 1)
    pillow = import_pillow()
    with new_folder(folder) as aside:
        pom = simulation.scene.to_pom(input_format=MASKS, process=((0, count),))
        _write(aside / "scene.pom", format_pom(pom))
        _write(aside / "locations.csv", format_locations(simulation.scene))
        save_cameras(aside / "calibration.json", simulation.cameras)
        rows = ["frame,x,y"]
        for frame, (masks, truth) in enumerate(simulation.frames(count)):
            for k, mask in enumerate(masks):
                name = MASKS.replace("%f", str(frame)).replace("%c", str(k))
                (aside / name).write_bytes(png_bytes(pillow.fromarray(mask)))
            # a frame that nobody is in has a line too: it counts where detections are compared
            rows += [f"{frame},{x:.4f},{y:.4f}" for x, y in truth.tolist()] or [f"{frame},,"]
            if progress is not None:
                progress(frame + 1)
        _write(aside / "truth.csv", "\n".join(rows) + "\n")
        _write(aside / "README.txt", _describe(simulation, count))


def format_locations(scene: Scene) -> str:
    """Positions of a scene's locations, one line each: a .pom file doesn't have them."""
    assert scene.positions is not None
    rows = (f"{x:.6g},{y:.6g}" for x, y in scene.positions.tolist())
    return "\n".join(["x,y", *rows]) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _describe(simulation: Simulation, frames: int) -> str:
    scene, noise = simulation.scene, simulation.noise
    assert scene.positions is not None and scene.shape is not None
    x, y = scene.positions[0].tolist()
    across = np.ptp(scene.positions[:, 0])
    rows, columns = scene.shape
    return _README.format(
        kind=simulation.kind,
        people=simulation.n_people,
        cameras=len(simulation.cameras),
        frames=frames,
        rate=simulation.rate,
        seed=simulation.seed,
        locations=scene.n_locations,
        masks=MASKS,
        columns=columns,
        rows=rows,
        x=x,
        y=y,
        spacing=across / max(1, columns - 1),
        missing=noise.missing,
        speckle=noise.speckle,
        blobs=noise.blobs,
        shape=simulation.shape,
    )
