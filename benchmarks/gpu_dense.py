"""Speed and error of dense CRFs on a GPU: filters, terms and whole iterations, on images.

For each image and each kind of filter (bilateral 80/13 and 67/3, Gaussian of 3 pixels, with
21 channels by default) a line for the exact filter:

- milliseconds for one application, by CUDA events: the median of many after a warm-up, and the
  spread between the fastest and the slowest;
- milliseconds to build the plan, by the host's clock, and of each stage of it;
- the fraction of all pairs that is computed, the part of it that is computed by centers of blocks
  (one weight for eight pairs), and the fraction whose weight is over the tolerance;
- the relative error against float64, on some rows;
- the floor: the larger of two counts, half of the weights computed by exponentials at 4.2e12 a
  second (16 a cycle on each of an H200's multiprocessors; the other half are polynomials on other
  units), and the products at 790 TFLOP/s (measured for large matrices), with 64 channels, since
  with weights in registers narrower ones take as long.

and one for the lattice. Then ten iterations of a dense CRF (Gaussian 3 and a bilateral term, Potts,
symmetric normalization) through the terms on the device and a plain softmax, through the same
recorded as a CUDA graph, and through ``proxfield.infer(…, kernels="cuda")`` where that exists.

Run ``python benchmarks/gpu_dense.py IMAGE.npy …`` with arrays (height, width, 3) of 8-bit colors;
without one it makes smooth random images of 500×375 and 1000×750. ``--scan`` tries other ways to
cut the work; ``--json FILE`` keeps the numbers.
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

import proxfield as pf
from proxfield.core.engines.triton.terms.base import on_device
from proxfield.core.engines.triton.terms.gaussian import attach
from proxfield.core.filters.torch.plans import reference_filter
from proxfield.core.filters.triton import encode, exact, order
from proxfield.core.filters.triton.exact import ExactPlan, Items, Tiles
from proxfield.core.filters.triton.lattice import LatticePlan

KINDS: dict[str, tuple[float, float | None]] = {
    "bilateral 80/13": (80.0, 13.0),
    "bilateral 67/3": (67.0, 3.0),
    "Gaussian 3": (3.0, None),
}
"""Standard deviations of places in pixels, and of colors."""
EXPONENTIALS = 4.2e12
PRODUCTS = 790e12
SCANNED = [
    Tiles(), Tiles(box=8), Tiles(block=4, box=8), Tiles(block=16), Tiles(row=64, box=8),
    Tiles(column=32, box=8), Tiles(column=128, box=8), Tiles(rounds=512), Tiles(rounds=128),
]  # fmt: skip


def made_image(height: int, width: int) -> np.ndarray:
    """Smooth colors with edges."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width] / (height / 3.75)
    waves = sum(
        np.sin(a * y + b * x + c)[..., None] * rng.normal(size=3)
        for a, b, c in rng.normal(size=(12, 3)) * [2.0, 2.0, 9.0]
    )
    noise = rng.normal(size=(height, width, 3))
    return np.clip(128 + 30 * waves + 40 * (waves > 0) + 4 * noise, 0, 255).astype(np.uint8)


def features_of(image: np.ndarray, places: float, colors: float | None) -> np.ndarray:
    """Features in units of standard deviations.  # (pixels, 2 or 5) float32"""
    height, width = image.shape[:2]
    grid = np.stack(np.mgrid[:height, :width], axis=-1).reshape(-1, 2) / places
    parts = [grid] if colors is None else [grid, image.reshape(-1, 3) / colors]
    return np.concatenate(parts, axis=1).astype(np.float32)


def probabilities(n: int, n_labels: int) -> Any:
    """Random distributions, one per pixel.  # (n, labels)"""
    random = torch.Generator(device="cuda").manual_seed(1)
    return torch.softmax(3 * torch.randn(n, n_labels, generator=random, device="cuda"), 1)


