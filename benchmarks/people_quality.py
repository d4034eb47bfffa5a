"""How well people are found with the defaults: MODA after some gradient passes.

On simulated scenes, and with ``--data FOLDER`` on PETS 2009 and WILDTRACK (see `people_data`):

    python benchmarks/people_quality.py [--data FOLDER] [--every 1] [--json FILE]

All sets are run with the same settings, those of `Detector`; where masks are boxes of a detector
(PETS), silhouettes are those that `proxfield detect --boxes` takes. Passes are counted: a trial of
backtracking that is rejected is one, too. Beside PETS the score of view 1's detector alone is
printed: truth is annotated in that view.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import proxfield.people.numba.occupancy as kernels
from people_data import inside, pets, wildtrack
from proxfield.people.cameras import BOX_HEIGHT, BOX_RADIUS
from proxfield.people.detect import Detector
from proxfield.people.detections import Detections
from proxfield.people.evaluation import evaluate
from proxfield.people.scene import Scene
from proxfield.people.simulate import simulate

PASSES = (10, 25, 60)
ENDS = 2
"""Evaluations of F at the start and at the end, which no update uses."""
Frames = list[tuple[list[np.ndarray], np.ndarray]]


class Counter:
    """Counts the evaluations of occupancy terms."""

    def __init__(self) -> None:
        self.count = 0
        plain = kernels.OccupancyOnCpu.add_binary_gradient

        def counted(term, logs, out):  # type: ignore[no-untyped-def]
            self.count += 1
            return plain(term, logs, out)

        kernels.OccupancyOnCpu.add_binary_gradient = counted


def rules() -> dict[str, Detector]:
    """The default and what it is compared with."""
    plain = Detector()
    return {
        "backtracking": plain,
        "fixed 0.2": replace(plain, rule="fixed", params={"step": 0.2}),
        "adhoc": replace(plain, rule="adhoc"),
    }


def scored(
    name: str, detector: Detector, scene: Scene, frames: Iterator[tuple[list, np.ndarray]],
    region: tuple | None, radius: float, counter: Counter, say: Callable[[str], None],
) -> dict[str, dict[str, float]]:  # fmt: skip
    """MODA and others after each number of passes."""
    found: dict[int, list[Detections]] = {p: [] for p in PASSES}
    truth: list[Detections] = []
    energy: dict[int, list[float]] = {p: [] for p in PASSES}
    spent: dict[int, list[int]] = {p: [] for p in PASSES}
    for k, (masks, people) in enumerate(frames):
        for p in PASSES:
            iterations = p
            while True:  # fewer iterations where trials were rejected
                counter.count = 0
                out = replace(detector, passes=iterations).detect(scene, masks, frame=k)
                if counter.count <= p + ENDS or iterations == 1:
                    break
                iterations -= max(1, (counter.count - p - ENDS) // 2)
            spent[p].append(counter.count)
            xy = out.detections.positions
            xy = xy if region is None else inside(xy, region)
            found[p].append(Detections(np.full(len(xy), k), xy[:, 0], xy[:, 1], frames=[k]))
            energy[p].append(out.result.free_energy)
        truth.append(Detections(np.full(len(people), k), people[:, 0], people[:, 1], frames=[k]))
    rows = {}
    for p in PASSES:
        score = evaluate(Detections.join(found[p]), Detections.join(truth), radius)
        rows[str(p)] = {
            "moda": score.moda, "modp": score.modp, "precision": score.precision,
            "recall": score.recall, "free_energy": float(np.mean(energy[p])),
            "evaluations": float(np.mean(spent[p])),
        }  # fmt: skip
    cells = "  ".join(f"{rows[str(p)]['moda']:.3f}" for p in PASSES)
    passes = "  ".join(f"{rows[str(p)]['evaluations']:.1f}" for p in PASSES)
    say(f"{name:28} {cells}   evaluations {passes}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with pets2009 and wildtrack")
    parser.add_argument("--every", type=int, default=1, help="use every so many frames")
    parser.add_argument("--only", default="", help="sets whose name holds this")
    parser.add_argument("--rules", default="", help="rules, by name, separated by commas")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counter, results = Counter(), {}
    chosen = {
        k: v for k, v in rules().items() if not options.rules or k in options.rules.split(",")
    }

    def run(name: str, scene: Scene, frames: Callable[[], Iterator], region, radius) -> None:  # type: ignore[no-untyped-def,type-arg]
        if options.only not in name:
            return
        print(f"{name}: MODA after {', '.join(map(str, PASSES))} passes", flush=True)
        results[name] = {
            rule: scored(f"  {rule}", detector, scene, frames(), region, radius, counter,
                         lambda line: print(line, flush=True))
            for rule, detector in chosen.items()
        }  # fmt: skip

    for kind, radius in (("pitch", 1.0), ("square", 0.5)):
        made = simulate(kind, seed=1)
        frames = [(made.masks(t), made.truth(t)) for t in range(0, 40, 2 * options.every)]
        run(f"simulated {kind}", made.scene, lambda frames=frames: iter(frames), None, radius)
    if options.data is not None:
        body = {"person_height": BOX_HEIGHT, "person_radius": BOX_RADIUS}
        sets = [("PETS 2009, 25 cm", lambda: pets(options.data / "pets2009", margin=2.0, **body))]
        sets += [
            (
                f"WILDTRACK, {round(100 * s)} cm",
                lambda s=s: wildtrack(options.data / "wildtrack", spacing=s),
            )
            for s in (0.2, 0.1)
        ]
        for name, load in sets:
            if options.only not in name:
                continue
            record = load()

            def each(record=record) -> Iterator:  # type: ignore[no-untyped-def,type-arg]
                for frame in record.frames[:: options.every]:
                    yield record.masks(frame), record.truth[frame]

            run(name, record.scene, each, record.region, record.radius)
            if record.baseline is not None:
                shown = record.frames[:: options.every]
                pairs = [(k, record.baseline[f], record.truth[f]) for k, f in enumerate(shown)]
                score = evaluate(
                    Detections.join(
                        Detections(np.full(len(a), k), a[:, 0], a[:, 1], frames=[k])
                        for k, a, _ in pairs
                    ),
                    Detections.join(
                        Detections(np.full(len(b), k), b[:, 0], b[:, 1], frames=[k])
                        for k, _, b in pairs
                    ),
                    record.radius,
                )
                print(f"  view 1's detector alone      {score.moda:.3f}")
                results[name]["view 1 alone"] = {"moda": score.moda}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
