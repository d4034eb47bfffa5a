"""Train a dense CRF as the last layer of a network, on images of shapes that it makes up.

A small convolutional network labels noisy pictures of random shapes. On top of it come, in turn,
nothing, a dense CRF with the default numbers, untrained, the same CRF with its weights, bandwidths
and compatibilities learned while the network stays as it is, and both trained together. Prints a
table of what held-out images say and saves a picture.

    python examples/train_crf_layer.py            # about four minutes on one CPU core
    python examples/train_crf_layer.py --quick    # smaller images, under a minute

Needs ``pip install "proxfield[gpu,plot]"``; runs on the CPU and on CUDA.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from proxfield.torch import DenseCRF

CLASSES = ("ground", "disc", "box", "triangle", "ring")
COLORS = torch.tensor(
    [[0.45, 0.50, 0.45], [0.80, 0.35, 0.30], [0.30, 0.45, 0.80], [0.80, 0.70, 0.30],
     [0.55, 0.30, 0.65]]
)  # fmt: skip
INK = ("#9A9A9A", "#D55E00", "#0072B2", "#E0B000", "#8A4FA3")


# ---- pictures ----


def shape_mask(kind: int, size: int, rng: np.random.Generator) -> Any:
    """A disc, box, triangle or ring somewhere in the picture.  # (size, size)"""
    y, x = np.mgrid[:size, :size] + 0.5
    cy, cx = rng.uniform(0.2, 0.8, 2) * size
    r = rng.uniform(0.14, 0.26) * size
    angle = rng.uniform(0, 2 * np.pi)
    u = np.cos(angle) * (x - cx) + np.sin(angle) * (y - cy)
    v = np.cos(angle) * (y - cy) - np.sin(angle) * (x - cx)
    if kind == 1:
        return u**2 + v**2 < r**2
    if kind == 2:
        return (abs(u) < r) & (abs(v) < 0.7 * r)
    if kind == 3:
        return (v > -0.6 * r) & (v < 1.1 * r - 1.7 * abs(u))
    distance = np.hypot(u, v)
    return (distance < 1.1 * r) & (distance > 0.6 * r)


def make_images(count: int, size: int, seed: int) -> tuple[Any, Any]:
    """Pictures with shaded colors, stripes and two kinds of noise, and their true labels.

    Colors vary from picture to picture more than the classes differ, so that a network with a
    small field of view errs, while all pixels of one shape still look alike.

    Returns:
        # (count, 3, size, size) floats within 0 and 1, (count, size, size) integers
    """
    rng = np.random.default_rng(seed)
    images, truths = [], []
    y, x = np.mgrid[:size, :size] / size
    for _ in range(count):
        truth = np.zeros((size, size), dtype=np.int64)
        for _ in range(int(rng.integers(2, 5))):
            kind = int(rng.integers(1, len(CLASSES)))
            truth[shape_mask(kind, size, rng)] = kind
        palette = COLORS.numpy() + rng.normal(scale=0.05, size=COLORS.shape)
        image = palette[truth]
        image = image * (1 + 0.2 * np.sin(6 * x + 5 * y + rng.uniform(0, 6)))[..., None]
        stripes = np.sin(2 * np.pi * (rng.uniform(5, 9) * x + rng.uniform(5, 9) * y))
        image = image + 0.06 * (stripes * (truth % 2))[..., None]
        image = image + rng.normal(scale=0.18, size=image.shape)  # color noise …
        image = image + rng.normal(scale=0.05, size=(size, size, 1))  # … and grain
        images.append(image.clip(0, 1))
        truths.append(truth)
    pixels = torch.tensor(np.stack(images), dtype=torch.float32).permute(0, 3, 1, 2)
    return pixels.contiguous(), torch.tensor(np.stack(truths))


