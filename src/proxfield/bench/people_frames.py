"""Frames of the benchmark on people: simulated ones, or those of a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles
from proxfield.errors import InputError
from proxfield.io.files import display_name, read_bytes
from proxfield.io.masks import MaskFiles
from proxfield.io.pom import read_pom
from proxfield.people.detections import Detections
from proxfield.people.scene import Scene
from proxfield.people.simulate import simulate

PITCH = "pitch"
"""The suite of simulated frames."""
SPACING = 0.35
"""Distance of neighboring locations of the pitch, in meters."""
STRIDE = 50
"""Simulated frames are that far apart, 2 seconds: those in between hardly differ."""
Masks = Sequence[ArrayLike | None]


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame.

    Attributes:
        scene: What people at each location would cover.
        number: Of the frame.
        masks: Makes or reads the masks of all cameras.
        truth: Where people are, in meters.  # (k, 2)
    """

    scene: Scene
    number: int
    masks: Callable[[], Masks]
    truth: Doubles


@dataclass(frozen=True)
class FrameInstance:
    """One frame of a suite, as `runner.run_tasks` takes it; see `suites.Instance`."""

    suite: str
    name: str
    digest: str
    make: Callable[[], Frame] = field(compare=False, repr=False)
    reference: None = None


def simulated_frames(
    seeds: Sequence[int],
    frames: int,
    *,
    size: tuple[int, int] | None = None,
    spacing: float | None = None,
) -> list[FrameInstance]:
    """Frames of the simulated pitch.

    Args:
        seeds: Of each simulation.
        frames: Number of frames of each.
        size: As in `simulate`.
        spacing: Distance of neighboring locations in meters; `SPACING` by default.
    """
    out = []
    for seed in seeds:
        step = SPACING if spacing is None else spacing
        made = simulate(PITCH, size=size, spacing=step, seed=seed)
        known = scene_digest(made.scene)
        for number in range(0, STRIDE * frames, STRIDE):
            frame = Frame(made.scene, number, partial(made.masks, number), made.truth(number))
            out.append(_instance(PITCH, f"seed {seed}, frame {number}", frame, known))
    return out


def folder_frames(folder: str) -> list[FrameInstance]:
    """Frames of a folder as ``proxfield make people`` writes it; all masks are read once.

    Raises:
        InputError: If a file is missing or damaged, or there are no frames.
    """
    path = Path(folder)
    pom = read_pom(path / "scene.pom")
    ground = _read_locations(path / "locations.csv", pom.n_locations)
    scene = Scene.from_pom(pom, positions=ground)
    if pom.input_format is None:
        raise InputError(
            "no INPUT_VIEW_FORMAT, expected the names of the masks",
            path=display_name(path / "scene.pom"),
        )
    files = MaskFiles(pom.resolve(pom.input_format), scene.names, pom.sizes)
    truth = Detections.load(path / "truth.csv")
    if not truth.frames.size:
        raise InputError("has no frames", path=display_name(path / "truth.csv"))
    known = scene_digest(scene)
    frames = [
        (n, Frame(scene, n, partial(files.read, n), truth.at(n))) for n in truth.frames.tolist()
    ]
    suite = path.resolve().name
    return [_instance(suite, f"frame {n}", frame, known) for n, frame in frames]


def load_frames(folders: Sequence[str]) -> list[FrameInstance]:
    """Frames of several folders.

    Raises:
        InputError: As `folder_frames`, or if two folders have the same name.
    """
    names = [Path(folder).resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise InputError("--data: two folders have the same name, expected different ones")
    return [frame for folder in folders for frame in folder_frames(folder)]


def scene_digest(scene: Scene) -> str:
    """Of what people cover, where locations are, and priors."""
    parts: list[ArrayLike] = [np.asarray(scene.prior)]
    if scene.positions is not None:
        parts.append(scene.positions)
    for s in scene.silhouettes:
        parts += [np.array([s.height, s.width]), *s.to_arrays().values()]
    return _digest(parts)


def _instance(suite: str, name: str, frame: Frame, known: str) -> FrameInstance:
    masks = [np.zeros(0) if mask is None else mask for mask in frame.masks()]
    digest = hashlib.sha256(f"{known} {_digest([*masks, frame.truth])}".encode()).hexdigest()[:16]
    return FrameInstance(suite, name, digest, lambda: frame)


def _digest(parts: Iterable[ArrayLike]) -> str:
    total = hashlib.sha256()
    for part in parts:
        values = np.ascontiguousarray(part)
        total.update(f"{values.dtype} {values.shape}".encode())
        total.update(values.tobytes())
    return total.hexdigest()


def _read_locations(path: Path, count: int) -> Doubles:
    """Positions of the locations, which a .pom file doesn't have.  # (n, 2)"""
    content, name = read_bytes(path)
    lines = content.decode("utf-8", "replace").split()
    if not lines or lines[0] != "x,y":
        raise InputError("expected the header x,y", path=name, line=1)
    words = [line.split(",") for line in lines[1:]]
    odd = next((k for k, row in enumerate(words) if len(row) != 2), None)
    if odd is not None:
        raise InputError(f"{lines[odd + 1]!r}, expected x and y", path=name, line=odd + 2)
    try:
        out = np.array(words, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise InputError(f"{error}, expected x and y in meters", path=name) from None
    if len(out) != count:
        raise InputError(f"{len(out)} locations, expected {count} as scene.pom has", path=name)
    return out
