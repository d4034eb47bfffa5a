"""What the layer does before anyone has tuned it, and after 100 steps of training.

Three generated tasks of segmentation, five seeds each. A small network is trained briefly, and then
measured on held-out images: alone; with the layer as it comes, untrained; with the strong preset
"krahenbuehl" in its place; and after 100 further steps of Adam on ``cross_entropy``, of the network
alone, of the layer alone (the network stays as it is) and of both together. Rates are 0.01 for the
layer and 0.001 for the network. All three get the same batches, so that what further steps of the
network give isn't counted as a gain of the layer.

    python benchmarks/layer_defaults.py --json benchmarks/results/layer_defaults.json
    python benchmarks/layer_defaults.py --seeds 1 --steps 5 --held-out 4    # tiny
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from proxfield.bench.machine import metadata
from proxfield.torch import DenseCRF

LABELS, SIZE, IMAGES = 5, 32, 64
RATE, FINE_RATE = 1e-2, 1e-3
"""Of Adam: for the network's first steps and for the layer, and for the network afterwards."""
NETWORK, UNTRAINED, STRONG = "network", "layer, untrained", "strong preset, untrained"
MORE, LAYER, JOINT = "network, trained on", "layer trained", "network and layer trained"
PALETTE = np.array(
    [[0.42, 0.48, 0.40], [0.70, 0.38, 0.32], [0.33, 0.45, 0.70], [0.68, 0.62, 0.36],
     [0.50, 0.34, 0.58]]
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """How images are made.

    Attributes:
        noise: Standard deviation of the noise of each pixel and channel, where white is 1.
        texture: Amplitude of the stripes that every class has in a direction of its own.
        spread: How much the colors of a class differ between images.
        coarse: Whether the network computes at a quarter of the size, and enlarges its logits.
    """

    noise: float
    texture: float
    spread: float
    coarse: bool


TASKS = {
    "coarse logits": Task(noise=0.02, texture=0.03, spread=0.05, coarse=True),
    "noisy images": Task(noise=0.16, texture=0.03, spread=0.04, coarse=False),
    "textures": Task(noise=0.05, texture=0.15, spread=0.08, coarse=False),
}


def make_images(task: Task, count: int, seed: int) -> tuple[Any, Any]:
    """Images of regions with textures, shading and noise, and the class of each pixel.

    Returns:
        # (count, 3, SIZE, SIZE) floats within 0 and 1, (count, SIZE, SIZE) integers
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE].astype(float)
    images, truths = [], []
    for _ in range(count):
        # regions around random points, with borders that wind
        centers = rng.uniform(0, SIZE, (7, 2))
        classes = rng.integers(0, LABELS, 7)
        phase = rng.uniform(0, 6, 4)
        yy = y + 2 * np.sin(x / 4 + phase[0]) + np.sin(x / 2 + phase[1])
        xx = x + 2 * np.sin(y / 4 + phase[2]) + np.sin(y / 2 + phase[3])
        far = (yy[..., None] - centers[:, 0]) ** 2 + (xx[..., None] - centers[:, 1]) ** 2
        truth = classes[far.argmin(-1)]
        palette = PALETTE + rng.normal(scale=task.spread, size=PALETTE.shape)
        angle = np.pi * np.arange(LABELS) / LABELS
        waves = np.sin(np.cos(angle) * x[..., None] * 1.3 + np.sin(angle) * y[..., None] * 1.3)
        stripes = np.take_along_axis(waves, truth[..., None], axis=-1)
        shade = 1 + 0.15 * np.sin((x + y) / SIZE * 3 + rng.uniform(0, 6))
        image = palette[truth] * shade[..., None] + task.texture * stripes
        image = image + rng.normal(scale=task.noise, size=image.shape)
        images.append(image.clip(0, 1))
        truths.append(truth)
    pixels = torch.tensor(np.stack(images), dtype=torch.float32).permute(0, 3, 1, 2)
    return pixels.contiguous(), torch.tensor(np.stack(truths))


def make_network(coarse: bool) -> nn.Module:
    """A small network; a coarse one has logits at a quarter of the size, enlarged linearly."""
    if not coarse:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, LABELS, 1),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, LABELS, 1),
        nn.Upsample(size=(SIZE, SIZE), mode="bilinear", align_corners=False),
    )  # fmt: skip


def mean_iou(network: nn.Module, crf: DenseCRF | None, images: Any, truth: Any) -> float:
    """The mean over classes of intersection over union, counted over all images."""
    with torch.no_grad():
        labels = torch.cat([logits_of(network, crf, some).argmax(1) for some in images.split(8)])
    counts = torch.bincount(truth.flatten() * LABELS + labels.flatten(), minlength=LABELS**2)
    table = counts.reshape(LABELS, LABELS).double()
    both = table.diagonal()
    return float((both / (table.sum(0) + table.sum(1) - both)).mean())


def logits_of(network: nn.Module, crf: DenseCRF | None, images: Any) -> Any:
    """Logits of the network, or what the layer makes of them."""
    logits = network(images)
    return logits if crf is None else crf(images, logits)


def train(
    network: nn.Module, crf: DenseCRF | None, groups: Any, data: Any, steps: int, batch: int,
    seed: int,
) -> None:  # fmt: skip
    """Steps of Adam on the cross-entropy of random batches."""
    images, truth = data
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(groups, lr=RATE)
    for _ in range(steps):
        some = torch.randperm(len(images), generator=random)[:batch]
        loss = F.cross_entropy(logits_of(network, crf, images[some]), truth[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure(name: str, seed: int, steps: int, batch: int, held_out: int) -> dict[str, Any]:
    """Mean IoU on held-out images in every way."""
    began = time.process_time()
    task = TASKS[name]
    torch.manual_seed(seed)
    data = make_images(task, IMAGES, 2 * seed)
    other = make_images(task, held_out, 2 * seed + 1)
    network = make_network(task.coarse)
    train(network, None, network.parameters(), data, 150, 8, seed)
    out: dict[str, Any] = {"task": name, "seed": seed}
    out[NETWORK] = mean_iou(network, None, *other)
    out[UNTRAINED] = mean_iou(network, DenseCRF(LABELS), *other)
    out[STRONG] = mean_iou(network, DenseCRF(LABELS, preset="krahenbuehl"), *other)
    for way, learned in ((MORE, "network"), (LAYER, "layer"), (JOINT, "both")):
        mine = copy.deepcopy(network)
        crf = None if learned == "network" else DenseCRF(LABELS)
        groups: list[Any] = [] if crf is None else [{"params": crf.parameters()}]
        if learned != "layer":
            groups.append({"params": mine.parameters(), "lr": FINE_RATE})
        mine.requires_grad_(learned != "layer")
        train(mine, crf, groups, data, steps, batch, seed + 100)
        out[way] = mean_iou(mine, crf, *other)
        if crf is not None:
            out[f"{way}: weights"] = [round(w, 3) for w in crf.weights.tolist()]
    out["cpu_s"] = round(time.process_time() - began, 1)
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in out.items()}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean IoU of each task over the seeds, and the least gain of any task and seed."""
    means = {
        name: {
            way: round(float(np.mean([row[way] for row in rows if row["task"] == name])), 4)
            for way in (NETWORK, UNTRAINED, STRONG, MORE, LAYER, JOINT)
        }
        for name in dict.fromkeys(row["task"] for row in rows)
    }
    gains = ((UNTRAINED, NETWORK), (STRONG, NETWORK), (LAYER, NETWORK), (JOINT, MORE))
    least = {
        f"{way}, over {base}": round(min(row[way] - row[base] for row in rows), 4)
        for way, base in gains
    }
    return {"mean over seeds": means, "least gain": least}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--held-out", type=int, default=40, help="held-out images")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.tasks:
        for seed in range(options.seeds):
            rows.append(measure(name, seed, options.steps, options.batch, options.held_out))
            print(json.dumps(rows[-1]), flush=True)
    out: dict[str, Any] = metadata("generated images", 1)
    out.update(
        torch=torch.__version__, steps=options.steps, batch=options.batch, rate=RATE,
        rate_of_the_network=FINE_RATE, pixels=[SIZE, SIZE], classes=LABELS,
        held_out=options.held_out, summary=summary(rows), rows=rows,
    )  # fmt: skip
    print(json.dumps(out["summary"], indent=1))
    if options.json:
        text = json.dumps(out, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
