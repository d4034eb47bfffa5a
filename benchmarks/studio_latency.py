"""How long the studio takes to answer a slider: to the first picture, and to the full one.

    python benchmarks/studio_latency.py -o benchmarks/results/studio_latency.json

A 500×375 image with 5 and with 21 labels. Each setting is moved in turn, as a slider moves it; the
time is that of the session and of the pictures it makes, without the browser. The first picture is
a preview where one is needed, see the column "step". Wall times depend on what else the machine
does: the file says how busy it was. Processor time (all threads) depends on that less; on an idle
machine the wall time lies between it and, with two cores, half of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from proxfield.bench.machine import processor
from proxfield.studio.inputs import StudioInputs
from proxfield.studio.outputs import label_png
from proxfield.studio.session import StudioJob, StudioSession, warm_up

SHAPE = (375, 500)
MOVES = {
    "bilateral_weight": (4.0, 4.4, 4.8, 5.2),
    "spatial_weight": (2.0, 2.2, 2.4, 2.6),
    "bilateral_sigma": (60.0, 62.0, 64.0, 66.0),
    "bilateral_color": (6.0, 6.5, 7.0, 7.5),
    "spatial_sigma": (2.0, 2.5, 3.0, 3.5),
    "max_iters": (6, 7, 8, 9),
}


def make_inputs(n_labels: int) -> StudioInputs:
    """Patches of random colors around random points, and probabilities with mistakes."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    centers = rng.random((3 * n_labels, 2)) * SHAPE
    nearest = np.stack([(y - a) ** 2 + (x - b) ** 2 for a, b in centers]).argmin(axis=0)
    truth = nearest % n_labels
    image = rng.uniform(40, 215, (n_labels, 3))[truth] + rng.normal(scale=15, size=(*SHAPE, 3))
    p = 0.6 * rng.dirichlet(np.full(n_labels, 0.5), SHAPE)
    p[y, x, truth] += 0.4
    return StudioInputs(image.clip(0, 255).astype(np.uint8), p.astype(np.float32), truth=truth)


def answer(session: StudioSession, job: StudioJob) -> tuple[float, float]:
    """Seconds of one stage and its pictures: wall and processor time."""
    begun, used = time.perf_counter(), time.process_time()
    outcome = session.compute(job)
    assert outcome is not None
    before = session.labels[:: job.step, :: job.step]
    label_png(outcome.labels, session.n_labels)
    label_png(outcome.labels, session.n_labels, outcome.labels != before)
    return time.perf_counter() - begun, time.process_time() - used


def rounded(seconds: float) -> float:
    return round(float(seconds), 3)


def measure(n_labels: int, preset: str, repeats: int) -> list[dict[str, object]]:
    """Rows of one image: per setting, medians and maxima over all moves."""
    session = StudioSession(make_inputs(n_labels), preset)
    for step in (4, 1):
        answer(session, session.job(step))
    rows = []
    for name, values in MOVES.items():
        first: list[tuple[float, float]] = []
        full: list[tuple[float, float]] = []
        steps: list[int] = []
        for value in values * repeats:
            session.settings[name] = value
            job = session.job()
            stages = session.steps(job)
            spent = (0.0, 0.0)
            for number, step in enumerate(stages):
                wall, used = answer(session, replace(job, step=step))
                spent = spent[0] + wall, spent[1] + used
                if number == 0:
                    first.append(spent)
                    steps.append(step)
            full.append(spent)
        session.settings[name] = values[0]
        rows.append(
            {
                "labels": n_labels,
                "preset": preset,
                "setting": name,
                "moves": len(first),
                "step": int(np.median(steps)),
                "first_median": rounded(np.median(first, axis=0)[0]),
                "first_max": rounded(np.max(first, axis=0)[0]),
                "first_cpu_median": rounded(np.median(first, axis=0)[1]),
                "full_median": rounded(np.median(full, axis=0)[0]),
                "full_max": rounded(np.max(full, axis=0)[0]),
                "full_cpu_median": rounded(np.median(full, axis=0)[1]),
            }
        )
        print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warm_up()
    load = os.getloadavg()[0]
    rows = [
        row
        for n_labels in (5, 21)
        for preset in ("gentle", "krahenbuehl")
        for row in measure(n_labels, preset, options.repeats)
    ]
    data = {
        "processor": processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "rows": rows,
    }
    if options.output is not None:
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
