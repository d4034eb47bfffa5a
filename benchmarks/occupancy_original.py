"""The published occupancy program's example, by its own update and by ours.

For each of the 30 frames of ``smidm``: how far `original` is from the published marginals, and what
`backtracking` on the same (ratio) energy reaches: F, iterations, gradient passes (rejected trials
included) to within 1e-3 of F of the published marginals, and whether F ever rose.

    python benchmarks/occupancy_original.py --data FOLDER [--json FILE]

FOLDER holds ``smidm`` (``test.pom``, ``images``, ``reference_marginals``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Kind, Search, Update
from proxfield.io.pom import read_dat, read_pom
from proxfield.people.scene import Scene

LIMIT = 400
CLOSE = 1e-3


def passes_to(field: pf.Field, goal: float) -> tuple[int | None, float, float]:
    """Gradient passes until F ≤ goal, the lowest F, and the largest rise of F."""
    lowered = field.lower()
    program = compile_program(lowered, "cpu", "float64", 1)
    own = program.extras[0][1]
    count = 0
    plain = own.add_binary_gradient

    def counted(logs, out):  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        return plain(logs, out)

    own.add_binary_gradient = counted
    prior = np.exp(-lowered.unary)
    state = program.start(lowered.layout.normalize(prior))
    plan = Update(Kind.PROXIMAL, np.full(lowered.layout.n_vars, 0.2), search=Search())
    last, reached, rise = np.inf, None, 0.0
    for _ in range(LIMIT):
        f = float(program.advance(state, plan, 1, -1.0, True).free_energy[0])
        after = state.arrays.known_f  # F after the update, known from the same pass
        rise = max(rise, after - f - 1e-9 * (1 + abs(f)))
        if reached is None and after <= goal:
            reached = count
        if abs(last - after) <= 1e-9 * (1 + abs(after)):
            break
        last = after
    return reached, float(after), rise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with smidm")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.data / "smidm"
    pom = read_pom(folder / "test.pom")
    scene = Scene.from_pom(pom)
    rows = []
    for path in sorted((folder / "reference_marginals").glob("*.dat")):
        frame = int(path.stem.split("-f")[-1])
        views = [folder / "images" / f"view-f{frame}-c{c}.png" for c in pom.cameras]
        masks = [np.asarray(Image.open(v).convert("RGB")).mean(axis=2) / 255 for v in views]
        field = scene.field(masks, model="ratio")
        published = read_dat(path)
        result = pf.infer(field, "original", dtype="float64", ignored=pom.ignored)
        reference = field.free_energy(np.stack([1 - published, published], axis=1))
        reached, lowest, rise = passes_to(field, reference + CLOSE)
        rows.append({
            "frame": frame, "iterations": result.iterations, "original_f": result.free_energy,
            "difference": float(np.abs(result.marginals[:, 1] - published).max()),
            "published_f": reference, "backtracking_f": lowest, "passes": reached,
            "rise": max(0.0, rise),
        })  # fmt: skip
        print(rows[-1], flush=True)
    good = [r["passes"] for r in rows if r["passes"] is not None]
    print(
        f"original: largest difference {max(r['difference'] for r in rows):.2g}; backtracking: "
        f"F at most the published + {CLOSE:g} in {len(good)} of {len(rows)} frames, median "
        f"{np.median(good):g} passes; largest rise {max(r['rise'] for r in rows):.2g}"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
