"""Speed and error of the exact Gaussian filter on a GPU, on images.

For each image and each kind of filter (bilateral 80/13 and 67/3, Gaussian of 3 pixels, with
21 channels unless told otherwise):

- milliseconds for one application, by CUDA events: the median of many after a warm-up, and the
  spread between the fastest and the slowest;
- milliseconds to build the plan, by the host's clock;
- the fraction of all pairs that is computed, and the fraction whose weight is over the tolerance;
- the relative error against float64, on some rows;
- the floor: the larger of two counts, the exponentials of the pairs computed at 4.2e12 a second
  (16 a cycle on each of an H200's multiprocessors) and the products at 790 TFLOP/s (measured for
  large matrices). Some exponentials are polynomials on other units, so it is no strict bound.

At the end ten rounds of Gaussian and bilateral filter together, as a dense CRF needs them.

Run ``python benchmarks/gpu_dense.py IMAGE.npy …`` with arrays (height, width, 3) of 8-bit colours;
without one it makes a smooth random image. ``--json FILE`` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from proxfield.gpu.exact import ExactPlan, reference_filter

KINDS: dict[str, tuple[float, float | None]] = {
    "bilateral 80/13": (80.0, 13.0),
    "bilateral 67/3": (67.0, 3.0),
    "Gaussian 3": (3.0, None),
}
"""Standard deviations of places in pixels, and of colours."""
EXPONENTIALS = 4.2e12
PRODUCTS = 790e12


def made_image(height: int, width: int) -> np.ndarray:
    """Smooth colours with edges."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width] / 100.0
    waves = sum(
        np.sin(a * y + b * x + c)[..., None] * rng.normal(size=3)
        for a, b, c in rng.normal(size=(12, 3)) * [2.0, 2.0, 9.0]
    )
    noise = rng.normal(size=(height, width, 3))
    return np.clip(128 + 30 * waves + 40 * (waves > 0) + 4 * noise, 0, 255).astype(np.uint8)


def features_of(image: np.ndarray, places: float, colours: float | None) -> Any:
    """Features in units of standard deviations.  # (pixels, 2 or 5)"""
    height, width = image.shape[:2]
    grid = np.stack(np.mgrid[:height, :width], axis=-1).reshape(-1, 2) / places
    parts = [grid] if colours is None else [grid, image.reshape(-1, 3) / colours]
    return torch.from_numpy(np.concatenate(parts, axis=1)).cuda()


def probabilities(n: int, labels: int) -> Any:
    """Random distributions, one a pixel.  # (n, labels)"""
    random = torch.Generator(device="cuda").manual_seed(1)
    return torch.softmax(3 * torch.randn(n, labels, generator=random, device="cuda"), 1)