def small_network() -> nn.Module:
    """A network that sees 3×3 pixels: noise and colors that vary make it err."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 24, 1), nn.ReLU(),
        nn.Conv2d(24, len(CLASSES), 1),
    )  # fmt: skip


# ---- training ----


class Refined(nn.Module):
    """A network, and a CRF on top if there is one; gives logits."""

    def __init__(self, network: nn.Module, crf: DenseCRF | None) -> None:
        super().__init__()
        self.network, self.crf = network, crf

    def forward(self, images: Any) -> Any:
        logits = self.network(images)
        return logits if self.crf is None else self.crf(images, logits)


@dataclass
class Scores:
    """What held-out images say, in percent, and the loss on the way."""

    accuracy: float = 0.0
    iou: float = 0.0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


def evaluate(model: nn.Module, images: Any, truth: Any) -> tuple[float, float]:
    """Pixels labelled rightly, and the mean over classes of intersection over union."""
    with torch.no_grad():
        labels = torch.cat([model(some).argmax(1) for some in images.split(6)])
    ious = []
    for k in range(len(CLASSES)):
        both = ((labels == k) & (truth == k)).sum()
        either = ((labels == k) | (truth == k)).sum()
        ious.append(float(both / either.clamp(min=1)))
    return 100 * float((labels == truth).float().mean()), 100 * float(np.mean(ious))


def train(
    model: nn.Module, groups: list[dict[str, Any]], data: Any, steps: int, batch: int, seed: int
) -> Scores:
    """Steps of Adam on the mean negative log-probability of the true labels."""
    images, truth = data
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(groups)
    scores = Scores()
    began = time.perf_counter()
    for _ in range(steps):
        chosen = torch.randperm(len(images), generator=random)[:batch].to(images.device)
        loss = F.cross_entropy(model(images[chosen]), truth[chosen])
        optimizer.zero_grad()
        loss.backward()
        # near a tipping point of the marginals a gradient may be huge; its direction still serves
        for group in groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
        scores.losses.append(loss.item())
    scores.seconds = time.perf_counter() - began
    return scores


def describe(crf: DenseCRF) -> str:
    """The numbers a CRF has, as one would set them by hand."""
    spatial, bilateral = crf.weights.tolist()
    return (
        f"spatial: weight {spatial:.1f}, {crf.log_spatial_sigma.exp().item():.1f} pixels; "
        f"bilateral: weight {bilateral:.1f}, {crf.log_bilateral_sigma.exp().item():.1f} pixels, "
        f"{255 * crf.log_bilateral_color.exp().item():.0f} levels"
    )


def run(quick: bool, device: str, seed: int = 0) -> tuple[dict[str, Any], dict[str, Scores], Any]:
    """Train and score all models: (models, scores, held-out data)."""
    torch.manual_seed(seed)
    size, count, steps, batch = (24, 100, 150, 4) if quick else (32, 300, 160, 4)
    data = [x.to(device) for x in make_images(count, size, seed)]
    held_out = [x.to(device) for x in make_images(30 if quick else 60, size, seed + 1)]
    scores: dict[str, Scores] = {}
    network = small_network().to(device)
    alone = Refined(network, None)
    scores["network alone"] = train(
        alone, [{"params": list(network.parameters()), "lr": 3e-3}], data, 400, 16, seed
    )
    untrained = DenseCRF(len(CLASSES)).to(device)  # 5 updates; gradients are exact for any number
    scores["CRF untrained"] = Scores()
    learned = DenseCRF(len(CLASSES), compatibility="full", self_message=False).to(device)
    frozen = copy.deepcopy(network).requires_grad_(False)
    learned_model = Refined(frozen, learned)
    scores["CRF learned"] = train(
        learned_model,
        [{"params": list(learned.parameters()), "lr": 0.05}],
        data,
        steps,
        batch,
        seed,
    )
    joint_model = copy.deepcopy(learned_model)
    joint_model.network.requires_grad_(True)
    assert joint_model.crf is not None
    scores["both learned"] = train(
        joint_model,
        [
            {"params": list(joint_model.network.parameters()), "lr": 1e-3},
            {"params": list(joint_model.crf.parameters()), "lr": 0.02},
        ],
        data, steps // 2, batch, seed,
    )  # fmt: skip
    models = dict(
        zip(scores, (alone, Refined(network, untrained), learned_model, joint_model), strict=True)
    )
    for name, model in models.items():
        scores[name].accuracy, scores[name].iou = evaluate(model, *held_out)
    return models, scores, held_out


# ---- what it shows ----


def draw(models: dict[str, Any], scores: dict[str, Scores], held_out: Any, path: Path) -> None:
    """Curves, bars, and two held-out images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import ListedColormap

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(10.5, 6.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])
    left, right = top.subplots(1, 2, width_ratios=[1.5, 1])
    first = scores["CRF learned"].losses
    second = scores["both learned"].losses
    for start, losses, color, name in (
        (0, first, "#0072B2", "CRF alone"),
        (len(first), second, "#009E73", "network and CRF"),
    ):
        at = np.arange(start, start + len(losses))
        left.plot(at, losses, color=color, alpha=0.25, linewidth=1)
        width = 9
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        left.plot(at[width // 2 : width // 2 + len(smooth)], smooth, color=color, label=name)
    left.set(xlabel="step", ylabel="loss (nats per pixel)", title="Training the layer")
    left.set_ylim(0, None)
    left.legend(frameon=False)
    names = list(scores)
    ious = [scores[n].iou for n in names]
    bars = right.barh(names[::-1], ious[::-1], color=["#009E73", "#0072B2", "#C08400", "#9A9A9A"])
    right.bar_label(bars, fmt="%.1f", padding=3)
    right.set(xlabel="mean IoU, %", title="Held-out images", xlim=(0, 100))
    images, truth = held_out
    axes = bottom.subplots(2, 6)
    ink = ListedColormap(INK)
    titles = ["image", "network alone", "CRF untrained", "CRF learned", "both learned", "truth"]
    for row, k in zip(axes, (3, 5), strict=True):
        one = images[k : k + 1]
        with torch.no_grad():
            maps = [models[n](one).argmax(1)[0].cpu() for n in titles[1:5]]
        row[0].imshow(one[0].permute(1, 2, 0).cpu(), interpolation="nearest")
        for ax, labels in zip(row[1:], [*maps, truth[k].cpu()], strict=True):
            ax.imshow(labels, cmap=ink, vmin=0, vmax=len(INK) - 1, interpolation="nearest")
        for ax in row:
            ax.set(xticks=[], yticks=[])
            for side in ax.spines.values():
                side.set_visible(False)
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="smaller images, fewer steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="where to save the picture (a .png)")
    options = parser.parse_args()
    models, scores, held_out = run(options.quick, options.device, options.seed)
    print(f"{'held-out images':18s} {'right, %':>9s} {'mean IoU, %':>12s} {'training, s':>12s}")
    for name, found in scores.items():
        print(f"{name:18s} {found.accuracy:9.1f} {found.iou:12.1f} {found.seconds:12.1f}")
    for name in ("CRF untrained", "CRF learned", "both learned"):
        print(f"{name}: {describe(models[name].crf)}")
    if options.picture is not None:
        draw(models, scores, held_out, options.picture)
        print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
