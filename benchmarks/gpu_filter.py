"""`proxfield.torch.gaussian_filter` and the lattice layer on a GPU: errors, then times.

Checks first: values and gradients on the device against the CPU's exact sums in float64, at a size
where these are quick, for both filters. Then times (median of several after a warm-up) of the
filter and its backward pass, and of a training step of the layer with the lattice.

    python benchmarks/gpu_filter.py              # on a GPU; writes results/gpu_filter.json
    python benchmarks/gpu_filter.py --quick      # tiny, on any machine; writes nothing
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

from proxfield.torch import DenseCRF, clear_plans, gaussian_filter

RESULTS = Path(__file__).parent / "results" / "gpu_filter.json"
LIMITS = {"exact": (2e-3, 0.999), "lattice": (0.1, 0.9)}
"""Largest relative error of the result, and smallest cosine of a gradient, by filter."""


def image_features(size: int, device: str) -> Any:
    """Positions and colors of a generated image, in units of 80 pixels and 13 levels."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(1, 3, 6, 6, generator=random)
    colors = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")[0]
    colors = colors + 0.03 * torch.randn(colors.shape, generator=random)
    axis = torch.arange(size, dtype=torch.float32) / 80
    place = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))
    return torch.cat([place, colors * 255 / 13]).flatten(1).T.contiguous().to(device)


def gradients(values: Any, features: Any, kind: str) -> tuple[Any, Any, Any]:
    """The result, and the gradients of some loss for values and features."""
    clear_plans()
    v, f = (x.detach().requires_grad_() for x in (values, features))
    out = gaussian_filter(v, f, filter=kind)
    goal = torch.linspace(0, 6, len(v), dtype=v.dtype, device=v.device).cos()[:, None]
    (out * goal).sum().backward()
    return tuple(x.detach().double().cpu() for x in (out, v.grad, f.grad))


def cosine(a: Any, b: Any) -> float:
    """Of two tensors, as long vectors."""
    return float((a.flatten() @ b.flatten()) / (a.norm() * b.norm()))


def check(size: int, device: str) -> dict[str, Any]:
    """Errors against exact sums in float64 on the CPU; raises where one is too large."""
    f = image_features(size, "cpu")
    v = torch.rand(len(f), 3, generator=torch.Generator().manual_seed(1))
    expected = gradients(v.double(), f.double(), "exact")
    found: dict[str, Any] = {}
    for kind, (error, least) in LIMITS.items():
        mine = gradients(v.to(device), f.to(device), kind)
        row = {
            "error": float((mine[0] - expected[0]).norm() / expected[0].norm()),
            "cosine_values": cosine(mine[1], expected[1]),
            "cosine_features": cosine(mine[2], expected[2]),
        }
        print(kind, {k: round(x, 6) for k, x in row.items()}, flush=True)
        if row["error"] > error or min(row["cosine_values"], row["cosine_features"]) < least:
            raise SystemExit(f"{kind}: worse than {error} and {least}")
        found[kind] = row
    return found


def seconds(function: Callable[[], Any], device: str, repeats: int) -> float:
    """Median over several calls, once the device has done everything."""
    spent = []
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[1:])


def time_filter(size: int, channels: int, device: str, repeats: int) -> dict[str, Any]:
    """Building and filtering, again with the same plan, and with all gradients."""
    f = image_features(size, device)
    v = torch.rand(len(f), channels, device=device)
    found: dict[str, Any] = {}
    for kind in LIMITS:

        def fresh(kind: str = kind) -> None:
            clear_plans()
            gaussian_filter(v, f, filter=kind)

        row = {
            "first_s": seconds(fresh, device, repeats),
            "again_s": seconds(lambda k=kind: gaussian_filter(v, f, filter=k), device, repeats),
            "with_gradients_s": seconds(lambda k=kind: gradients(v, f, k), device, repeats),
        }
        shown = {name: round(x, 5) for name, x in row.items()}
        print(f"{size}×{size}×{channels}", kind, shown, flush=True)
        found[kind] = row
    return found


def time_layer(size: int, n_labels: int, device: str, repeats: int) -> dict[str, Any]:
    """A training step of one image, ten updates."""
    image = torch.rand(1, 3, size // 8 + 1, size // 8 + 1)
    image = torch.nn.functional.interpolate(image, size=(size, size)).to(device)
    logits = torch.randn(1, n_labels, size, size, device=device)
    truth = logits.argmax(1)
    found: dict[str, Any] = {}
    for kind in LIMITS:
        for learn in (("weights",), ("weights", "bandwidths")):
            layer = DenseCRF(n_labels, preset="krahenbuehl", filter=kind, learn=learn, tol=0.0).to(
                device
            )

            def step(layer: DenseCRF = layer) -> None:
                clear_plans()
                given = logits.detach().requires_grad_()
                torch.nn.functional.nll_loss(layer(image, given), truth).backward()

            name = f"{kind}, {' and '.join(learn)}"
            found[name] = seconds(step, device, repeats)
            print(f"layer {size}×{size}×{n_labels}, {name}: {found[name]:.4f} s", flush=True)
    return found


def main() -> None:
    """Check, measure, print, and keep everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for any machine")
    parser.add_argument("--size", type=int, default=321)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help=f"by default {RESULTS.name}, but not --quick")
    options = parser.parse_args()
    if options.quick:
        options.size, options.labels, options.repeats = 30, 4, 1
    measured = (options.size, options.labels, options.device, options.repeats)
    found = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        **{k: getattr(options, k) for k in ("size", "labels", "repeats")},
        "errors": check(30 if options.quick else 90, options.device),
        "filter": time_filter(*measured),
        "layer": time_layer(*measured),
    }
    path = options.json or (None if options.quick else RESULTS)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
