"""A dense CRF learned on one half of the road scenes and measured on the other half.

    python benchmarks/learn_camvid.py --data FOLDER [--json FILE] [--epochs N]

FOLDER is that of ``camvid.py``; the halves are the first and the second 13 frames of the clip, as
in ``tune_camvid.py``. Learned are, through `proxfield.torch.DenseCRF` (exact gradients of five
or ten updates, permutohedral lattice, CPU) and starting from a preset, whose bandwidths stay:

- "potts": the weights of both terms;
- "diagonal": these, and one energy per label for pairs that share it;
- "bias": for comparison one number per label that is added to the logits, without a CRF.

The loss is the soft mean IoU of an image plus a little of the negative log-likelihood. A learned
layer is exported by `to_config` and measured with the numpy field, beside the unaries and the
preset.

``--gradient`` measures the gradient for the color bandwidth instead: the exact filter's, the
lattice's, and finite differences of the loss with either filter, on crops of 64×64 pixels. Its two
parts, through the kernel's weights and through their sums, which normalize them, are shown too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import proxfield.torch as pt
from camvid import CLASSES
from proxfield.bench.machine import metadata
from proxfield.core.filters.torch.operator import FeatureGradient
from proxfield.images.settings import PRESETS
from tune_camvid import VOID, Scene, measure, read_scenes

LIKELIHOOD = 0.1
"""Weight of the negative log-likelihood in the loss."""
FORMS = ("bias", "potts", "diagonal")
"""What is learned."""
CROPS = ((150, 200), (200, 60), (90, 300))
"""Upper left corners of crops for ``--gradient``."""
CROP_SETTINGS = ((40.0, 5.0, 1.0), (80.0, 13.0, 3.0), (40.0, 10.0, 3.0))
"""Place, color and weight of the bilateral term for ``--gradient``."""


class KeptFeatures(pt.DenseCRF):
    """A layer whose bandwidths stay: features of an image are made once, and so are lattices."""

    def features(self, image: Any, embeddings: Any, pixels: Any, like: Any) -> list[Any]:
        kept = vars(self).setdefault("_kept", {})
        if id(image) not in kept:
            kept[id(image)] = super().features(image, embeddings, pixels, like), image
        return kept[id(image)][0]


def as_tensors(scene: Scene) -> tuple[Any, Any, Any]:
    """An image, log-probabilities and true labels.  # (1, 3, h, w), (1, c, h, w), (1, h, w)"""
    image, p, truth = scene
    return (
        torch.from_numpy(np.array(image)).permute(2, 0, 1)[None],
        torch.from_numpy(p).clamp(min=1e-5).log().permute(2, 0, 1)[None].float(),
        torch.from_numpy(truth.astype(np.int64))[None],
    )


def loss_of(log_q: Any, truth: Any) -> Any:
    """1 − soft mean IoU over the classes of an image, and a little likelihood."""
    known = truth != VOID
    q = log_q.exp()[0][:, known[0]]  # (c, pixels)
    true = torch.nn.functional.one_hot(truth[known], len(CLASSES)).T.to(q)
    both = (q * true).sum(dim=1)
    either = q.sum(dim=1) + true.sum(dim=1) - both
    there = true.sum(dim=1) > 0
    iou = (both[there] / either[there]).mean()
    likelihood = torch.nn.functional.nll_loss(log_q, truth, ignore_index=VOID)
    return 1 - iou + LIKELIHOOD * likelihood


