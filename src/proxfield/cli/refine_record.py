"""What was done, beside each result of ``proxfield refine``: a small JSON file.

A result is finished if its file says the same parameters and is newer than what it was made of; any
other is made again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from proxfield._version import __version__
from proxfield.cli.shared import finite
from proxfield.core.common.records import Record
from proxfield.io.files import atomic_write

if TYPE_CHECKING:
    from proxfield.cli.refine_files import Pair
    from proxfield.cli.refine_one import Work
    from proxfield.io.remote import AnyPath

NOT_PARAMETERS = ("threads",)
"""What doesn't change a result."""


def record_path(target: AnyPath) -> AnyPath:
    """The file that says how a result was made.

    Example:
        >>> from pathlib import Path
        >>> record_path(Path("out/a.png")).name
        'a.png.json'
    """
    return target.with_name(f"{target.name}.json")


def parameters(work: Work) -> Record:
    """All that decides on a result, beside the files; as JSON has it, presets as numbers."""
    from proxfield.images.settings import DEFAULT_PRESET, DenseSettings

    run = {k: v for k, v in work.run.items() if k not in NOT_PARAMETERS}
    rule = run.pop("rule", None)
    given = dict(work.build)
    terms: Record = {"compatibility": "potts"}
    terms.update(DenseSettings.of(given.pop("preset", DEFAULT_PRESET)).to_dict())
    run.setdefault("max_iters", terms.pop("max_iters", None))
    terms.update(given, spacing_from_header=not work.spacing_given)
    found: Record = plain(
        {
            "output": work.kind,
            "input": work.what,
            "dtype": work.dtype if work.kind == "probabilities" else None,
            "labels": work.from_labels,
            **({} if work.tiles is None else {"tiles": work.tiles}),
            "terms": terms,
            "rule": None if rule is None else {"name": rule.name, **rule.params},
            **run,
        }
    )
    return found


def plain(value: Any) -> Any:
    """The same data as JSON has them: arrays and statistics as lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if hasattr(value, "presence") and hasattr(value, "pairs"):  # counts of classes
        value = {"presence": plain(value.presence), "pairs": plain(value.pairs)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return finite(value)


def write_record(pair: Pair, work: Work, target: AnyPath, summary: Record) -> None:
    """Say how a result was made; written last, so that it says that all is there."""
    data = {
        "proxfield": __version__,
        "image": str(pair.image),
        work.what: str(pair.unary),
        **({} if pair.scribbles is None else {"scribbles": str(pair.scribbles)}),
        "parameters": parameters(work),
        "result": {
            k: summary[k] for k in ("pixels", "n_labels", "status", "iterations", "changed")
        },
    }
    atomic_write(record_path(target), json.dumps(plain(data), indent=1, allow_nan=False) + "\n")


def is_finished(pair: Pair, wanted: Record) -> bool:
    """Whether all files of a pair are there, made with these parameters and from these files."""
    if pair.overlay is not None and not pair.overlay.exists():
        return False
    inputs = [p for p in (pair.image, pair.unary, pair.scribbles) if p is not None]
    for target in pair.targets:
        if not target.exists():
            continue
        beside = record_path(target)
        try:
            stored = json.loads(beside.read_text(encoding="utf-8"))
            made = beside.stat().st_mtime_ns
            if stored["parameters"] == wanted and made >= max(p.stat().st_mtime_ns for p in inputs):
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue  # none, or none of ours: made again
    return False