def timed(run: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each repeat by the device's clock, sorted."""
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


def by_host(run: Callable[[], Any], repeats: int = 7) -> float:
    """Median milliseconds by the host's clock, with everything compiled."""
    run()
    out = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        out.append(1e3 * (time.perf_counter() - begin))
    return float(np.median(out))


def stages(features: Any, tolerance: float) -> dict[str, float]:
    """Milliseconds of each stage of building an exact plan, waiting after each."""
    t = Tiles()
    plan = ExactPlan(features, tolerance)
    scale = math.sqrt(math.log2(math.e))
    bounds = torch.stack(torch.aminmax(features, dim=0)).to(torch.float64).tolist()
    points = order.centered(features, *bounds) * scale
    coarse = points.to(torch.float32)
    extents = [scale * 0.5 * (b - a) for a, b in zip(*bounds, strict=True)]
    ordered = coarse[plan.order.clamp(max=plan.n - 1)]
    reach = math.sqrt(-2.0 * math.log2(tolerance))

    def limits() -> Any:
        shares = order.shares_beyond(ordered, t.row, t.box)
        return order.limits(shares, reach, exact.DROPPED_SHARE, exact.FAR_SHARE)

    bounds_of_rows, spread = limits(), order.moments(ordered, t.block)[1]

    def near() -> Any:
        return order.Near(ordered, t.row, t.box, t.block, bounds_of_rows, spread)

    found, step = near(), t.column // t.block
    counts = found.counts()
    far = counts[:, 1] // t.column
    rest = -(-(counts.sum(1) - far * t.column) // step)
    start = torch.from_numpy(Items(far, rest, t.column, step, t.rounds).begin).cuda()
    return {
        "ranges": by_host(lambda: torch.stack(torch.aminmax(features, dim=0)).tolist()),
        "center": by_host(lambda: (order.centered(features, *bounds) * scale).to(torch.float32)),
        "order": by_host(lambda: order.kd_order(coarse, t.block, t.row)),
        "encode": by_host(
            lambda: encode.encode_in_order(points, plan.order, t.block, extents, exact.BIAS)
        ),
        "shares": by_host(limits),
        "count near": by_host(lambda: near().counts()),
        "items": by_host(lambda: Items(far, rest, t.column, step, t.rounds)),
        "fill lists": by_host(lambda: found.fill(start, plan.blocks)),
    }


def weights_over(features: Any, rows: Any, tolerance: float) -> float:
    """The fraction of pairs with a weight over the tolerance, on some rows."""
    reach = math.sqrt(-2 * math.log(tolerance))
    count = 0
    for part in rows.split(256):
        count += int((torch.cdist(features[part], features) <= reach).sum())
    return count / (len(rows) * len(features))


def some_rows(n: int) -> Any:
    """Rows to look at.  # (4096,)"""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:4096].cuda()


def measure(image: np.ndarray, kind: str, n_labels: int, tolerance: float, repeats: int) -> dict:
    """One line of the table."""
    features = torch.from_numpy(features_of(image, *KINDS[kind])).cuda()
    n = len(features)
    values = probabilities(n, n_labels)
    plan = ExactPlan(features, tolerance)
    times = timed(lambda: plan.apply(values), repeats)
    one = timed(lambda: plan.apply(values[:, :1].contiguous()), max(3, repeats // 3))
    rows = some_rows(n)
    expected = reference_filter(features, values, rows, block=256)
    width = max(16, 1 << (n_labels - 1).bit_length())
    done = plan.pairs - plan.far_pairs * (1.0 - 1.0 / plan.tiles.block)
    exponentials = 1e3 * 0.5 * done / EXPONENTIALS
    products = 1e3 * 2 * done * (plan.encoded.left.shape[1] + max(64, width)) / PRODUCTS
    median = float(np.median(times))
    return {
        "kind": kind,
        "labels": n_labels,
        "tolerance": tolerance,
        "ms": median,
        "fastest": times[0],
        "slowest": times[-1],
        "one channel ms": float(np.median(one)),
        "build ms": by_host(lambda: ExactPlan(features, tolerance)),
        "stages ms": stages(features, tolerance),
        "computed": plan.pairs / plan.n**2,
        "by centers": plan.far_pairs / float(n) ** 2,
        "weights a second": 1e3 * done / median,
        "over tolerance": weights_over(features, rows[:1024], tolerance),
        "error": float((plan.apply(values)[rows] - expected).norm() / expected.norm()),
        "floor exponentials ms": exponentials,
        "floor products ms": products,
        "reached": max(exponentials, products) / median,
        "plan MB": plan.nbytes / 1e6,
    }


def lattice(image: np.ndarray, kind: str, n_labels: int, repeats: int) -> dict:
    """The lattice in place of the exact filter."""
    features = torch.from_numpy(features_of(image, *KINDS[kind])).cuda()
    values = probabilities(len(features), n_labels)
    plan = LatticePlan(features)
    rows = some_rows(len(features))[:1024]
    expected = reference_filter(features, values, rows, block=256)
    times = timed(lambda: plan.apply(values), repeats)
    splat = timed(lambda: plan.splat(values), repeats)
    here = plan.splat(values)
    there = torch.empty_like(here)
    share = plan.blur.share(plan.d)
    sides = plan.next_to[0]
    blur = timed(lambda: plan._blur(1 - 2 * share, share, sides, here, there), repeats)
    cut = timed(lambda: plan._slice(here), repeats)
    return {
        "kind": kind,
        "ms": float(np.median(times)),
        "splat ms": float(np.median(splat)),
        "one axis ms": float(np.median(blur)),
        "slice ms": float(np.median(cut)),
        "build ms": by_host(lambda: LatticePlan(features)),
        "vertices": plan.n_vertices,
        "error": float((plan.apply(values)[rows] - expected).norm() / expected.norm()),
    }


def field_of(
    image: np.ndarray, bilateral: str, n_labels: int, filter: str
) -> tuple[Any, np.ndarray]:
    """A dense CRF with these two terms, and its unary energies.  # (n, labels)"""
    n = image.shape[0] * image.shape[1]
    unary = -torch.log(probabilities(n, n_labels).clamp(min=1e-5)).cpu().numpy()
    field = pf.Field(n, n_labels=n_labels).add(pf.Unary(unary))
    for kind, weight in (("Gaussian 3", 3.0), (bilateral, 10.0)):
        features = features_of(image, *KINDS[kind])
        field.add(pf.Gaussian(features, weight, self_message=True, filter=filter))
    return field, unary


def ten_rounds(image: np.ndarray, bilateral: str, n_labels: int, filter: str, repeats: int) -> dict:
    """Ten iterations, with and without what has to be built for them."""
    field, unary = field_of(image, bilateral, n_labels, filter)
    lowered = field.lower()
    layout = lowered.layout
    energies = torch.from_numpy(unary.ravel().astype(np.float32)).cuda()

    def built() -> list[Any]:
        moved = attach(lowered, "float32", "cuda")
        return [on_device(term, layout, "float32", "cuda") for term in moved.extras]

    def rounds(terms: list[Any]) -> Any:
        q = torch.softmax(-energies.view(-1, n_labels), 1).view(-1)
        for _ in range(10):
            shift = energies.clone()
            for term in terms:
                term.add_gradient(q, shift)
            q = torch.softmax(-shift.view(-1, n_labels), 1).view(-1)
        return q

    terms = built()
    out = {
        "bilateral": bilateral,
        "filter": filter,
        "filters": [term.filter.kind for term in terms],
        "terms built ms": by_host(built),
        "upload ms": by_host(lambda: [torch.from_numpy(t.features).cuda() for t in lowered.extras]),
        "ten rounds ms": float(np.median(timed(lambda: rounds(terms), repeats))),
        "with building ms": by_host(lambda: rounds(built()), 5),
    }
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rounds(terms)
    out["ten rounds, graph ms"] = float(np.median(timed(graph.replay, repeats)))
    try:
        options = {"kernels": "cuda", "dtype": "float32", "init": "unary", "max_iters": 10}
        for trace in (False, True):
            name = "infer ms" + (", traced" if trace else "")
            out[name] = by_host(
                lambda trace=trace: pf.infer(field, "fixed", tol=0.0, trace=trace, **options), 5
            )
    except Exception as error:  # not every version has it
        out["infer"] = f"{type(error).__name__}: {error}"
    return out


def scan(image: np.ndarray, kind: str, n_labels: int, repeats: int) -> list[dict]:
    """Other ways to cut the work."""
    features = torch.from_numpy(features_of(image, *KINDS[kind])).cuda()
    values = probabilities(len(features), n_labels)
    found = []
    before = exact.EXPONENTIALS
    for tiles, exponentials in [(t, 2) for t in SCANNED] + [(Tiles(), p) for p in (0, 1, 3)]:
        exact.EXPONENTIALS = exponentials
        try:
            plan = ExactPlan(features, tiles=tiles)
            ms = float(np.median(timed(lambda plan=plan: plan.apply(values), repeats)))
            line = {"ms": ms, "computed": plan.pairs / plan.n**2}
        except Exception as error:  # a cut may not fit
            line = {"failed": f"{type(error).__name__}: {error}"[:200]}
        found.append({"kind": kind, "tiles": str(tiles), "exponentials": exponentials, **line})
        print("   ", found[-1])
    exact.EXPONENTIALS = before
    return found


def report(name: str, image: np.ndarray, options: argparse.Namespace) -> dict[str, list[dict]]:
    """Everything about one image, printed as it is found."""
    size = f"{image.shape[1]}×{image.shape[0]}"
    repeats = options.repeats if image.size < 1e6 else max(5, options.repeats // 5)
    found: dict[str, list[dict]] = {"filters": [], "lattices": [], "ten rounds": [], "scan": []}
    for kind in KINDS:
        for tolerance in options.tolerance:
            x = measure(image, kind, options.labels, tolerance, repeats)
            found["filters"].append({"image": name, "size": size, **x})
            floor = max(x["floor exponentials ms"], x["floor products ms"])
            print(
                f"{name:>10} {size:>9} {kind:>15} {tolerance:6.0e} {x['ms']:8.3f} "
                f"{x['fastest']:6.3f}–{x['slowest']:6.3f} {x['one channel ms']:7.3f} "
                f"{x['build ms']:6.2f} {x['computed']:8.4f} {x['over tolerance']:6.4f} "
                f"{x['error']:8.1e} {floor:7.3f} {x['reached']:7.0%}"
            )
            print("   ", ", ".join(f"{k} {v:.2f}" for k, v in x["stages ms"].items()))
    for kind in KINDS:
        x = lattice(image, kind, options.labels, repeats)
        found["lattices"].append({"image": name, "size": size, **x})
        print(
            f"{name:>10} {size:>9} {kind:>15} lattice {x['ms']:7.3f} ms (splat "
            f"{x['splat ms']:.3f}, an axis {x['one axis ms']:.3f}, slice {x['slice ms']:.3f}), "
            f"build {x['build ms']:.2f}, {x['vertices']} vertices, error {x['error']:.1e}"
        )
    for bilateral in list(KINDS)[:2]:
        for filter in ("auto", "lattice"):
            x = ten_rounds(image, bilateral, options.labels, filter, max(5, repeats // 5))
            found["ten rounds"].append({"image": name, "size": size, **x})
            print(f"{name:>10} {size:>9}", x)
    if options.scan:
        for kind in KINDS:
            found["scan"] += scan(image, kind, options.labels, max(5, repeats // 5))
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="*", help="arrays (height, width, 3) of 8-bit colors")
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--tolerance", type=float, nargs="+", default=[1e-6])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--scan", action="store_true", help="try other ways to cut the work")
    parser.add_argument("--json", type=Path, help="keep the numbers here")
    options = parser.parse_args()
    images = {Path(name).stem: np.load(name) for name in options.images}
    images = images or {"made": made_image(375, 500), "large": made_image(750, 1000)}
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, triton {triton.__version__}")
    head = (
        f"{'image':>10} {'size':>9} {'filter':>15} {'tol.':>6} {'ms':>8} {'spread':>13} {'one':>7}"
    )
    head += f" {'build':>6} {'computed':>8} {'over':>6} {'error':>8} {'floor':>7} {'reached':>7}"
    print(head)
    found: dict[str, Any] = {
        "device": device, "torch": torch.__version__, "triton": triton.__version__
    }  # fmt: skip
    for name, image in images.items():
        for key, lines in report(name, image, options).items():
            found.setdefault(key, []).extend(lines)
        if options.json:  # as far as it is
            options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
