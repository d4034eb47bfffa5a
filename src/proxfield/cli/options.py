"""Options that several subcommands share, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from proxfield.core.common.records import Record
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.jobs.running import Part
    from proxfield.core.solve.rules.base import Rule

F = TypeVar("F", bound=Callable[..., Any])

TOL = 1e-6
"""The default of `proxfield.infer`, repeated here so that help needn't import it."""
INITS = ("uniform", "possible", "unary", "random")


Decorator = Callable[[Any], Any]
"""Adds an option to the function of a command."""


def stack(*decorators: Decorator) -> Callable[[F], F]:
    """Several decorators as one; help lists the options in this order."""

    def apply(function: F) -> F:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return apply


class Options(SimpleNamespace):
    """The values of a command's options, by their names in Python.

    Example:
        >>> options = Options(seed=0, budget=None)
        >>> options.seed, options.given("seed", "budget")
        (0, {'seed': 0})
    """

    def pick(self, *names: str) -> Record:
        """Some of the values by name, as keyword arguments take them."""
        return {name: getattr(self, name) for name in names}

    def given(self, *names: str) -> Record:
        """Those of some values that aren't None."""
        return {name: value for name, value in self.pick(*names).items() if value is not None}

    def changed(self, name: str) -> bool:
        """Whether the user has given an option, also if its value is the default."""
        source = click.get_current_context().get_parameter_source(name)
        return source is not ParameterSource.DEFAULT


def done_by(place: str) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Let a function of another module do the work of a command.

    The module is imported when the command is called, not for its help. The function takes
    `Options` and returns an exit code, or None for 0.

    Args:
        place: Module in this package and function, as "solve:solve".
    """
    module, _, name = place.partition(":")

    def decorate(described: Callable[[], None]) -> Callable[..., Any]:
        @wraps(described)
        def call(**values: Any) -> Any:
            return getattr(import_module(f"proxfield.cli.{module}"), name)(Options(**values))

        return call

    return decorate


class ByteCount(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes: a whole number, or one with K, M or G for 2^10, 2^20 or 2^30."""

    name = "bytes"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(value[-1:].upper(), 1)
        digits = value if scale == 1 else value[:-1]
        if not digits.isdecimal():
            self.fail(f"{value!r} isn't a number of bytes, expected for example 500M or 8G")
        return int(digits) * scale


model_options = stack(
    click.argument("model"),
    click.option("--evidence", metavar="FILE", help="UAI evidence file: observed variables."),
    click.option(
        "--evidence-base",
        type=click.Choice(["0", "1"]),
        default="0",
        show_default=True,
        help="Number of the first variable in the evidence file.",
    ),
    click.option(
        "--max-bytes",
        metavar="N",
        type=ByteCount(),
        help="Maximum size of each file once decompressed, for example 8G.  [default: 4G; "
        "for a compressed file 64M or 250 times its own size, whichever is more]",
    ),
)


def count_option(name: str, help: str, default: int | None = None, least: int = 1) -> Decorator:
    """An option that counts things."""
    return click.option(
        name,
        metavar="N",
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        help=help,
    )


def seed_option(help: str = "Random seed.") -> Decorator:
    """``--seed``, 0 by default."""
    return click.option(
        "--seed",
        metavar="S",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help=help,
    )


def threads_option(help: str = "Maximum number of threads; all cores by default.") -> Decorator:
    """``--threads``, at least 1."""
    return click.option("--threads", metavar="N", type=click.IntRange(min=1), help=help)


def read_part(_: click.Context, __: click.Parameter, text: str | None) -> Part | None:
    """A part of all items, ``K/N``."""
    if text is None:
        return None
    from proxfield.core.jobs.running import Part

    try:
        return Part.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from None


def jobs_options(item: str, note: str = "", *, parts: bool = False) -> Decorator:
    """``--jobs``, ``--threads`` and ``--cluster`` of a command that processes many items.

    Args:
        item: What the items are.
        note: What else is to be said about their number.
        parts: Also ``--part``.
    """
    part = click.option(
        "--part",
        metavar="K/N",
        callback=read_part,
        help=f"Process every N-th {item} only, from the K-th on: a task of a job array.",
    )
    return stack(
        jobs_option(item, note),
        threads_option(
            f"Maximum number of threads per {item}; by default the jobs share all cores."
        ),
        cluster_option,
        *([part] if parts else []),
    )


