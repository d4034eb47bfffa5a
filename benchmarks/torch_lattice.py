"""The dense CRF as a layer on the CPU, filtered with the lattice: one training step.

One image of 321×321 pixels, 21 labels, a Gaussian of 3 pixels and a bilateral term of 80/13, ten
updates, float32: seconds of the forward and of the backward pass (minimum and median of several
after a warm-up, on the clock and of all threads together), with fixed and with learned bandwidths.
The features change in every training step, so building the lattices is part of it. Then, at a size
where all pairs can be summed, the lattice's gradients against those of the exact filter.

    python benchmarks/torch_lattice.py              # writes results/torch_lattice.json
    python benchmarks/torch_lattice.py --quick      # tiny; writes nothing
    python benchmarks/torch_lattice.py --image photo.png --sigmas 67 3

On a machine that does other work at the same time set OMP_WAIT_POLICY=passive: threads that wait
for each other use up the processor's time otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxfield.torch import DenseCRF, clear_plans

RESULTS = Path(__file__).parent / "results" / "torch_lattice.json"
GENTLE = (1.0, 3.0)
"""Weights for the comparison: with 3 and 10 whole regions are about to change their label, and
there gradients are large and differ between any two kernels."""
LEARNED = {"weights": ("weights",), "weights and bandwidths": ("weights", "bandwidths")}


def scene(size: int, n_labels: int, image_file: Path | None) -> tuple[Any, Any, Any]:
    """Smooth regions with noisy colors (or a photograph), logits, and labels."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, n_labels, 6, 6, generator=random)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    truth = smooth.argmax(1)  # (1, size, size)
    if image_file is None:
        palette = torch.rand(n_labels, 3, generator=random)
        image = palette[truth].permute(0, 3, 1, 2)
        image = (image + 0.04 * torch.randn(image.shape, generator=random)).clamp(0, 1)
    else:
        from PIL import Image

        picture = Image.open(image_file).convert("RGB").resize((size, size))
        image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    hot = torch.nn.functional.one_hot(truth, n_labels).permute(0, 3, 1, 2)
    logits = 2.0 * hot + torch.randn(hot.shape, generator=random)
    return image.contiguous(), logits.contiguous(), truth


def step(layer: DenseCRF, data: Any) -> tuple[list[float], dict[str, Any]]:
    """Seconds and processor seconds, forward and backward, and the gradients."""
    image, logits, truth = data
    clear_plans()
    logits = logits.detach().requires_grad_()
    layer.zero_grad()
    times = [(time.perf_counter(), time.process_time())]
    loss = torch.nn.functional.nll_loss(layer(image, logits), truth)
    times.append((time.perf_counter(), time.process_time()))
    loss.backward()
    times.append((time.perf_counter(), time.process_time()))
    spent = [b - a for k in range(2) for a, b in zip(times[k], times[k + 1], strict=True)]
    grads = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
    return spent, {"logits": logits.grad, **grads}


def layer_of(
    options: argparse.Namespace, learn: tuple[str, ...], kind: str, weights: tuple[float, float]
) -> DenseCRF:
    """The layer that is measured."""
    place, color = options.sigmas
    return DenseCRF(
        options.labels, filter=kind, max_iters=options.updates, tol=0.0, learn=learn,
        bilateral_sigma=place, bilateral_color=color / 255, spatial_sigma=3.0,
        spatial_weight=weights[0], bilateral_weight=weights[1],
    )  # fmt: skip


def measure(options: argparse.Namespace, learn: tuple[str, ...]) -> dict[str, Any]:
    """Times of one kind of training step."""
    layer = layer_of(options, learn, "lattice", (3.0, 10.0))
    data = scene(options.size, options.labels, options.image)
    spent = [step(layer, data)[0] for _ in range(options.repeats + 1)][1:]
    both = [s[0] + s[2] for s in spent]
    names = ("forward_s", "forward_cpu_s", "backward_s", "backward_cpu_s")
    return {
        **{name: min(s[k] for s in spent) for k, name in enumerate(names)},
        "both_s": min(both),
        "both_median_s": statistics.median(both),
        "both_cpu_s": min(s[1] + s[3] for s in spent),
    }


def accuracy(options: argparse.Namespace, size: int) -> dict[str, Any]:
    """Cosine and ratio of norms of the lattice's gradients to the exact filter's."""
    data = scene(size, options.labels, options.image)
    ours, exact = (
        step(layer_of(options, ("weights", "bandwidths"), kind, GENTLE), data)[1]
        for kind in ("lattice", "exact")
    )
    found = {}
    for name, a in exact.items():
        x, y = ours[name].flatten().double(), a.flatten().double()
        cosine = float((x @ y) / (x.norm() * y.norm()))
        found[name] = {"cosine": cosine, "ratio": float(x.norm() / y.norm())}
    return found


def main() -> None:
    """Measure, print, and keep everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; writes nothing")
    parser.add_argument("--size", type=int, default=321)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sigmas", type=float, nargs=2, default=[80.0, 13.0], metavar="SIGMA")
    parser.add_argument("--image", type=Path, help="a photograph instead of the generated image")
    parser.add_argument("--json", type=Path, help=f"by default {RESULTS.name}, but not --quick")
    options = parser.parse_args()
    if options.quick:
        options.size, options.labels, options.repeats = 50, 4, 1
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "torch": torch.__version__,
        "image": options.image.name if options.image else "generated",
        **{k: getattr(options, k) for k in ("size", "labels", "updates", "repeats", "sigmas")},
        "threads": {},
    }
    for threads in options.threads:
        torch.set_num_threads(threads)
        mine = found["threads"][str(threads)] = {}
        for name, learn in LEARNED.items():
            row = mine[name] = measure(options, learn)
            print(
                f"{threads} threads, {name}: forward {row['forward_s']:.3f} s, backward "
                f"{row['backward_s']:.3f} s, both {row['both_s']:.3f} s "
                f"({row['both_cpu_s']:.3f} s of processors)",
                flush=True,
            )
    found["against_exact"] = accuracy(options, 20 if options.quick else 64)
    for name, row in found["against_exact"].items():
        print(f"gradient for {name}: cosine {row['cosine']:.4f}, ratio {row['ratio']:.3f}")
    path = options.json or (None if options.quick else RESULTS)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
