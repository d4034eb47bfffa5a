"""How commands run: a model and its inference with progress, and work on many items."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proxfield.cli import signals
from proxfield.cli.main import describe, report
from proxfield.cli.options import Options, parse_settings
from proxfield.cli.progress import Display
from proxfield.core.common.records import Record
from proxfield.core.jobs.running import ClusterError, LostWorkerError, ends_the_run
from proxfield.core.solve import infer as inference
from proxfield.core.solve import request
from proxfield.core.solve.history import Progress
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import dense_rules, make_rule
from proxfield.errors import InputError, ProxfieldError
from proxfield.field import Field
from proxfield.io.results import read_evidence
from proxfield.io.uai import read_model
from proxfield.result import Result, Status

if TYPE_CHECKING:
    from proxfield.core.solve.solve_map import MapStatus

FAILED, NOT_CONVERGED = 1, 3
"""Exit codes."""
REMEDIES = {
    "MAX_ITERS": "raise --max-iters or --tol",
    "BUDGET": "raise --budget or --tol",
    "OSCILLATING": "use --rule fixed or adaptive, which can't oscillate, or a smaller step",
    "INTERRUPTED": "this is the best so far",
    "NO_FEASIBLE": "no labelling of positive probability was found; raise --max-iters, "
    "change --seed, or check the zeros of the model",
}
"""The remedies of `Status` in the words of the command line."""
OPTION_NAMES = (
    *("labels_axis", "channel_axis", "normalize", "logits", "scribbles", "ignore", "unsure"),
    *("confidence", "n_labels", "spatial_sigma", "spatial_weight", "bilateral_sigma", "filter"),
    *("bilateral_color", "bilateral_weight", "spacing", "compatibility", "cooccurrence"),
    *("max_iters", "tol", "budget", "seed", "device", "threads", "jobs"),
)
"""Arguments of Python that the command line has as options."""
_NAMES = "|".join(OPTION_NAMES)
_WITH_VALUE = re.compile(rf"\b({_NAMES})=(\[[^\]]*\]|\([^)]*\)|'[^']*'|[-+\w.]+)?")
_WITHOUT = re.compile(rf"\b({'|'.join(n for n in OPTION_NAMES if '_' in n)})\b(?!=)")
T = TypeVar("T")


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was read."""

    name: str
    field: Field
    n_observed: int
    seconds: float

    @property
    def size(self) -> str:
        """Its name and how many variables it has, in words."""
        observed = f", {self.n_observed} observed" if self.n_observed else ""
        return f"{self.name}: {self.field.n_vars} variables{observed}"

    @property
    def record(self) -> Record:
        """What reports say about it, beside its name."""
        return {"n_observed": self.n_observed, "load_seconds": self.seconds}


def load(options: Options, display: Display | None = None) -> LoadedModel:
    """Read a model and its evidence; ``-`` is standard input."""
    if display is not None:
        display.phase(f"reading {options.model}")
    model, evidence, limit = options.model, options.evidence, options.max_bytes
    if model == "-" and evidence == "-":
        raise click.UsageError("the model and the evidence can't both come from standard input")
    start = time.perf_counter()
    field = read_model(model, max_bytes=limit)
    observed: dict[int, int] = {}
    if evidence is not None:
        base = int(options.evidence_base)
        observed = read_evidence(evidence, field.cardinalities, base=base, max_bytes=limit)
        field = field.condition(observed)
    name = "<stdin>" if model == "-" else model
    return LoadedModel(name, field, len(observed), time.perf_counter() - start)


def default_rule() -> str:
    """The rule that `proxfield.infer` takes when none is named."""
    rule = signature(inference.infer).parameters["rule"].default
    return rule if isinstance(rule, str) else str(rule.name)


def prepare_rule(name: str | None, settings: tuple[str, ...] = (), *, dense: bool = False) -> Rule:
    """The rule by name (that of `proxfield.infer` by default), its parameters checked.

    Args:
        name: The rule.
        settings: Its parameters, as ``--set`` gives them.
        dense: Refuse rules that don't run on dense fields.
    """
    rule = make_rule(name or default_rule(), parse_settings(settings))
    if dense and not rule.suits_dense_fields:
        raise click.UsageError(
            f"--rule {name} doesn't run on dense fields, expected one of: "
            f"{', '.join(dense_rules())}"
        )
    return rule


def check_limits(options: Options, tol: float = 0.0) -> None:
    """Refuse limits that make no sense before a model is read; an infinite budget is none."""
    tol = getattr(options, "tol", tol)
    request.check_limits(options.max_iters, tol, options.budget, options.threads)
    options.budget = request.as_budget(options.budget)


def check_device(options: Options) -> None:
    """Refuse a device that isn't there before a file is read; names what defaults stand for.

    The CPU's own kernels stay a default: small fields may not need them.
    """
    kernels, dtype = getattr(options, "kernels", None), getattr(options, "dtype", None)
    chosen, options.dtype = request.choose_kernels(options.device, kernels, dtype)
    options.kernels = None if kernels is None and chosen == "cpu" else chosen


