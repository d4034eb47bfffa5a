"""One benchmark from its options to its report; what the two subcommands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from proxfield.bench.published import PAPER_RULES
from proxfield.core.common.records import Record
from proxfield.errors import InputError, ProxfieldError

if TYPE_CHECKING:
    from proxfield.bench.curves import Curves
    from proxfield.bench.inpainting_report import InpaintingResults
    from proxfield.bench.people_report import People
    from proxfield.bench.report import ReportData
    from proxfield.bench.runner import Failure, Settings, Task, Work
    from proxfield.bench.segmentation_table import SegmentationResults
    from proxfield.bench.sensitivity import Sensitivity
    from proxfield.bench.store import Store
    from proxfield.bench.suites import Instance
    from proxfield.core.solve.rules.base import Rule

TableT = TypeVar("TableT")


@dataclass(frozen=True)
class Outputs:
    """Where things go.

    Attributes:
        results: The results file.
        report: The HTML report, if one is wanted.
        figures: The folder of the pictures, if they are wanted.
    """

    results: str
    report: str | None
    figures: str | None

    @property
    def pictures(self) -> str | None:
        """The folder of the pictures: beside the report, unless another was named."""
        if self.figures is not None or self.report is None:
            return self.figures
        path = Path(self.report)
        return str(path.with_name(f"{path.stem}-figures"))


def default_rules() -> list[str]:
    """The paper's seven, and ``auto`` where it exists."""
    from proxfield.core.solve.rules.registry import RULES

    return [*PAPER_RULES, *(name for name in ("auto",) if name in RULES)]


def parse_numbers(text: str, option: str, highest: float = math.inf) -> list[float]:
    """Numbers above 0, separated by commas; sorted, each once.

    Example:
        >>> parse_numbers("0.3,0.05,0.3", "--budgets")
        [0.05, 0.3]
    """
    allowed = "above 0" if highest == math.inf else f"above 0 and at most {highest:g}"
    out: set[float] = set()
    for part in split_names(text, option):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not (0 < value <= highest and math.isfinite(value)):
            raise InputError(f"{option}: {part!r}, expected numbers {allowed}, such as 0.05,0.3")
        out.add(value)
    return sorted(out)


def parse_counts(text: str, option: str, lowest: int) -> list[int]:
    """Whole numbers separated by commas; sorted, each once.

    Example:
        >>> parse_counts("60,10,25", "--passes", 1)
        [10, 25, 60]
    """
    out: set[int] = set()
    for part in split_names(text, option):
        if not (part.isascii() and part.isdigit() and len(part) < 10 and int(part) >= lowest):
            raise InputError(f"{option}: {part!r}, expected whole numbers, {lowest} or more")
        out.add(int(part))
    return sorted(out)


def split_names(text: str, option: str) -> list[str]:
    """Names separated by commas, each once."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"{option} is empty, expected names or numbers separated by commas")
    return list(dict.fromkeys(names))


def check_outputs(outputs: Outputs) -> None:
    """Refuse what can't be written, and packages that are missing, before a long run."""
    if outputs.report is not None:
        from proxfield.bench.report import find_environment

        find_environment()
    if outputs.figures is not None:
        from proxfield.viz.charts import find_figure_class

        find_figure_class()


def trace_tasks(
    suites: dict[str, list[Instance]], rules: Sequence[Rule], budget: float
) -> list[Task]:
    """Runs that note F at every state, on one instance of each suite."""
    from proxfield.bench.runner import Task
    from proxfield.bench.suites import representative

    chosen = [representative(instances) for instances in suites.values()]
    return [Task("trace", instance, rule, budget) for instance in chosen for rule in rules]


def stored_curves(
    tasks: Sequence[Work], store: Store, settings: Settings, timed: Sequence[Work] = ()
) -> list[Curves]:
    """The curves of what was traced, by suite, with the timed runs on the same instances."""
    from proxfield.bench.curves import make_curves

    out = []
    for suite in dict.fromkeys(t.instance.suite for t in tasks):
        found, runs = (
            [store.find(t.identity(settings)) for t in some if t.instance.suite == suite]
            for some in (tasks, timed)
        )
        curves = make_curves(
            [r for r in found if r is not None], [r for r in runs if r is not None]
        )
        if curves is not None:
            out.append(curves)
    return out


