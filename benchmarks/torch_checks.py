"""What the checks of the torch layer's inputs cost: a forward pass with them and without.

One generated image, 21 labels, the default terms and updates: seconds per forward pass (median of
several that alternate, after a warm-up; on the CPU seconds of processor time of one thread, on a
GPU seconds on the clock), and those of the two checks alone.

    python benchmarks/torch_checks.py --json benchmarks/results/torch_checks.json
    python benchmarks/torch_checks.py --device cuda --json benchmarks/results/gpu_torch_checks.json
    python benchmarks/torch_checks.py --size 16 --repeats 1       # tiny
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

from proxfield.bench.machine import metadata
from proxfield.torch import DenseCRF, clear_plans
from proxfield.torch.inputs import Colors, require_marginals, rows
from torch_lattice import scene

LABELS = 21


def measure(runs: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, float]:
    """Median seconds of each, one after another in every round."""
    clock = time.perf_counter if device != "cpu" else time.process_time
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            clear_plans()
            if device != "cpu":
                torch.cuda.synchronize()
            begun = clock()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            spent[name].append(clock() - begun)
    return {name: float(f"{statistics.median(x[1:]):.4g}") for name, x in spent.items()}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=321)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out: dict[str, Any] = metadata("generated image", 1)
    out.update(device=options.device, torch=torch.__version__, labels=LABELS, size=options.size)
    if options.device != "cpu":
        out["gpu"] = torch.cuda.get_device_name()
    image, logits, _ = (x.to(options.device) for x in scene(options.size, LABELS, None))
    q, seen = torch.softmax(rows(logits), dim=-1), rows(image)
    runs: dict[str, Callable[[], object]] = {
        "marginals_s": lambda: require_marginals(q, q, [], q, ()),
        "range_s": lambda: Colors().look(seen, 0.0, 1.0),
    }
    for tol in (1e-6, 0.0):
        for check in (True, False):
            crf = DenseCRF(LABELS, preset="krahenbuehl", filter="lattice", tol=tol, check=check).to(
                options.device
            )
            name = f"forward_{'checked' if check else 'unchecked'}_tol_{tol:g}_s"
            runs[name] = lambda crf=crf: crf(image, logits)
    with torch.no_grad():
        out.update(measure(runs, options.device, options.repeats))
    text = json.dumps(out, indent=1, ensure_ascii=False)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
