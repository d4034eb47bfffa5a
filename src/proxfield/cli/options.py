"""How commands declare their options, those that several share, and how values are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.types import StringParamType

from proxfield.core.common.records import Record
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.jobs import Part
    from proxfield.core.solve.rules.base import Rule

TOL = 1e-6
"""The default of `proxfield.infer`, repeated here so that help needn't import it."""
INITS = ("uniform", "possible", "unary", "random")
RULE = "Update rule; see the list below."
FILTERS = ("auto", "exact", "lattice")
HOLES = ("small", "large")
"""Those of `learn.characters.HOLES`, repeated here so that help needn't import them."""

Decorator = Callable[[Any], Any]
"""Adds an option to the function of a command."""


# ---- kinds of values ----


class ByteCount(StringParamType):
    """A number of bytes: a whole number, or one with K, M or G for 2^10, 2^20 or 2^30."""

    name = "bytes"

    def convert(  # type: ignore[override]
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(value[-1:].upper(), 1)
        digits = value if scale == 1 else value[:-1]
        if not digits.isdecimal():
            self.fail(f"{value!r} isn't a number of bytes, expected for example 500M or 8G")
        return int(digits) * scale


class FileName(StringParamType):
    """A file that a command reads or writes; see `proxfield.cli.shared.check_files`.

    Args:
        written: Whether the command writes it.
        stdout: What goes to standard output if the name is "-", where that is possible.
        endings: What its name must end in, as ".png, .svg or .pdf".
    """

    def __init__(self, written: bool = False, stdout: str | None = None, endings: str = "") -> None:
        self.written, self.stdout, self.endings = written, stdout, endings


class Several(StringParamType):
    """Values separated by commas, each once; numbers are sorted.

    Args:
        kind: Names, whole numbers, or numbers above 0.
        lowest: Least whole number.
        highest: Largest number.

    Example:
        >>> Several(float).convert("0.3,0.05,0.3", None, None)
        [0.05, 0.3]
    """

    def __init__(
        self, kind: type[str | float] = str, lowest: int = 0, highest: float = math.inf
    ) -> None:
        self.kind, self.lowest, self.highest = kind, lowest, highest

    def convert(  # type: ignore[override]
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str] | list[float]:
        option = "" if param is None else param.opts[0]
        parts = list(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not parts:
            raise InputError(f"{option} is empty, expected names or numbers separated by commas")
        if self.kind is str:
            return parts
        return sorted({self._number(part, option) for part in parts})

    def _number(self, part: str, option: str) -> float:
        if self.kind is int:
            good = part.isascii() and part.isdigit() and len(part) < 10
            if good and int(part) >= self.lowest:
                return int(part)
            raise InputError(f"{option}: {part!r}, expected whole numbers, {self.lowest} or more")
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not (0 < value <= self.highest and math.isfinite(value)):
            most = "" if self.highest == math.inf else f" and at most {self.highest:g}"
            raise InputError(
                f"{option}: {part!r}, expected numbers above 0{most}, such as 0.05,0.3"
            )
        return value


COUNT, WHOLE, TWO_OR_MORE = (click.IntRange(min=least) for least in (1, 0, 2))
POSITIVE, PROBABILITY = click.FloatRange(0, min_open=True), click.FloatRange(0, 1, min_open=True)
INPUT, OUTPUT, NAMES = FileName(), FileName(written=True), Several()
KINDS: dict[str, object] = {
    **dict.fromkeys(("N", "R", "W H"), COUNT),
    **dict.fromkeys(("SECONDS", "X", "F", "W"), float),
    **dict.fromkeys(("LABEL", "V"), int),
    **{"": bool, "S": WHOLE, "METERS": POSITIVE, "S,S,…": Several(float), "N,N,…": Several(int, 1)},
}
"""Kinds of values by what stands for them in the help; others are text."""


def option(
    names: str,
    help: str | None,
    default: object = None,
    kind: Any = None,
    *,
    shown: bool = True,
    name: str | None = None,
    **more: Any,
) -> Decorator:
    """An option of a command; one without a kind and without a word for its value is a flag.

    Args:
        names: Its names, and what stands for its value: ``"-o --output FILE"``.
        help: What it does.
        default: Its default.
        kind: Of its value: a type, or a tuple of choices; by default as `KINDS` says.
        shown: Whether help shows the default.
        name: Its name in Python, if that is another.
        more: As in `click.option`.
    """
    flags = [word for word in names.split() if word.startswith("-")]
    metavar = names.removeprefix(" ".join(flags)).strip()
    kind = KINDS.get(metavar, str) if kind is None else kind
    if kind is bool:
        more["is_flag"] = True
    else:
        more["type"] = click.Choice(kind) if isinstance(kind, tuple) else kind
        more["metavar"] = metavar or None
    if metavar == "W H":
        more["nargs"] = 2
    if default is not None:
        more.update(default=default, show_default=shown)
    return click.option(*flags, *([name] if name else []), help=help, **more)


def stack(*decorators: Decorator) -> Decorator:
    """Several decorators as one; help lists the options in this order."""

    def apply(function: Any) -> Any:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return apply


# ---- their values ----


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

    @property
    def job_count(self) -> int | None:
        """The number of jobs; None for as many as a cluster has room for."""
        jobs: int = self.jobs
        if self.cluster is None:
            return jobs
        if not self.changed("jobs"):
            return None
        if jobs == 1:
            raise click.UsageError("--jobs 1 means this machine, expected more or no --cluster")
        return jobs


def done_by(place: str) -> Decorator:
    """Let a function of another module do the work of a command.

    The module is imported when the command is called, not for its help. The function takes
    `Options` and returns an exit code, or None for 0. The files that the options name are checked
    before it is called.

    Args:
        place: Module in this package and function, as "solve:solve".
    """
    module, _, name = place.partition(":")

    def decorate(described: Callable[[], None]) -> Callable[..., object]:
        @wraps(described)
        def call(**values: object) -> object:
            options = Options(**values)
            work = import_module(f"proxfield.cli.{module}")
            import_module("proxfield.cli.shared").check_files(options)
            return getattr(work, name)(options)

        return call

    return decorate


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
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # noqa: PERF203
            pass
    return text


# ---- options of several commands ----


def seed_option(help: str = "Random seed.") -> Decorator:
    """``--seed``, 0 by default."""
    return option("--seed S", help, 0)


def init_option(default: str) -> Decorator:
    """``--init``: the marginals to start from."""
    return option("--init", "Initial marginals.", default, INITS)


def stdout_option(what: str, help: str) -> Decorator:
    """``-o`` for a file in place of standard output.

    Args:
        what: What is written, for messages.
        help: The beginning of its help.
    """
    help = f"{help}; .gz, .xz and .bz2 names are compressed. stdout by default."
    return option("-o --output FILE", help, "-", FileName(True, what), shown=False)


def jobs_option(item: str, note: str = "") -> Decorator:
    """``--jobs``, 1 by default."""
    return option("--jobs N", f"Number of {item}s to process in parallel{note}.", 1)


def jobs_options(item: str, note: str = "", *, parts: bool = False) -> Decorator:
    """``--jobs``, ``--threads`` and ``--cluster`` of a command that processes many items.

    Args:
        item: What the items are.
        note: What else is to be said about their number.
        parts: Also ``--part``.
    """
    each = f"Maximum number of threads per {item}; by default the jobs share all cores."
    part = option(
        "--part K/N",
        f"Process every N-th {item} only, from the K-th on: a task of a job array.",
        callback=read_part,
    )
    several = [jobs_option(item, note), option("--threads N", each), SHARED["cluster"]]
    return stack(*several, *([part] if parts else []))


def read_part(_: click.Context, __: click.Parameter, text: str | None) -> Part | None:
    """A part of all items, ``K/N``."""
    if text is None:
        return None
    from proxfield.core.jobs import Part

    try:
        return Part.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from None


SHARED = {
    "model": click.argument("model", type=INPUT),
    "evidence": option("--evidence FILE", "UAI evidence file: observed variables.", kind=INPUT),
    "evidence-base": option(
        "--evidence-base", "Number of the first variable in the evidence file.", "0", ("0", "1")
    ),
    "max-bytes": option(
        "--max-bytes N",
        "Maximum size of each file once decompressed, for example 8G.  [default: 4G; "
        "for a compressed file 64M or 250 times its own size, whichever is more]",
        kind=ByteCount(),
    ),
    "set": option(
        "--set KEY=VALUE", "A parameter of the rule; repeatable.", name="settings", multiple=True
    ),
    "max-iters": option(
        "--max-iters N",
        "Maximum number of iterations.  [default: no limit with --budget, "
        "else the rule's default: 1000 for most]",
        kind=WHOLE,
    ),
    "tol": option(
        "--tol X", "Tolerance: stop where softmax(-g(q)) differs from q by no more.", TOL
    ),
    "budget": option(
        "--budget SECONDS", "Time budget in seconds, excluding loading and compilation."
    ),
    "seed": seed_option(),
    "threads": option("--threads N", "Maximum number of threads; all cores by default."),
    "cluster": option(
        "--cluster tcp://HOST:PORT",
        "Do the work on a Dask cluster, by its scheduler's address (proxfield[cluster]); "
        "--jobs then limits how much of it is used.",
    ),
    "device": option(
        "--device cpu|cuda|cuda:N", "Where to compute; a GPU needs the extra proxfield[gpu].", "cpu"
    ),
    "dtype": option(
        "--dtype",
        "float32 takes half the memory.  [default: float64; float32 on a GPU]",
        kind=("float64", "float32"),
    ),
    "json": option(
        "--json",
        "Print the summary as one JSON object; numbers that aren't finite are null.",
        name="as_json",
    ),
}
MODEL = ("model", "evidence", "evidence-base", "max-bytes")
SEARCH_LIMITS = ("budget", "seed", "threads")
LIMITS = ("max-iters", "tol", *SEARCH_LIMITS)


def shared(*names: str) -> Decorator:
    """Some of the options that several commands have, by name."""
    return stack(*(SHARED[name] for name in names))


class CommandWithRules(click.Command):
    """A command whose help ends with the rules and their parameters.

    The list is read from the registry when help is shown, so it can't grow stale.
    """

    dense = False
    """Whether only rules that run on dense fields are listed."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from proxfield.core.solve.rules.registry import RULES, dense_rules

        rules = dense_rules() if self.dense else RULES
        with formatter.section("Rules"):
            formatter.write_dl([(name, _about(rule)) for name, rule in rules.items()])
        super().format_epilog(ctx, formatter)


class CommandWithDenseRules(CommandWithRules):
    """A command whose help ends with the rules that run on dense fields."""

    dense = True


def _about(rule: type[Rule]) -> str:
    keys = [f"{f.name}={f.default}" for f in fields(rule) if f.default is not None]
    keys += [f.name for f in fields(rule) if f.default is None]
    return f"{rule.summary} [{', '.join(keys)}]" if keys else str(rule.summary)
