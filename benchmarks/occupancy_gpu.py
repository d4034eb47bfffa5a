"""Occupancy maps on a GPU: milliseconds per iteration and per frame, and errors against numpy.

A scene like WILDTRACK: 7 cameras of 1920×1080 pixels around a ground of 12×36 m. "quarter" has
images of 480×270 pixels and locations 10 cm apart (43,200), "full" has full images and locations
2.5 cm apart (691,200). For each: milliseconds per iteration (CUDA events, median of several) of one
frame and of batches, and milliseconds per cold frame: masks uploaded, 25 updates from the uniform
start, marginals back on the host, in a program that has seen other frames of the scene. "public" is
the same through `infer_many`, everything on the host included except for making the fields.

    python benchmarks/occupancy_gpu.py              # on a GPU; writes results/occupancy_gpu.json
    python benchmarks/occupancy_gpu.py --profile    # also the kernels that take longest
    python benchmarks/occupancy_gpu.py --quick      # tiny, in Triton's interpreter; writes nothing

Everything with checks takes about two minutes; --no-full, --no-check and --no-public leave parts
out. Rows go to the file; what is printed is a table.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import proxfield as pf
from proxfield.core.devices.cuda import interpreted
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.engines.triton.frames import FramesProgram
from proxfield.core.engines.triton.terms.base import on_device
from proxfield.core.terms.base import Layout
from proxfield.people.cameras import Camera
from proxfield.people.occupancy import Occupancy
from proxfield.people.scene import Scene
from proxfield.people.silhouettes import Boxes
from proxfield.people.triton import occupancy_plan

RESULTS = Path(__file__).parent / "results" / "occupancy_gpu.json"
GROUND = (12.0, 36.0)
PEOPLE = 25
STEP = 0.2
MODELS = ("exact", "ratio")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- scenes ----


def cameras(scale: float) -> list[Camera]:
    """Seven cameras around the ground, 3 m high, each looking at a point inside."""
    places = [(-3, -4), (15, -4), (-4, 18), (16, 18), (-3, 40), (15, 40), (6, -6)]
    out = []
    for k, (x, y) in enumerate(places):
        center = np.array([x, y, 3.0])
        forward = np.array([6.0, 18.0 + (y - 18) / 3, 0.8]) - center
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, [0.0, 0.0, 1.0])
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        matrix = np.array([[1300.0, 0, 960], [0, 1300.0, 540], [0, 0, 1]])
        camera = Camera(1920, 1080, matrix, rotation, -rotation @ center, name=str(k))
        out.append(camera.scaled(scale))
    return out


def make_scene(scale: float, spacing: float) -> Scene:
    """Locations in the middle of cells of the ground."""
    x, y = (np.arange(spacing / 2, end, spacing) for end in GROUND)
    across, down = np.meshgrid(x, y)
    positions = np.stack([across.ravel(), down.ravel()], axis=1)
    with ThreadPoolExecutor() as pool:
        seen = tuple(pool.map(lambda camera: camera.silhouettes(positions), cameras(scale)))
        list(pool.map(lambda silhouettes: silhouettes.visible, seen))
    return Scene(seen, positions, across.shape)


def make_masks(scene: Scene, seed: int) -> list[Any]:
    """People as ellipses in their rectangles, with holes and speckle.  # uint8, per camera"""
    random = np.random.default_rng(seed)
    who = random.choice(scene.n_locations, min(PEOPLE, scene.n_locations), replace=False)
    masks = []
    for s in scene.silhouettes:
        assert isinstance(s, Boxes)
        mask = np.zeros((s.height, s.width), dtype=np.uint8)
        for left, top, right, bottom in s.boxes[who]:
            if right > left:
                y, x = np.mgrid[-1 : 1 : (bottom - top) * 1j, -1 : 1 : (right - left) * 1j]
                mask[top:bottom, left:right][x**2 + y**2 <= 1] = 255
        block = max(1, s.height // 30)
        coarse = random.random((s.height // block + 1, s.width // block + 1))
        noise = np.kron(coarse, np.ones((block, block)))[: s.height, : s.width]
        mask[noise < 0.1] = 0
        mask[noise > 0.99] = 255
        masks.append(mask)
    return masks


def make_fields(scene: Scene, count: int, first: int, model: str = "exact") -> list[pf.Field]:
    """Frames, each with masks of its own (of at most 4 kinds, which take long to draw)."""
    known = [make_masks(scene, first + k) for k in range(min(count, 4))]
    return [scene.field(known[k % len(known)], model=model) for k in range(count)]


# ---- measuring ----


def timed(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Milliseconds on the device, median and range, after one call to warm up."""
    work()
    found = []
    for _ in range(repeats):
        if DEVICE == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end))
        else:
            since = time.perf_counter()
            work()
            found.append(1e3 * (time.perf_counter() - since))
    return spread(found)


def waited(work: Callable[[int], object], repeats: int) -> dict[str, float]:
    """Milliseconds on the clock until the device is done; the first two calls aren't counted."""
    found = []
    for k in range(repeats + 2):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        since = time.perf_counter()
        work(k)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - since))
    return spread(found[2:])


def spread(found: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


def divided(found: dict[str, float], by: int) -> dict[str, float]:
    """The same for one of many."""
    return {key: value / by for key, value in found.items()}


def plan_of(fields: list[pf.Field]) -> Update:
    """Proximal updates with one step for all."""
    return Update(Kind.PROXIMAL, np.full(sum(f.n_vars for f in fields), STEP))


def measure_batch(
    scene: Scene, count: int, model: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Per iteration and per cold frame, of some frames together."""
    sets = [make_fields(scene, count, 100 * k, model) for k in range(2)]
    lowereds = [[field.lower() for field in fields] for fields in sets]
    since = time.perf_counter()
    program = FramesProgram(lowereds[0], "float32", DEVICE)
    building = time.perf_counter() - since
    plan = plan_of(sets[0])
    starts = [np.full(field.layout.size, 0.5) for field in sets[0]]
    state = program.start(starts)
    some = options.iterations
    program.advance_each(state, plan, 2 * some, -1.0, True)  # compiles, and records graphs
    per_iteration = timed(
        lambda: program.advance_each(state, plan, some, -1.0, True), options.repeats
    )
    uniform = torch.from_numpy(np.concatenate(starts)).to(DEVICE)

    def cold(k: int) -> None:
        program.set_frames(lowereds[k % 2])
        fresh = program.start_from(uniform)
        program.advance_each(fresh, plan, options.updates, -1.0, False)
        program.tensor(fresh).cpu()

    for k in range(3):  # records the graph of updates without F
        cold(k)
    per_frame = waited(cold, options.repeats)

    def public(k: int) -> None:
        pf.infer_many(
            sets[k % 2],
            "fixed",
            step=STEP,
            max_iters=options.updates,
            tol=0,
            device="cuda",
            trace=False,
        )

    out = {
        "model": model, "frames": count, "building_s": building,
        "ms_per_iteration": divided(per_iteration, some),
        "ms_per_iteration_and_frame": per_iteration["median"] / some / count,
        "ms_per_cold_frame": divided(per_frame, count),
    }  # fmt: skip
    if not options.no_public:
        out["ms_per_cold_frame_public"] = divided(waited(public, options.repeats), count)
    if DEVICE == "cuda":
        out["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    if options.profile and DEVICE == "cuda":
        out["kernels"] = profile(program, plan, uniform)
    return out


def profile(program: FramesProgram, plan: Update, start: Any) -> dict[str, float]:
    """Microseconds per iteration of the kernels that take longest."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    state = program.start_from(start)
    with profiler(activities=[ProfilerActivity.CUDA]) as seen:
        program.advance_each(state, plan, 8, -1.0, True)
        torch.cuda.synchronize()
    found = {e.key: e.self_device_time_total / 8 for e in seen.key_averages()}
    first = sorted(found.items(), key=lambda pair: -pair[1])[:16]
    return {name[:60]: round(value, 2) for name, value in first}


# ---- checking ----


def errors(term: Occupancy, seed: int) -> dict[str, float]:
    """Largest error of energy and gradient, relative to the largest entry, and repeatability."""
    n = term.n_locations
    layout = Layout(np.full(n, 2))
    random = np.random.default_rng(seed)
    p = 1 - 0.02 * random.random(n)
    some = random.choice(n, min(n, 30), replace=False)
    p[some] = 10.0 ** random.uniform(-20, -1, len(some))
    out: dict[str, float] = {}
    for dtype in ("float64", "float32"):
        q = np.stack([p, 1 - p], axis=1).ravel().astype(dtype)
        expected = np.zeros(2 * n)
        term.add_gradient(layout, q.astype(np.float64), expected)
        energy = term.energy(layout, q.astype(np.float64))
        made = on_device(term, layout, dtype, DEVICE)
        there = torch.from_numpy(q).to(DEVICE)
        found = [torch.zeros_like(there) for _ in range(2)]
        first, again = (float(made.add_gradient(there, g)) for g in found)
        gap = np.abs(found[0].cpu().numpy() - expected).max() / np.abs(expected).max()
        out[f"gradient_{dtype}"] = float(gap)
        out[f"energy_{dtype}"] = abs(first - energy) / abs(energy)
        out[f"repeats_{dtype}"] = float(first == again and bool((found[0] == found[1]).all()))
    return out


def check(scene: Scene) -> dict[str, Any]:
    """Both models."""
    out: dict[str, Any] = {}
    masks = make_masks(scene, 0)
    for model in MODELS:
        out[f"boxes_{model}"] = errors(Occupancy(scene.silhouettes, masks, model=model), 0)
    return out


# ---- all of it ----


def mend_interpreter() -> None:
    """As the tests of the kernels do: Triton's interpreter fails with present versions of numpy."""
    if interpreted():
        sys.path.append(str(Path(__file__).parents[1] / "tests" / "gpu"))
        import_module("gpu_cases").mend_interpreter()


def fresh_plans(scratch: int) -> None:
    """Let plans be made anew, for another size of what is worked on together."""
    gc.collect()
    occupancy_plan._PLANS.clear()
    occupancy_plan.SCRATCH_BYTES = scratch
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


HEADING = "scene   model frames  MiB | per iteration  and frame | cold frame  public  GiB"


def line_of(row: dict[str, Any]) -> str:
    """A line of the table: milliseconds."""
    public = row.get("ms_per_cold_frame_public", {}).get("median", float("nan"))
    return (
        f"{row['scene']:7} {row['model']:5} {row['frames']:6} {row['scratch_mib']:4.0f} | "
        f"{row['ms_per_iteration']['median']:13.4f} {row['ms_per_iteration_and_frame']:10.4f} | "
        f"{row['ms_per_cold_frame']['median']:10.3f} {public:7.3f} "
        f"{row.get('peak_memory_gib', 0.0):4.1f}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny, writes nothing")
    parser.add_argument("--profile", action="store_true", help="list the slowest kernels")
    parser.add_argument("--no-full", action="store_true", help="leave out full HD at 2.5 cm")
    parser.add_argument("--no-check", action="store_true", help="leave out the errors")
    parser.add_argument("--no-public", action="store_true", help="leave out infer_many")
    parser.add_argument("--batches", default="1,16,32,64", help="numbers of frames")
    parser.add_argument("--scratch", default="", help="MiB worked on together, several to compare")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=64, help="per measurement")
    parser.add_argument("--updates", type=int, default=25, help="per cold frame")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    begun = time.perf_counter()
    default = occupancy_plan.SCRATCH_BYTES
    scratch = [int(float(part) * 2**20) for part in options.scratch.split(",") if part]
    scratch = scratch or [default]
    batches = [int(part) for part in options.batches.split(",")]
    quarter = (0.25, 0.1)
    if options.quick:
        mend_interpreter()
        quarter, batches = (1 / 120, 6.0), [1, 2]
        options.no_full, options.repeats, options.iterations, options.updates = True, 1, 1, 1
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "interpreter"
    report: dict[str, Any] = {"device": device, "torch": torch.__version__, "rows": []}
    small = make_scene(*quarter)
    seen = [round(float(s.visible.mean()), 2) for s in small.silhouettes]
    print("locations", small.n_locations, "visible", seen, flush=True)
    if not options.no_check:
        report["errors"] = check(small)
        for name, found in report["errors"].items():
            print(name, *(f"{key} {value:.1e}" for key, value in found.items()), flush=True)
    jobs = [("quarter", small, count, "exact") for count in batches]
    jobs.append(("quarter", small, batches[-1], "ratio"))
    if not options.no_full:
        large = make_scene(1.0, 0.025)
        jobs += [("full", large, 1, model) for model in MODELS]
    for size in scratch:
        fresh_plans(size)
        for name, scene, count, model in jobs:
            row = {"scene": name, "locations": scene.n_locations, "scratch_mib": size / 2**20}
            row.update(measure_batch(scene, count, model, options))
            report["rows"].append(row)
            print(line_of(row), f"[{time.perf_counter() - begun:.0f} s]", flush=True)
            gc.collect()
    print(HEADING, *map(line_of, report["rows"]), sep="\n", flush=True)
    if options.profile:
        for row in report["rows"]:
            found = ", ".join(f"{name} {t:g}" for name, t in row.get("kernels", {}).items())
            print(f"{row['scene']} {row['model']} {row['frames']}: {found}", flush=True)
    if not options.quick:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        print("written to", options.out)


if __name__ == "__main__":
    main()
