"""The regularized loss `DenseCRFLoss` against the plain computation with all pairs in one matrix.

One generated image, 21 labels, a bilateral term of 80/13, float32: seconds of the loss and its
gradient for the probabilities (minimum and median of several after a warm-up; on the CPU seconds of
processor time of one thread, on a GPU seconds on the clock), and how far value and gradient are
from those of the matrix. The image is new in every training step, so building a lattice or a matrix
is part of it. "plain" computes W with PyTorch's operations and lets autograd differentiate; beyond
``--largest`` pixels it isn't tried, since the matrix takes 4 n² bytes several times.

    python benchmarks/dense_loss.py --json benchmarks/results/dense_loss.json
    python benchmarks/dense_loss.py --device cuda --json benchmarks/results/gpu_dense_loss.json
    python benchmarks/dense_loss.py --sizes 16 --repeats 1       # tiny
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from proxfield.bench.machine import metadata
from proxfield.torch import DenseCRFLoss, clear_plans
from torch_lattice import scene

PLACE, COLOR, LABELS = 80.0, 13 / 255, 21


def plain(image: Any, s: Any) -> Any:
    """Σ_k S_kᵀ W (1 − S_k) per pixel, with W = D^−½ K D^−½ as one matrix."""
    h, w = s.shape[2:]
    axes = [torch.arange(n, device=s.device, dtype=s.dtype) for n in (h, w)]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 2)
    features = torch.cat([places / PLACE, image[0].flatten(1).T / COLOR], dim=1)
    kernel = torch.cdist(features, features).square_().mul_(-0.5).exp_()
    root = kernel.sum(dim=1).rsqrt()
    kernel = kernel * root[:, None] * root
    rows = s[0].flatten(1).T  # (n, labels)
    return (rows * (kernel @ (1 - rows))).sum() / len(rows)


def measure(run: Callable[[Any], Any], s: Any, repeats: int) -> tuple[dict[str, float], float, Any]:
    """Seconds of value and gradient, the value, and the gradient."""
    times = []
    clock = time.perf_counter if s.is_cuda else time.process_time
    for _ in range(repeats + 1):
        clear_plans()
        given = s.detach().requires_grad_()
        if s.is_cuda:
            torch.cuda.synchronize()
        begun = clock()
        loss = run(given)
        loss.backward()
        if s.is_cuda:
            torch.cuda.synchronize()
        times.append(clock() - begun)
    spent = times[1:]
    seconds = {"min_s": min(spent), "median_s": statistics.median(spent)}
    return seconds, float(loss.detach()), given.grad


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 96, 160, 321])
    parser.add_argument("--largest", type=int, default=10_000, help="pixels of the plain matrix")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out: dict[str, Any] = metadata("generated image", 1)
    out.update(device=options.device, torch=torch.__version__, labels=LABELS, rows=[])
    if options.device != "cpu":
        out["gpu"] = torch.cuda.get_device_name()
    for size in options.sizes:
        image, logits, _ = (x.to(options.device) for x in scene(size, LABELS, None))
        s = torch.softmax(logits, dim=1)
        runs: dict[str, Callable[[Any], Any]] = {}
        if size**2 <= options.largest:
            runs["plain"] = lambda x, image=image: plain(image, x)
        for filter in ("exact", "lattice"):
            if filter == "exact" and options.device == "cpu" and size**2 > options.largest:
                continue
            layer = DenseCRFLoss(bilateral_sigma=PLACE, bilateral_color=COLOR, filter=filter)
            runs[filter] = lambda x, layer=layer, image=image: layer(image, x)
        reference = None
        for name, run in runs.items():
            seconds, value, gradient = measure(run, s, options.repeats)
            row: dict[str, Any] = {"size": size, "computation": name, **seconds, "loss": value}
            reference = (value, gradient) if name == "plain" else reference
            if reference is not None and name != "plain":
                a, b = gradient.flatten().double(), reference[1].flatten().double()
                row["relative_error_of_loss"] = abs(value - reference[0]) / reference[0]
                row["relative_error_of_gradient"] = float((a - b).norm() / b.norm())
            row = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            print(row, flush=True)
            out["rows"].append(row)
    if options.json:
        text = json.dumps(out, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
