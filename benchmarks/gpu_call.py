"""Where the time of ``DenseCRF(image, p).infer(device="cuda")`` goes, from arrays to arrays.

For each image (arrays (height, width, 3) of 8-bit colors; without one it makes a smooth random one
of 500×375) and each filter: milliseconds of the whole call with 21 labels and 10 updates, numpy in
and out and torch in and out, by the host's clock, the median of several calls after a warm-up; the
share of building the field; and, with ``--profile``, the functions of one call that take longest
and the kernels that the device runs in it.

    python benchmarks/gpu_call.py IMAGE.npy … --json gpu_call.json
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import proxfield as pf
import proxfield.torch as pf_torch
from gpu_dense import made_image

SETTINGS = {"preset": "krahenbuehl"}


def softmaps(height: int, width: int, labels: int) -> np.ndarray:
    """Smooth random distributions, as a network gives them.  # (height, width, labels) float32"""
    rng = np.random.default_rng(1)
    coarse = rng.normal(size=(height // 25 + 1, width // 25 + 1, labels))
    fine = coarse.repeat(25, 0).repeat(25, 1)[:height, :width]
    scores = 2.0 * fine + 0.5 * rng.normal(size=fine.shape)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


def times(run: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each call, sorted; two calls before them compile and record."""
    for _ in range(3):
        run()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return sorted(found)


def profiled(run: Callable[[], Any], lines: int = 45) -> str:
    """The functions that one call spends its time in, and the device's kernels."""
    torch.cuda.synchronize()
    profile = cProfile.Profile()
    profile.runcall(run)
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("cumulative").print_stats(lines)
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(lines // 2)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as device:
        run()
        torch.cuda.synchronize()
    table = device.key_averages().table(sort_by="cuda_time_total", row_limit=25)
    return out.getvalue() + table


def machine() -> dict[str, float]:
    """Milliseconds of what any way has to do: copies of 16 MB."""
    given = np.random.default_rng(0).random((375, 500, 21), dtype=np.float32)
    there = torch.from_numpy(given).cuda()
    pinned = torch.empty(given.shape, dtype=torch.float32, pin_memory=True)
    held = np.empty_like(given)
    return {
        "copy to a new array": times(given.copy, 9)[4],
        "copy to an old array": times(lambda: np.copyto(held, given), 9)[4],
        "copy to pinned": times(lambda: pinned.copy_(torch.from_numpy(given)), 9)[4],
        "pageable to the device": times(lambda: torch.from_numpy(given).cuda(), 9)[4],
        "pinned to the device": times(lambda: pinned.cuda(non_blocking=True), 9)[4],
        "pinned from the device": times(lambda: pinned.copy_(there, non_blocking=True), 9)[4],
        "pageable from the device": times(lambda: there.cpu(), 9)[4],
        "log": times(lambda: np.log(given, out=held), 9)[4],
        "sums in float64": times(lambda: given.sum(-1, dtype=np.float64), 9)[4],
        "sums by a product": times(lambda: given @ np.ones(21, np.float32), 9)[4],
        "smallest": times(given.min, 9)[4],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="*")
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    images = {Path(name).stem: np.load(name) for name in options.images}
    images = images or {"made": made_image(375, 500)}
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "machine ms": machine()}
    print(json.dumps(found["machine ms"], indent=1), flush=True)
    lines = []
    for name, image in images.items():
        p = softmaps(*image.shape[:2], options.labels)
        for filter in ("lattice", "exact"):

            def call(image: Any = image, p: Any = p, filter: str = filter) -> Any:
                crf = pf.DenseCRF(image, p, filter=filter, **SETTINGS)
                result = crf.infer(device="cuda", max_iters=options.updates)
                return result.probabilities, result.labels, result.free_energy

            whole = times(call, options.repeats)
            build = times(lambda i=image, p=p, f=filter: pf.DenseCRF(i, p, filter=f, **SETTINGS), 5)
            there = [torch.from_numpy(x).cuda() for x in (image, p)]
            tensors = times(
                lambda t=there, f=filter: pf_torch.refine(
                    *t, filter=f, max_iters=options.updates, **SETTINGS
                ),
                options.repeats,
            )
            lines.append(
                {
                    "tensors ms": float(np.median(tensors)), "tensors fastest": tensors[0],
                    "image": name, "filter": filter, "ms": float(np.median(whole)),
                    "fastest": whole[0], "slowest": whole[-1], "building": build[2],
                }
            )  # fmt: skip
            print(lines[-1], flush=True)
            if options.profile:
                print(profiled(call), flush=True)
    found["calls"] = lines
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
