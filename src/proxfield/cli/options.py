"""How commands declare their options, those that several share, and how values are read."""

from __future__ import annotations

import math
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from importlib import import_module
from inspect import cleandoc
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.types import StringParamType

from proxfield.core.common.records import Record
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.jobs.running import Part
    from proxfield.core.solve.rules.base import Rule

Decorator = Callable[[Any], Any]
"""Adds an option to the function of a command."""


# ---- kinds of values ----


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


def byte_count(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """A number of bytes: a whole number, or one with K, M or G for 2^10, 2^20 or 2^30."""
    if text is None:
        return None
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    digits = text if scale == 1 else text[:-1]
    if not digits.isdecimal():
        raise click.BadParameter(
            f"{text!r} isn't a number of bytes, expected for example 500M or 8G"
        )
    return int(digits) * scale


def numbers(_: click.Context, __: click.Parameter, text: str | None) -> float | list[float] | None:
    """A number, or several with commas between, all above 0."""
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < x < float("inf") for x in found):
        raise click.BadParameter(f"{text!r}, expected a number above 0, or several as 3,3,1")
    return found[0] if len(found) == 1 else found


def ignored(_: click.Context, __: click.Parameter, text: str) -> int | str | None:
    """A label, none, or auto."""
    if text == "auto":
        return text
    if text == "none":
        return None
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r}, expected a label (255, say) or none")
    return int(text)


def read_region(
    _: click.Context, __: click.Parameter, text: str | None
) -> tuple[float, float, float, float] | None:
    """Four numbers with commas between: smallest x and y, largest x and y."""
    if text is None:
        return None
    try:
        x0, y0, x1, y1 = (float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}, expected X0,Y0,X1,Y1 in meters") from None
    if not (-1e6 < x0 <= x1 < 1e6 and -1e6 < y0 <= y1 < 1e6):
        raise click.BadParameter(f"{text!r}, expected the smallest x and y first")
    return x0, y0, x1, y1


