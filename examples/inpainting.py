"""Characters with a hole, completed by decision tree fields that were learned in different ways.

Renders characters from fonts of this machine (see docs/benchmarks/inpainting.md), learns from some
of them in three ways, completes others, and compares: how many pixels are right, and how much
rules differ.

Run ``python examples/inpainting.py --picture inpainting.png`` (about two minutes on one core).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from proxfield.io.files import atomic_write
from proxfield.io.images import import_pillow, png_bytes
from proxfield.learn.characters import Characters, make_characters
from proxfield.learn.decision_tree_field import DecisionTreeField
from proxfield.viz.sheets import HOLE, caption_picture, frame_picture, join_pictures, uncertainty

RULES = ("sweep", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam", "auto")
WAYS = {
    "unary tree alone": {"offsets": []},
    "pseudo-likelihood": {"method": "pseudo"},
    "persistent chains": {"method": "chains"},
    "marginals": {"method": "marginals"},
}


def fit(settings: dict, train: Characters) -> tuple[DecisionTreeField, float]:
    """A model, and the processor time that learning it took."""
    start = time.process_time()
    model = DecisionTreeField(**settings).fit(train.images, train.masks)
    return model, time.process_time() - start


def compare_rules(model: DecisionTreeField, test: Characters, count: int) -> list[str]:
    """Mean F, accuracy and mean energy of the most probable labels, for each rule."""
    lines = []
    for rule in RULES:
        f, right, energy, true_energy = [], [], [], []
        for image, mask in zip(test.images[:count], test.masks[:count], strict=True):
            result = model.infer(image, mask, rule=rule)
            labels = result.q.reshape(-1, 2).argmax(axis=1)
            field = model.field(image, mask)
            f.append(result.free_energy)
            right.append((labels == image.ravel())[mask.ravel()].mean())
            energy.append(field.energy(labels))
            true_energy.append(field.energy(image.ravel()))
        lines.append(
            f"  {rule:14} F {np.mean(f):9.2f}  right {100 * np.mean(right):5.2f} %  "
            f"E(labels) {np.mean(energy):9.2f}  E(truth) {np.mean(true_energy):9.2f}"
        )
    return lines


def draw(models: dict[str, DecisionTreeField], test: Characters, which: list[int]) -> bytes:
    """A row for each character: with the hole, completed by each model, and the truth."""
    pillow = import_pillow()
    rows = []
    for k in which:
        image, mask = test.images[k], test.masks[k]
        black = np.where(image == 1, 0, 255)[..., None].repeat(3, axis=2)
        tiles = {"before": np.where(mask[..., None], HOLE, black)}
        for name, model in models.items():
            q = model.predict_proba([image], [mask])[0]
            filled = np.where(mask, q.argmax(axis=2), image)
            tiles[name] = np.where(filled == 1, 0, 255)[..., None].repeat(3, axis=2)
        share = uncertainty(q)[..., None]
        blue = (1 - share) * np.array([247.0, 251, 255]) + share * np.array([8.0, 48, 107])
        tiles["its uncertainty"] = np.where(mask[..., None], blue, 0.25 * black + 191)
        tiles["truth"] = black
        pictures = [
            frame_picture(pillow.fromarray(t.astype(np.uint8)).resize((144, 144), pillow.NEAREST))
            for t in tiles.values()
        ]
        if not rows:
            names = list(tiles)
            pictures = [caption_picture(p, n) for p, n in zip(pictures, names, strict=True)]
        rows.append(join_pictures(pictures, 0))
    return png_bytes(join_pictures(rows, 1).quantize(64))


def main() -> None:
    """Learn, complete, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hole", choices=("small", "large"), default="small")
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", type=int, default=0, metavar="N", help="compare rules on N, too")
    parser.add_argument("--picture", metavar="FILE.png")
    args = parser.parse_args()
    sets = make_characters(
        args.train, args.test, hole=args.hole, held_out="noto-sans", seed=args.seed
    )
    assert sets.held_out is not None
    models = {}
    white = 100 * (1 - sets.test.images[sets.test.masks].mean())
    print(f"{args.hole} hole; all white: {white:.1f} % right")
    for name, settings in WAYS.items():
        models[name], seconds = fit(settings, sets.train)
        seen = models[name].evaluate(sets.test.images, sets.test.masks)
        other = models[name].evaluate(sets.held_out.images, sets.held_out.masks)
        print(
            f"{name:18} {100 * seen['accuracy']:.1f} % right, log q(truth) "
            f"{seen['log_likelihood']:.3f}; a font not seen: {100 * other['accuracy']:.1f} %, "
            f"{other['log_likelihood']:.3f}; learned in {seconds:.1f} s",
            flush=True,
        )
        if args.rules and settings.get("offsets") is None:
            print("\n".join(compare_rules(models[name], sets.test, args.rules)), flush=True)
    if args.picture:
        atomic_write(args.picture, draw(models, sets.test, [0, 1, 2, 4]))


if __name__ == "__main__":
    main()
