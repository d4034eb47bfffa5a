"""One inference for the command line: early checks, progress, errors in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxfield.cli.progress import Display
from proxfield.cli.signals import begin_work, interrupted
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.core.solve.history import Progress
    from proxfield.core.solve.rules.base import Rule
    from proxfield.field import Field
    from proxfield.result import Result

NOT_CONVERGED = 3


def prepare_rule(name: str | None, settings: Record) -> Rule:
    """The rule by name (that of `proxfield.infer` by default), its parameters checked."""
    from proxfield.cli.options import default_rule
    from proxfield.core.solve.rules.registry import make_rule

    return make_rule(name or default_rule(), settings)


def check_limits(
    max_iters: int | None, tol: float, budget: float | None, threads: int | None
) -> float | None:
    """Refuse limits that make no sense before a model is read; returns the budget to use."""
    from proxfield.core.solve.request import check_limits as check

    check(max_iters, tol, budget, threads)
    return None if budget == float("inf") else budget  # no limit, said in another way


def run(field: Field, rule: Rule, display: Display, **options: Any) -> Result:
    """Infer with a live display; announces compilation."""
    from proxfield.core.solve.infer import infer

    def update(progress: Progress) -> None:
        begin_work()
        if interrupted():  # a library swallowed Ctrl-C, as some do while kernels are loaded
            raise KeyboardInterrupt
        display.update(progress)

    display.phase(rule.name)
    with display.announcing_compilation():
        result = infer(field, rule, callback=update, **options)
        _ = result.map_energy  # rounding may compile too: now, while that is announced
    return result


def in_full(options: Record) -> Record:
    """Options as a report has them: with the kernels and threads that defaults stand for."""
    kernels, threads = options["kernels"] or "cpu", 1
    if kernels == "cpu":
        from proxfield.core.compiled.jit import max_threads

        wanted = options["threads"]
        threads = max_threads() if wanted is None else min(wanted, max_threads())
    return {**options, "kernels": kernels, "threads": threads}


def check_device(options: Record) -> None:
    """Refuse a device that isn't there before a file is read; names what defaults stand for.

    The CPU's own kernels stay a default: small fields may not need them.
    """
    from proxfield.core.solve.request import choose_kernels

    kernels = options.get("kernels")
    chosen, options["dtype"] = choose_kernels(options["device"], kernels, options.get("dtype"))
    options["kernels"] = None if kernels is None and chosen == "cpu" else chosen