class Bias(torch.nn.Module):
    """One number per label, added to the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(len(CLASSES)))

    def forward(self, image: Any, logits: Any) -> Any:
        return torch.log_softmax(logits + self.bias[:, None, None], dim=1)


def learn(
    form: str, scenes: list[Scene], preset: str, epochs: int, rate: float, seed: int
) -> tuple[Any, list[float]]:
    """A layer learned on some scenes, and the mean loss of each epoch."""
    crf: Any = Bias()
    if form != "bias":
        crf = KeptFeatures.from_config(
            PRESETS[preset], len(CLASSES), compatibility=form, filter="lattice",
            learn=("weights", "compatibility"), tol=0.0,
        )  # fmt: skip
    data = [as_tensors(scene) for scene in scenes]
    optimizer = torch.optim.Adam([x for x in crf.parameters() if x.requires_grad], lr=rate)
    steps = epochs * len(data)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng(seed)
    trace = []
    for epoch in range(epochs):
        losses = []
        for k in rng.permutation(len(data)):
            image, logits, truth = data[k]
            optimizer.zero_grad()
            loss = loss_of(crf(image, logits), truth)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        trace.append(round(float(np.mean(losses)), 5))
        first = [round(w, 3) for w in (crf.bias if form == "bias" else crf.weights).tolist()]
        print(f"  {form}, epoch {epoch + 1}/{epochs}: loss {trace[-1]:.4f}, {first}", flush=True)
    return crf, trace


def gradients(scene: Scene) -> list[dict[str, Any]]:
    """Gradients for bandwidths with both filters, and finite differences."""
    out = []
    for y, x in CROPS:
        some = tuple(part[y : y + 64, x : x + 64] for part in scene)
        image, logits, truth = as_tensors(some)  # type: ignore[arg-type]
        logits = logits.double()
        for place, color, weight in CROP_SETTINGS:
            for updates in (1, 5):
                row: dict[str, Any] = {"crop": [y, x], "setting": [place, color, weight]}
                row["updates"] = updates
                for filter in ("exact", "lattice"):
                    row[filter] = _gradient(
                        image, logits, truth, place, color, weight, updates, filter
                    )
                print(json.dumps(row), flush=True)
                out.append(row)
    return out


def _gradient(
    image: Any, logits: Any, truth: Any, place: float, color: float, weight: float, updates: int,
    filter: str,
) -> dict[str, Any]:  # fmt: skip
    def loss(shift: float = 0.0, learned: bool = False) -> Any:
        crf = pt.DenseCRF(
            len(CLASSES), spatial_weight=0.0, bilateral_sigma=place, bilateral_weight=weight,
            bilateral_color=color / 255 * float(np.exp(shift)), filter=filter, tol=0.0,
            max_iters=updates,
        ).double()  # fmt: skip
        found = torch.nn.functional.nll_loss(crf(image, logits), truth, ignore_index=VOID)
        if not learned:
            return float(found.detach())
        parts: list[Any] = []
        with kernel_parts(parts):
            found.backward()
        return {
            **parts[-1],
            "color": float(crf.log_bilateral_color.grad),
            "place": float(crf.log_bilateral_sigma.grad),
            "weight": float(crf.log_weights.grad) / weight,
        }

    out = loss(learned=True)
    for h in (0.001, 0.01, 0.05, 0.2):
        out[f"color, difference of {h}"] = (loss(h) - loss(-h)) / (2 * h)
    return {key: float(f"{value:.3g}") for key, value in out.items()}


@contextmanager
def kernel_parts(out: list[Any]) -> Iterator[None]:
    """Note the two parts of gradients for colors: of the weights, and of their sums."""
    usual = FeatureGradient.total

    def total(self: Any) -> Any:
        whole = usual(self)
        plan = self.operator.plan
        lattices = getattr(plan, "plans", None)
        points = plan.features if lattices is None else torch.stack([p.features for p in lattices])
        both = [-(points * x)[..., 2:].sum() for x in (self.to_features, whole - self.to_features)]
        out.append(dict(zip(("color, weights", "color, sums"), map(float, both), strict=True)))
        return whole

    FeatureGradient.total = total  # type: ignore[method-assign]
    try:
        yield
    finally:
        FeatureGradient.total = usual  # type: ignore[method-assign]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", choices=list(PRESETS), default="gentle")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--gradient", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenes = read_scenes(options.data)
    out: dict[str, Any] = metadata("CamVid, 26 frames", 1)
    if options.gradient:
        out["gradients"] = gradients(scenes[3])
    else:
        run(scenes, options, out)
    if options.json:
        text = json.dumps(out, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")


def run(scenes: list[Scene], options: argparse.Namespace, out: dict[str, Any]) -> None:
    """Learn on each half, measure on the other."""
    middle = len(scenes) // 2
    halves = {"first": scenes[:middle], "second": scenes[middle:]}
    out.update(
        preset=options.preset,
        epochs=options.epochs,
        rate=options.rate,
        seed=options.seed,
        directions=[],
    )
    for here, there in (("first", "second"), ("second", "first")):
        other = halves[there]
        scores = {"no CRF": measure(other, None)}
        scores[options.preset] = measure(other, options.preset)
        learned: dict[str, Any] = {}
        for form in options.forms:
            begun = time.process_time()
            layer, trace = learn(
                form, halves[here], options.preset, options.epochs, options.rate, options.seed
            )
            seconds = round(time.process_time() - begun, 1)
            learned[form] = {"cpu_seconds": seconds, "losses": trace}
            if form == "bias":
                bias = layer.bias.detach().numpy()
                learned[form]["bias"] = bias.round(4).tolist()
                moved = [(image, p * np.exp(bias), truth) for image, p, truth in other]
                scores[form] = measure(moved, None)
            else:
                learned[form]["config"] = layer.to_config().to_dict()
                scores[form] = measure(other, layer.to_config())
        for name, score in scores.items():
            print(f"{there:7} {name:12} {score['mean_iou']:.4f} {score['accuracy']:.4f}")
        row = {"learned_on": here, "measured_on": there, "learned": learned, "scores": scores}
        out["directions"].append(row)
    gains = {
        name: [
            d["scores"][name]["mean_iou"] - d["scores"]["no CRF"]["mean_iou"]
            for d in out["directions"]
        ]
        for name in (options.preset, *options.forms)
    }
    out["gains"] = gains
    out["mean_gains"] = {name: float(np.mean(values)) for name, values in gains.items()}
    print(f"mean gains over the other half: {out['mean_gains']} ({gains})")


if __name__ == "__main__":
    main()
