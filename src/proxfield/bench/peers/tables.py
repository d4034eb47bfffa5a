"""Tables of what peers reached, averaged over the models of a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from proxfield.core.common.records import Record

MISSING = "–"


@dataclass(frozen=True)
class TextTable:
    """A title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_tables(records: Sequence[Record]) -> list[TextTable]:
    """Everything that was measured.

    Example:
        >>> run = {"peer": "p", "suite": "tree", "name": "a", "status": "ok", "seconds": 0.5}
        >>> run |= {"task": "inference", "mean_error": 0.25, "max_error": 0.5}
        >>> make_tables([run])[0].rows
        (('tree (1)', '0.2500'),)
    """
    tasks = {
        task: [r for r in records if r["task"] == task] for task in ("inference", "map", "dense")
    }
    out = []
    if some := tasks["inference"]:
        out += [
            _by_family("Mean absolute error of marginals", some, "mean_error", _four),
            _by_family("Largest error of a marginal (mean over models)", some, "max_error", _three),
            _by_family("log Z of the tool − exact log Z (mean)", some, "log_z_gap", _signed),
            _by_family("CPU seconds per model (median, warm)", some, "seconds", _time, np.median),
            _outcomes("Inference: outcomes", some),
        ]
    if some := tasks["map"]:
        out += [
            _by_family("Energy above the optimum (mean)", some, "energy_gap", _three),
            _by_family(
                "CPU seconds per labelling (median, warm)", some, "seconds", _time, np.median
            ),
            _optima("Labellings: outcomes", some),
        ]
    if some := tasks["dense"]:
        out += [_images("Images: ten updates of the same dense CRF", some)]
    return out


def _by_family(
    title: str,
    records: Sequence[Record],
    key: str,
    show: Callable[[float], str],
    average: Callable[[list[float]], object] = np.mean,
) -> TextTable:
    """A row per family, a column per peer that has the number somewhere."""
    peers = [
        p for p in _unique(records, "peer") if any(key in r for r in records if r["peer"] == p)
    ]
    rows = []
    for family in _unique(records, "suite"):
        here = [r for r in records if r["suite"] == family]
        count = len({r["name"] for r in here})
        cells = []
        for peer in peers:
            runs = [r for r in here if r["peer"] == peer]
            values = [float(r[key]) for r in runs if key in r]
            text = show(float(average(values))) if values else MISSING  # type: ignore[arg-type]
            failed = len(runs) - len(values)
            cells.append(f"{text} ({len(values)}/{len(runs)})" if values and failed else text)
        rows.append((f"{family} ({count})", *cells))
    return TextTable(title, ("family (models)", *peers), tuple(rows))


def _outcomes(title: str, records: Sequence[Record]) -> TextTable:
    rows = []
    for peer in _unique(records, "peer"):
        runs = [r for r in records if r["peer"] == peer]
        bounds = [r["valid_bound"] for r in runs if "valid_bound" in r]
        said = [r["converged"] for r in runs if "converged" in r]
        kinds = _unique([r for r in runs if r.get("kind")], "kind")
        rows.append(
            (
                peer,
                *(str(n) for n in _counts(runs)),
                f"{sum(said)}/{len(said)}" if said else MISSING,
                ", ".join(kinds) or MISSING,
                f"{sum(bounds)}/{len(bounds)}" if bounds else MISSING,
            )
        )
    header = ("peer", "runs", "answered", "unsupported", "failed", "converged", "log Z", "valid")
    return TextTable(title, header, tuple(rows))


def _optima(title: str, records: Sequence[Record]) -> TextTable:
    rows = []
    for peer in _unique(records, "peer"):
        runs = [r for r in records if r["peer"] == peer]
        best = sum(bool(r.get("optimal")) for r in runs)
        proved = sum(bool(r.get("proved")) for r in runs)
        rows.append((peer, *(str(n) for n in _counts(runs)), str(best), str(proved)))
    header = ("peer", "runs", "answered", "unsupported", "failed", "optimal", "proved")
    return TextTable(title, header, tuple(rows))


def _counts(runs: Sequence[Record]) -> tuple[int, int, int, int]:
    """Runs, answers, models that the tool can't do, failures."""
    ok = sum(r["status"] == "ok" for r in runs)
    no = sum(r["status"] == "unsupported" for r in runs)
    return len(runs), ok, no, len(runs) - ok - no


def _images(title: str, records: Sequence[Record]) -> TextTable:
    """Mean IoU over each set of images of one size, from counts added up, as is usual."""
    from proxfield.images.metrics import accuracy, mean_iou

    rows = []
    for suite in _unique(records, "suite"):
        sizes = {r["pixels"] for r in records if r["suite"] == suite and "pixels" in r}
        for pixels in sorted(sizes):
            for peer in _unique(records, "peer"):
                runs = [
                    r for r in records
                    if (r["suite"], r["peer"], r.get("pixels")) == (suite, peer, pixels)
                ]  # fmt: skip
                if not runs:
                    continue
                counts = np.sum([r["counts"] for r in runs], axis=0)
                agree = [r["agreement"] for r in runs if "agreement" in r]
                seconds = float(np.median([r["seconds"] for r in runs]))
                rows.append(
                    (
                        f"{suite}, {pixels:,} pixels ({len(runs)})",
                        peer,
                        _four(mean_iou(counts)),
                        _four(accuracy(counts)),
                        _four(float(np.mean(agree))) if agree else MISSING,
                        _time(seconds),
                    )
                )
    header = ("images", "peer", "mean IoU", "accuracy", "agreement", "CPU s")
    return TextTable(title, header, tuple(rows))


def _unique(records: Sequence[Record], key: str) -> list[str]:
    return list(dict.fromkeys(str(r[key]) for r in records))


def _four(value: float) -> str:
    return f"{value:.4f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0"


def _time(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"