def timed(run: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each repeat, sorted."""
    for _ in range(3):
        run()
    out = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        out.append(float(begin.elapsed_time(end)))
    return sorted(out)


def built(features: Any, tolerance: float) -> tuple[ExactPlan, float]:
    """A plan, and the milliseconds it took once everything was compiled."""
    ExactPlan(features, tolerance)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    plan = ExactPlan(features, tolerance)
    torch.cuda.synchronize()
    return plan, 1e3 * (time.perf_counter() - begin)


def weights_over(features: Any, rows: Any, tolerance: float) -> float:
    """The fraction of pairs with a weight over the tolerance, on some rows."""
    reach = math.sqrt(-2 * math.log(tolerance))
    count = 0
    for part in rows.split(256):
        count += int((torch.cdist(features[part], features) <= reach).sum())
    return count / (len(rows) * len(features))


def measure(image: np.ndarray, kind: str, labels: int, tolerance: float, repeats: int) -> dict:
    """One line of the table."""
    features = features_of(image, *KINDS[kind])
    n = len(features)
    values = probabilities(n, labels)
    plan, build = built(features, tolerance)
    times = timed(lambda: plan.apply(values), repeats)
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:4096].cuda()
    expected = reference_filter(features, values, rows, block=256)
    width = max(16, 1 << (labels - 1).bit_length())
    exponentials = 1e3 * plan.pairs / EXPONENTIALS
    products = 1e3 * 2 * plan.pairs * (plan.left.shape[1] + width) / PRODUCTS
    median = float(np.median(times))
    return {
        "size": f"{image.shape[1]}×{image.shape[0]}",
        "kind": kind,
        "labels": labels,
        "tolerance": tolerance,
        "ms": median,
        "fastest": times[0],
        "slowest": times[-1],
        "build ms": build,
        "computed": plan.kept,
        "over tolerance": weights_over(features, rows[:1024], tolerance),
        "error": float((plan.apply(values)[rows] - expected).norm() / expected.norm()),
        "floor exponentials ms": exponentials,
        "floor products ms": products,
        "reached": max(exponentials, products) / median,
        "plan MB": plan.nbytes / 1e6,
    }


def rounds(image: np.ndarray, labels: int, tolerance: float, repeats: int) -> dict:
    """Ten rounds of both filters, and with both plans built."""
    kinds = [KINDS["Gaussian 3"], KINDS["bilateral 80/13"]]
    features = [features_of(image, *kind) for kind in kinds]
    plans = [ExactPlan(f, tolerance) for f in features]
    values = probabilities(len(features[0]), labels)

    def ten(these: list[ExactPlan]) -> None:
        for _ in range(10):
            for plan in these:
                plan.apply(values)

    return {
        "size": f"{image.shape[1]}×{image.shape[0]}",
        "filters ms": float(np.median(timed(lambda: ten(plans), repeats))),
        "with plans ms": float(
            np.median(timed(lambda: ten([ExactPlan(f, tolerance) for f in features]), repeats))
        ),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="*", help="arrays (height, width, 3) of 8-bit colours")
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--tolerance", type=float, nargs="+", default=[1e-6])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path, help="keep the numbers here")
    options = parser.parse_args()
    images = {Path(name).stem: np.load(name) for name in options.images}
    images = images or {"made": made_image(375, 500)}
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, triton {triton.__version__}")
    head = f"{'image':>14} {'size':>9} {'filter':>15} {'tol.':>6} {'ms':>8} {'spread':>13}"
    head += f" {'build':>6} {'computed':>8} {'over':>6} {'error':>8} {'floor':>7} {'reached':>7}"
    print(head)
    lines, tens = [], []
    for name, image in images.items():
        repeats = options.repeats if image.size < 1e6 else max(5, options.repeats // 5)
        for kind in KINDS:
            for tolerance in options.tolerance:
                x = measure(image, kind, options.labels, tolerance, repeats)
                lines.append({"image": name, **x})
                floor = max(x["floor exponentials ms"], x["floor products ms"])
                print(
                    f"{name:>14} {x['size']:>9} {kind:>15} {tolerance:6.0e} {x['ms']:8.3f} "
                    f"{x['fastest']:6.3f}–{x['slowest']:6.3f} {x['build ms']:6.1f} "
                    f"{x['computed']:8.4f} {x['over tolerance']:6.4f} {x['error']:8.1e} "
                    f"{floor:7.3f} {x['reached']:7.0%}"
                )
        if image.size < 1e6:
            for tolerance in options.tolerance:
                x = rounds(image, options.labels, tolerance, 5)
                tens.append({"image": name, "tolerance": tolerance, **x})
                print(
                    f"{name:>14} {x['size']:>9} ten rounds of Gaussian and bilateral 80/13, "
                    f"tolerance {tolerance:.0e}: {x['filters ms']:.1f} ms, "
                    f"with building the plans {x['with plans ms']:.1f} ms"
                )
    if options.json:
        found = {
            "device": device, "torch": torch.__version__, "triton": triton.__version__,
            "filters": lines, "ten rounds": tens,
        }  # fmt: skip
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
