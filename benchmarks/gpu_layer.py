"""The dense CRF as a layer: time and memory of training steps, implicit against unrolled.

A batch of 8 images of 321×321 pixels, 21 labels, a Gaussian of 3 pixels and a bilateral term of
80/13, 10 updates: for each kind of gradient the seconds of the forward and of the backward pass
(median of several after a warm-up, with the spread) and the most memory PyTorch held beyond what
was there before. Both use the same filter operator; "unrolled" is autograd through the updates.
The cosine between the two gradients says how near the fixed point 10 updates come; with
``--iterations 100`` they should agree.

    python benchmarks/gpu_layer.py --json results/gpu_layer.json
    python benchmarks/gpu_layer.py --quick      # tiny, on any machine
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from proxfield.torch import DenseCRF, clear_plans


def scene(batch: int, size: int, labels: int, device: str) -> tuple[Any, Any, Any]:
    """Smooth colours with edges, logits that follow them with noise, and the true labels."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.randn(batch, labels, 6, 6, generator=random)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    truth = smooth.argmax(1)  # (batch, size, size)
    palette = torch.rand(labels, 3, generator=random)
    image = palette[truth].permute(0, 3, 1, 2)
    image = (image + 0.04 * torch.randn(image.shape, generator=random)).clamp(0, 1)
    hot = torch.nn.functional.one_hot(truth, labels).permute(0, 3, 1, 2)
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
    learnt = {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    flat = [logits.grad.ravel(), *(g.ravel() for g in learnt.values())]
    return {
        "forward_s": statistics.median(forward),
        "forward_spread_s": [min(forward), max(forward)],
        "backward_s": statistics.median(backward),
        "backward_spread_s": [min(backward), max(backward)],
        "peak_bytes": peak if device == "cuda" else None,
        "loss": loss.item(),
        "gradient": torch.cat([x / x.norm().clamp(min=1e-30) for x in flat]).double().cpu(),
        "by_parameter": {n: g.tolist() for n, g in learnt.items()},
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for any machine")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=321)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--image-gradient", action="store_true", help="also into the image")
    parser.add_argument("--fixed-bandwidths", action="store_true", help="learn weights alone")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.batch, options.size, options.labels, options.repeats = 2, 20, 4, 1
    data = scene(options.batch, options.size, options.labels, options.device)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        **{k: getattr(options, k) for k in ("batch", "size", "labels", "iterations", "repeats")},
    }
    learn = ("weights",) if options.fixed_bandwidths else ("weights", "bandwidths")
    gradients = {}
    for kind in ("implicit", "unrolled"):
        layer = DenseCRF(
            options.labels, gradient=kind, iterations=options.iterations, learn=learn,
            output="log-marginals", tol=0.0,
        ).to(options.device)  # fmt: skip
        try:
            found[kind] = measure(
                layer, data, options.device, options.repeats, options.image_gradient
            )
        except torch.cuda.OutOfMemoryError as error:
            found[kind] = {"out_of_memory": str(error).split("\n", 1)[0]}
            torch.cuda.empty_cache()
            continue
        gradients[kind] = found[kind].pop("gradient")
    if len(gradients) == 2:
        a, b = gradients.values()
        found["cosine"] = float((a @ b) / (a.norm() * b.norm()))
    text = json.dumps(found, indent=2)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