def jobs_option(item: str, note: str = "") -> Decorator:
    """``--jobs``, 1 by default."""
    return click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help=f"Number of {item}s to process in parallel{note}.",
    )


cluster_option = click.option(
    "--cluster",
    metavar="tcp://HOST:PORT",
    help="Do the work on a Dask cluster, by its scheduler's address (proxfield[cluster]); "
    "--jobs then limits how much of it is used.",
)


def jobs_on(options: Options) -> int | None:
    """The number of jobs; None for as many as a cluster has room for."""
    jobs: int = options.jobs
    if options.cluster is None:
        return jobs
    if not options.changed("jobs"):
        return None
    if jobs == 1:
        raise click.UsageError("--jobs 1 means this machine, expected more or no --cluster")
    return jobs


def init_option(default: str) -> Decorator:
    """``--init``: the marginals to start from."""
    return click.option(
        "--init",
        type=click.Choice(INITS),
        default=default,
        show_default=True,
        help="Initial marginals.",
    )


settings_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A parameter of the rule; repeatable.",
)

search_limit_options = stack(
    click.option(
        "--budget",
        metavar="SECONDS",
        type=float,
        help="Time budget in seconds, excluding loading and compilation.",
    ),
    seed_option(),
    threads_option(),
)

limit_options = stack(
    click.option(
        "--max-iters",
        metavar="N",
        type=click.IntRange(min=0),
        help="Maximum number of iterations.  [default: no limit with --budget, "
        "else the rule's default: 1000 for most]",
    ),
    click.option(
        "--tol",
        metavar="X",
        type=float,
        default=TOL,
        show_default=True,
        help="Tolerance: stop where softmax(-g(q)) differs from q by no more.",
    ),
    search_limit_options,
)

device_option = click.option(
    "--device",
    metavar="cpu|cuda|cuda:N",
    default="cpu",
    show_default=True,
    help="Where to compute; a GPU needs the extra proxfield[gpu].",
)

dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    help="float32 takes half the memory.  [default: float64; float32 on a GPU]",
)

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as one JSON object; numbers that aren't finite are null.",
)


class CommandWithRules(click.Command):
    """A command whose help ends with the rules and their parameters.

    The list is read from the registry when help is shown, so it can't grow stale.
    """

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Rules"):
            formatter.write_dl([(name, _about(rule)) for name, rule in self.rules().items()])
        super().format_epilog(ctx, formatter)

    def rules(self) -> Mapping[str, type[Rule]]:
        """The rules that the command takes."""
        from proxfield.core.solve.rules.registry import RULES

        return RULES


class CommandWithDenseRules(CommandWithRules):
    """Likewise, with the rules that run on dense fields."""

    def rules(self) -> Mapping[str, type[Rule]]:
        from proxfield.core.solve.rules.registry import dense_rules

        return dense_rules()


def _about(rule: type[Rule]) -> str:
    keys = [f"{f.name}={f.default}" for f in fields(rule) if f.default is not None]
    keys += [f.name for f in fields(rule) if f.default is None]
    return f"{rule.summary} [{', '.join(keys)}]" if keys else str(rule.summary)


def parse_settings(items: tuple[str, ...]) -> Record:
    """``key=value`` options as a dictionary: numbers where they read as numbers, else text.

    Example:
        >>> parse_settings(("gamma=0.9", "variant=printed"))
        {'gamma': 0.9, 'variant': 'printed'}
    """
    settings: Record = {}
    for item in items:
        key, equals, text = item.partition("=")
        key, text = key.strip().replace("-", "_"), text.strip()
        if not key or not equals or not text:
            raise click.UsageError(f"--set {item!r}, expected key=value")
        if key in settings:
            raise click.UsageError(f"--set gives {key!r} twice, expected one value")
        settings[key] = number_or_text(text)
    return settings


def number_or_text(text: str) -> int | float | str:
    """A whole number, a number, or the text itself."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


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