def describe_failures(failures: Sequence[Failure]) -> list[str]:
    """One line for each rule and suite that failed."""
    lines: dict[tuple[str, str, str], int] = {}
    for f in failures:
        rule = f.task.rule.name if f.task.rule else f.task.kind
        key = (rule, f.task.instance.suite, " ".join(f.why.split()))
        lines[key] = lines.get(key, 0) + 1
    return [
        f"{rule} on {suite}: {why} ({count} {'run' if count == 1 else 'runs'})"
        for (rule, suite, why), count in lines.items()
    ]


def write_outputs(outputs: Outputs, data: ReportData) -> list[str]:
    """The pictures and the report; returns lines for the user.

    Raises:
        InputError: If something can't be written; says that the results are safe.
    """
    from proxfield.bench.figures import save_figures
    from proxfield.bench.report import write_report

    notes = []
    try:
        parts = (data.sensitivity, data.people, data.inpainting, data.segmentation)
        if outputs.pictures is not None and (data.curves or any(parts)):
            names = save_figures(outputs.pictures, data)
            data.figures = (_relative(outputs.pictures, outputs.report), names)
            notes.append(f"pictures: {outputs.pictures}")
        if outputs.report is not None:
            write_report(outputs.report, data)
            notes.append(f"report: {outputs.report}")
    except InputError as error:
        raise InputError(
            f"{error.message}; all results are safe in {outputs.results}: run the command again",
            path=error.path,
        ) from None
    return notes


def _relative(folder: str, report: str | None) -> str:
    """The folder as seen from the report."""
    if report is not None:
        try:
            return str(Path(folder).resolve().relative_to(Path(report).resolve().parent))
        except ValueError:
            pass
    return folder


def load_sensitivity(path: str) -> tuple[list[Record], Sensitivity]:
    """Where the results of ``bench sensitivity`` come from, and its figure."""
    from proxfield.bench.sensitivity import make_sensitivity
    from proxfield.bench.store import read_records
    from proxfield.io.files import display_name

    metas, records = read_records(path)
    try:
        return metas, make_sensitivity(records)
    except ProxfieldError as error:
        raise InputError(str(error), path=display_name(path)) from None


def load_people(path: str) -> tuple[list[Record], People]:
    """Where the results of ``bench people`` come from, and its tables."""
    from proxfield.bench.people_report import People
    from proxfield.bench.people_table import make_people_tables

    metas, _, tables = _load_tables(path, make_people_tables, "people")
    return metas, People(tables)


def _load_tables(
    path: str, make: Callable[[list[Record]], list[TableT]], what: str
) -> tuple[list[Record], list[Record], list[TableT]]:
    """The meta lines and the records of a results file, and the tables made of them.

    Raises:
        InputError: If it has no results of that benchmark.
    """
    from proxfield.bench.store import read_records
    from proxfield.io.files import display_name

    metas, records = read_records(path)
    tables = make(records)
    if not tables:
        raise InputError(f"no results of bench {what} in it", path=display_name(path))
    return metas, records, tables


def load_inpainting(path: str) -> tuple[list[Record], InpaintingResults]:
    """Where the results of ``bench inpainting`` come from, its tables and its curves."""
    from proxfield.bench.curves import make_curves
    from proxfield.bench.inpainting_report import InpaintingResults
    from proxfield.bench.inpainting_table import make_inpainting_tables

    metas, records, tables = _load_tables(path, make_inpainting_tables, "inpainting")
    traces = [r for r in records if r["kind"] == "trace"]
    found = [
        make_curves([r for r in traces if r["suite"] == table.suite], records) for table in tables
    ]
    return metas, InpaintingResults(tables, [c for c in found if c is not None])


def load_segmentation(path: str) -> tuple[list[Record], SegmentationResults]:
    """Where the results of ``bench segmentation`` come from, and its tables."""
    from proxfield.bench.segmentation_table import SegmentationResults, make_segmentation_tables

    metas, _, tables = _load_tables(path, make_segmentation_tables, "segmentation")
    return metas, SegmentationResults(tables)