def read_part(_: click.Context, __: click.Parameter, text: str | None) -> Part | None:
    """A part of all items, ``K/N``."""
    if text is None:
        return None
    from proxfield.core.jobs.running import Part

    try:
        return Part.parse(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from None


WHOLE, POSITIVE = click.IntRange(min=0), click.FloatRange(0, min_open=True)
INPUT, OUTPUT = FileName(), FileName(written=True)
KINDS: dict[str, Any] = {
    **dict.fromkeys(("N", "R", "W H"), click.IntRange(min=1)),
    **dict.fromkeys(("SECONDS", "X", "F", "W"), float),
    **dict.fromkeys(("LABEL", "V"), int),
    **{"": bool, "S": WHOLE, "METERS": POSITIVE, "S,S,…": Several(float), "N,N,…": Several(int, 1)},
    **{"PX": numbers, "X0,Y0,X1,Y1": read_region, "V|none": ignored, "K/N": read_part},
    **{"count": click.IntRange(min=1), "whole": WHOLE, "two": click.IntRange(min=2)},
    **{"number": float, "positive": POSITIVE, "share": click.FloatRange(0, 1, max_open=True)},
    **{"probability": click.FloatRange(0, 1, min_open=True), "numbers": numbers},
    **{"input": INPUT, "output": OUTPUT, "names": Several(), "bytes": byte_count},
}
"""Kinds of values by what stands for them in the help, or by a word; others are text."""
MARKS: dict[str, Record] = {
    "many": {"multiple": True},
    "required": {"required": True},
    "hidden": {"show_default": False},
}
_HEAD = re.compile(r"((?:-[\w-]+ ?)+)([^(]*?)(?: ?\((.*)\))?(?: = (.*))?")


def declare(text: str, kinds: Record) -> Iterator[Decorator]:
    """Options from lines as ``-o --output FILE (output; required) = default  What it does``.

    In parentheses are the kind of the value where its name doesn't say it (see `KINDS`; else
    choices as a|b, or ``to`` and endings, ``stdout`` and what goes there), `MARKS`, and keywords
    of `click.option`. An option without a kind and without a name of its value is a flag. A line
    without a dash names options of `SHARED`, with what is to be filled in after a colon.

    Args:
        text: The lines; those that are indented continue the line before.
        kinds: Kinds by option, where the line can't say them.
    """
    for entry in re.split(r"\n(?! )", cleandoc(text)):
        line = re.sub(r"\s*\n\s+", " ", entry)
        if line.startswith("-"):
            head, _, help = line.partition("  ")
            yield _option(head, help.replace(" [default:", "  [default:"), kinds)
        elif ":" in line:
            name, _, values = line.partition(": ")
            yield from declare(SHARED[name].format(*values.split("|"), ""), kinds)
        else:
            yield from (each for name in line.split() for each in declare(SHARED[name], kinds))


def _option(head: str, help: str, kinds: Record) -> Decorator:
    """One option of `declare`, whose line is split before its help."""
    match = _HEAD.fullmatch(head)
    assert match is not None, head
    flags, metavar, words, default = match[1].split(), match[2], match[3], match[4]
    more: Record = {"help": help or None}
    kind = KINDS.get(metavar, str)
    for word in words.split("; ") if words else ():
        key, _, rest = word.partition(" ")
        name, equals, value = word.partition("=")
        if word in MARKS:
            more.update(MARKS[word])
        elif equals:
            more[name] = value
        elif key == "stdout":
            kind = FileName(True, rest)
        elif key == "to":
            kind = FileName(True, endings=rest)
        else:
            kind = click.Choice(word.split("|")) if "|" in word else KINDS[word]
    kind = kinds.get(flags[-1].lstrip("-").replace("-", "_"), kind)
    if kind is bool:
        more["is_flag"] = True
    elif isinstance(kind, FunctionType):
        more.update(callback=kind, type=str, metavar=metavar)
    else:
        more.update(type=kind, metavar=metavar or None)
    if metavar == "W H":
        more["nargs"] = 2
    if default is not None:
        text = kind is str or isinstance(kind, (StringParamType, click.Choice, FunctionType))
        value = default if text else literal_eval(default)
        more["default"] = (value,) if more.get("multiple") else value
        more.setdefault("show_default", True)
    name = more.pop("name", None)
    return click.option(*flags, *([name] if name else []), **more)


SHARED = {
    "evidence": """
        --evidence FILE (input)  UAI evidence file: observed variables.
        --evidence-base (0|1) = 0  Number of the first variable in the evidence file.
        --max-bytes N (bytes)  Maximum size of each file once decompressed, for example 8G.
            [default: 4G; for a compressed file 64M or 250 times its own size, whichever is
            more]""",
    "set": "--set KEY=VALUE (name=settings; many)  A parameter of the rule; repeatable.",
    "init": "--init (uniform|possible|unary|random) = {0}  Initial marginals.",
    "limits": """
        --max-iters N (whole)  Maximum number of iterations. [default: no limit with --budget, else
            the rule's default: 1000 for most]
        --tol X = 1e-6  Tolerance: stop where softmax(-g(q)) differs from q by no more.
        search-limits""",
    "search-limits": """
        --budget SECONDS  Time budget in seconds, excluding loading and compilation.
        seed threads""",
    "seed": "--seed S = 0  Random seed.",
    "threads": "--threads N  Maximum number of threads; all cores by default.",
    "jobs": """
        --jobs N = 1  Number of {0}s to process in parallel{1}.
        --threads N  Maximum number of threads per {0}; by default the jobs share all cores.
        cluster""",
    "part": "--part K/N  Process every N-th {0} only, from the K-th on: a task of a job array.",
    "cluster": """
        --cluster tcp://HOST:PORT  Do the work on a Dask cluster, by its scheduler's address
            (proxfield[cluster]); --jobs then limits how much of it is used.""",
    "device": """
        --device cpu|cuda|cuda:N = cpu  Where to compute; a GPU needs the extra proxfield[gpu].""",
    "dtype": """
        --dtype (float64|float32)  float32 takes half the memory. [default: float64; float32 on a
            GPU]""",
    "json": """
        --json (name=as_json)  Print the summary as one JSON object; numbers that aren't finite are
            null.""",
    "stdout": """
        -o --output FILE (stdout {0}; hidden) = -  {1}; .gz, .xz and .bz2 names are compressed.
            stdout by default.""",
    # arrays of probabilities and images, label maps
    "arrays": """
        --normalize  Divide probabilities by their sum.
        --labels-axis (auto|first|last) = auto  Axis of the labels in the probabilities.
        --channel-axis (auto|first|last|none) = auto  Axis of the channels in an image.""",
    "confidence": """
        --confidence P (probability)  Probability that a label is right, also of probabilities that
            are all 0 or 1. [default: 0.7, or as --config says]""",
    "maps": """
        confidence
        --n-labels N  Number of labels. [default: one more than the largest in each map]
        --unsure V  A label that stands for unknown.
        --ignore V|none (hidden) = auto  A label of pixels that keep it in the result. [default:
            255, if there are fewer labels]""",
    "mask": """
        --mask PATH (input; required)  What is hidden: a picture for all images, not 0 in the hole;
            or a folder with one per image.""",
    # benchmarks
    "suites": """
        --data DIR (input)  A folder with DBN, GRID and SEG of UAI files; generated instances by
            default.
        --suite A,B,… (names)  Suites to run, of DBN, GRID and SEG; all by default.""",
    "run": """
        threads
        --jobs N = 1  Number of models to process in parallel, which disturb each other unless each
            has cores of its own.
        cluster
        --tol X = 1e-6  Tolerance: stop early when no marginal changes by more.""",
    "results": """
        -o --output FILE (output; name=results) = {0}  Results file (JSON lines); runs that it
            contains aren't repeated.
        --report FILE.html (output)  Write an HTML report.
        --figures DIR (input)  Folder for pictures (.png, .svg); next to the report by default.
        json""",
    "included": "--{0} FILE (input)  Results file of bench {0}, to be included in the report.",
}
"""Options of several commands, as `declare` reads them."""


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


def done_by(place: str, **kinds: Any) -> Decorator:
    """Let a function of another module do the work of a command, with the options it describes.

    The module is imported when the command is called, not for its help. The function takes
    `Options` and returns an exit code, or None for 0. The files that the options name are checked
    before it is called.

    Args:
        place: Module in this package and function, as "solve:solve".
        kinds: Kinds of values by option, where the docstring can't say them; see `declare`.
    """
    module, _, name = place.partition(":")

    def decorate(described: Callable[[], None]) -> Callable[..., object]:
        @wraps(described)
        def call(**values: object) -> object:
            options = Options(**values)
            work = import_module(f"proxfield.cli.{module}")
            import_module("proxfield.cli.shared").check_files(options)
            return getattr(work, name)(options)

        if described.__doc__ is None:
            sys.exit("proxfield: python -OO takes out docstrings, which list the options; use -O")
        call.__doc__, _, text = cleandoc(described.__doc__).partition("\n\nOptions:\n")
        for declared in reversed(list(declare(text, kinds)) if text else []):
            declared(call)
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
        settings[key] = text
        for kind in (float, int):  # a whole number, a number, or the text itself
            with suppress(ValueError):
                settings[key] = kind(text)
    return settings


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