def in_full(options: Record) -> Record:
    """Options as a report has them: with the kernels and threads that defaults stand for."""
    kernels, threads = options["kernels"] or "cpu", 1
    if kernels == "cpu":
        from proxfield.core.compiled.jit import max_threads  # imports numba

        wanted = options["threads"]
        threads = max_threads() if wanted is None else min(wanted, max_threads())
    return {**options, "kernels": kernels, "threads": threads}


def shown_by(display: Display) -> Callable[[Progress], None]:
    """A callback of an inference that shows its progress."""

    def update(progress: Progress) -> None:
        signals.begin_work()
        if signals.interrupted():  # a library swallowed Ctrl-C, as some do as kernels are loaded
            raise KeyboardInterrupt
        display.update(progress)

    return update


def run(field: Field, rule: Rule, display: Display, **options: Any) -> Result:
    """Infer with a live display; announces compilation."""
    display.phase(rule.name)
    with display.announcing_compilation():
        result = inference.infer(field, rule, callback=shown_by(display), **options)
        _ = result.map_energy  # rounding may compile too: now, while that is announced
    return result


def status_line(
    status: Status | MapStatus, asked: str = "", remedies: Mapping[str, str] = REMEDIES
) -> str:
    """A status in words, with the remedy where there is one.

    Args:
        status: The status.
        asked: What the result says instead where it is what was asked for.
        remedies: By status, where the library's words aren't those of the command line.
    """
    if asked or status.name in ("CONVERGED", "OPTIMAL"):
        return asked or status.label
    return f"{status.label} ({remedies.get(status.name, status.value)})"


def in_options(message: str) -> str:
    """A message of the library with the names of the command's options.

    Example:
        >>> in_options("can be read in two ways; pass labels_axis=0 or -1")
        'can be read in two ways; pass --labels-axis first or last'
        >>> in_options("spatial_sigma=[1, 2], expected 3; normalize=True divides by the sum")
        '--spatial-sigma 1,2, expected 3; --normalize divides by the sum'
        >>> in_options("colors are wide; pass bilateral_color, a standard deviation")
        'colors are wide; pass --bilateral-color, a standard deviation'
    """
    message = re.sub(r"\b(labels|channel)_axis=0 or -1", r"--\1-axis first or last", message)
    message = message.replace("pass labels // 255", "give the file as --probs")
    message = message.replace("DenseCRF.from_labels(image, labels)", "--labels")

    def option(found: re.Match[str]) -> str:
        flag, value = f"--{found[1].replace('_', '-')}", found[2]
        if value in (None, "True"):
            return flag
        return f"{flag} {re.sub(r', ', ',', value.strip('[]()'))}"

    message = _WITH_VALUE.sub(option, message)
    return _WITHOUT.sub(lambda found: f"--{found[1].replace('_', '-')}", message)


# ---- many items ----


class Ending:
    """A context for work on many items: what ends it early becomes words.

    Attributes:
        text: What ended the work; "" if nothing did.
    """

    text = ""

    def __enter__(self) -> Ending:
        signals.begin_work()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        if isinstance(error, (LostWorkerError, ClusterError)):
            self.text = str(error)
        elif isinstance(error, KeyboardInterrupt) or (
            isinstance(error, Exception) and signals.interrupted()  # what a library made of Ctrl-C
        ):
            self.text = "interrupted"
        return bool(self.text)

    def exit_code(self, what: str, left: int, failed: int) -> int | None:
        """The exit code, after a line about how many items are left, if the work ended early."""
        if self.text:
            report(f"{self.text}; {left} {what} are left, run the same again to go on", kind="")
        if self.text == "interrupted":
            return signals.INTERRUPTED
        return FAILED if failed or self.text else None


def attempt(record: Record, name: str, step: Callable[[], T], *, is_file: bool = False) -> T | None:
    """The result of a step of the work on one item; a failure becomes ``record["error"]``.

    Args:
        record: Of the item.
        name: Of the item.
        step: The step.
        is_file: An error that names a file is left as it is, others get the words of options.
    """
    try:
        return step()
    except Exception as error:
        if signals.interrupted():  # what a library made of Ctrl-C
            raise KeyboardInterrupt from error
        if ends_the_run(error):
            raise
        if is_file and isinstance(error, InputError) and error.path is not None:
            record["error"] = str(error)
        elif isinstance(error, (ProxfieldError, OSError, MemoryError)):
            text = describe(error)
            record["error"] = f"{name}: {in_options(text) if is_file else text}"
        elif os.environ.get("PROXFIELD_DEBUG", "0") not in ("", "0"):
            raise
        else:  # one item in a thousand must not end the run
            what = " ".join(f"{type(error).__name__}: {error}".split())
            record["error"] = f"{name}: {what}; this is a bug, PROXFIELD_DEBUG=1 shows more"
    return None
