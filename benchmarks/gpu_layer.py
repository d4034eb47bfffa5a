"""The dense CRF as a layer: time and memory of training steps, by kind of gradient.

A batch of 8 images of 321×321 pixels, 21 labels, a Gaussian of 3 pixels and a bilateral term of
80/13, after 10 and after 100 updates. For each kind of gradient: the seconds of the forward and of
the backward pass (median of several after a warm-up, with the spread), the most memory PyTorch held
beyond what was there before, and the cosine to the gradient that autograd records ("unrolled").
"implicit" says whether it fell back to the exact gradient because the updates hadn't converged.

    python benchmarks/gpu_layer.py              # on a GPU; writes results/gpu_layer.json
    python benchmarks/gpu_layer.py --quick      # tiny, on any machine; writes nothing
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from proxfield.errors import GradientWarning
from proxfield.torch import DenseCRF, clear_plans, solve

KINDS = ("exact", "implicit", "unrolled")
RESULTS = Path(__file__).parent / "results" / "gpu_layer.json"


def scene(batch: int, size: int, n_labels: int, device: str) -> tuple[Any, Any, Any]:
    """Smooth colors with edges, logits that follow them with noise, and the true labels."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.randn(batch, n_labels, 6, 6, generator=random)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    truth = smooth.argmax(1)  # (batch, size, size)
    palette = torch.rand(n_labels, 3, generator=random)
    image = palette[truth].permute(0, 3, 1, 2)
    image = (image + 0.04 * torch.randn(image.shape, generator=random)).clamp(0, 1)
    hot = torch.nn.functional.one_hot(truth, n_labels).permute(0, 3, 1, 2)
    logits = 2.0 * hot + torch.randn(hot.shape, generator=random)
    return image.contiguous().to(device), logits.contiguous().to(device), truth.to(device)


def wait(device: str) -> float:
    """Seconds, once the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(
    layer: DenseCRF, data: Any, device: str, repeats: int, learn_image: bool
) -> dict[str, Any]:
    """Times and memory of forward and backward passes, and the gradients."""
    image, logits, truth = data
    forward, backward = [], []
    peak = 0
    for k in range(repeats + 1):
        clear_plans()  # every step has its own features
        image = image.detach().requires_grad_(learn_image)
        logits = logits.detach().requires_grad_()
        layer.zero_grad()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        start = wait(device)
        loss = torch.nn.functional.nll_loss(layer(image, logits), truth)
        middle = wait(device)
        loss.backward()
        end = wait(device)
        if device == "cuda":
            peak = max(peak, torch.cuda.max_memory_allocated() - before)
        if k:  # the first is a warm-up
            forward.append(middle - start)
            backward.append(end - middle)
    learned = {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    flat = [logits.grad.ravel(), *(g.ravel() for g in learned.values())]
    return {
        "forward_s": statistics.median(forward),
        "forward_spread_s": [min(forward), max(forward)],
        "backward_s": statistics.median(backward),
        "backward_spread_s": [min(backward), max(backward)],
        "peak_bytes": peak if device == "cuda" else None,
        "loss": loss.item(),
        "gradient": torch.cat([x / x.norm().clamp(min=1e-30) for x in flat]).double().cpu(),
        "by_parameter": {n: g.tolist() for n, g in learned.items()},
    }


def compare(options: argparse.Namespace, data: Any, iterations: int) -> dict[str, Any]:
    """Every kind of gradient after so many updates."""
    learn = ("weights",) if options.fixed_bandwidths else ("weights", "bandwidths")
    found: dict[str, Any] = {}
    gradients = {}
    for kind in KINDS:
        layer = DenseCRF(
            options.labels, preset="krahenbuehl", gradient=kind, max_iters=iterations,
            learn=learn, tol=0.0,
        ).to(options.device)  # fmt: skip
        solve._told.clear()  # the warning comes once per process
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", GradientWarning)
                found[kind] = measure(
                    layer, data, options.device, options.repeats, options.image_gradient
                )
        except torch.cuda.OutOfMemoryError as error:
            found[kind] = {"out_of_memory": str(error).split("\n", 1)[0]}
            torch.cuda.empty_cache()
            continue
        gradients[kind] = found[kind].pop("gradient")
        found[kind]["backward_per_forward"] = found[kind]["backward_s"] / found[kind]["forward_s"]
        if kind == "implicit":
            found[kind]["fell_back"] = any(w.category is GradientWarning for w in caught)
    for kind, mine in gradients.items():
        if "unrolled" in gradients:
            other = gradients["unrolled"]
            found[kind]["cosine"] = float((mine @ other) / (mine.norm() * other.norm()))
    return found


def show(iterations: int, found: dict[str, Any]) -> None:
    """One line per kind of gradient."""
    for kind, row in found.items():
        if "out_of_memory" in row:
            print(f"{iterations:4d} {kind:9s} out of memory")
            continue
        memory = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:7.2f} GB"
        note = " (fell back to exact)" if row.get("fell_back") else ""
        print(
            f"{iterations:4d} {kind:9s} forward {row['forward_s']:7.3f} s, backward "
            f"{row['backward_s']:7.3f} s ({row['backward_per_forward']:.2f} forward passes), "
            f"{memory} cosine {row.get('cosine', float('nan')):.8f}{note}",
            flush=True,
        )


def main() -> None:
    """Measure, print a table, and keep everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for any machine")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=321)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--iterations", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--image-gradient", action="store_true", help="also into the image")
    parser.add_argument("--fixed-bandwidths", action="store_true", help="learn weights alone")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help=f"by default {RESULTS.name}, but not --quick")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.size, options.labels, options.repeats = 2, 20, 4, 1
    data = scene(options.batch, options.size, options.labels, options.device)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        **{k: getattr(options, k) for k in ("batch", "size", "labels", "repeats")},
        "updates": {},
    }
    for iterations in options.iterations:
        found["updates"][str(iterations)] = compare(options, data, iterations)
        show(iterations, found["updates"][str(iterations)])
    path = options.json or (None if options.quick else RESULTS)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
