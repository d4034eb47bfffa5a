"""What subcommands do alike: check targets, format numbers, print tables and JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from proxfield.cli.options import FileName, Options
from proxfield.core.common.records import Record, plain
from proxfield.errors import InputError
from proxfield.io.files import display_name

WORDS = {"n_vars": "variables", "n_labels": "labels"}
"""Keys of JSON objects in the words of summaries for people, where they differ."""


def check_target(path: str, option: str) -> None:
    """Refuse a target that can't be written, before anything is computed."""

    def refuse(message: str) -> InputError:
        return InputError(f"{option}: can't write, {message}", path=display_name(path))

    if path in ("", "-"):
        raise click.UsageError(f"{option} {path!r}, expected a file name")
    target = Path(path)
    try:
        if target.is_dir():
            raise refuse("is a directory, expected a file name")
        if target.exists():
            if not os.access(target, os.W_OK):
                raise refuse("permission denied, expected a writable file")
            if not target.is_file():  # a device or a pipe: written directly
                return
        folder = Path(os.path.realpath(target)).parent
        if not folder.is_dir():
            raise refuse("its folder doesn't exist, expected an existing folder (try mkdir -p)")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise refuse("permission denied, expected a writable folder")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise refuse(f"{getattr(error, 'strerror', None) or error}") from None


def check_distinct(files: Iterable[tuple[str, str | None]]) -> None:
    """Two outputs (or an output and an input) may not be the same file.

    Args:
        files: What names a file, and the file; the same twice is allowed.
    """
    seen: dict[str, str] = {}
    for option, path in files:
        if path is None or path == "-" or path.startswith("/dev/"):
            continue
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise click.UsageError(f"{other} and {option} name the same file {path!r}")


def check_files(options: Options) -> None:
    """Refuse targets that can't be written, and files named twice where something is written.

    Args:
        options: Of the command that is called, whose parameters say which of them are files.
    """
    files: list[tuple[str, str]] = []
    written = False
    for param in click.get_current_context().command.params:
        kind = param.type
        if isinstance(kind, FileName):
            given = getattr(options, str(param.name))
            name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            for path in given if isinstance(given, tuple) else (given,):
                if path == "-" and kind.stdout is not None:
                    if kind.stdout and options.as_json:
                        raise click.UsageError(
                            f"--json and {kind.stdout} both write to stdout; "
                            f"write {kind.stdout} by -o FILE"
                        )
                elif path is not None and kind.written:
                    written = True
                    ending = Path(path).suffix.lower() or "none"
                    if kind.endings and ending not in re.findall(r"\.\w+", kind.endings):
                        raise click.UsageError(
                            f"{name} {path!r}, expected a name ending in {kind.endings}"
                        )
                    check_target(path, name)
                files.append((name, path))
    if written:
        check_distinct(files)


def refuse(problems: Mapping[str, object]) -> None:
    """Raise the first of some messages that is true."""
    for message, wrong in problems.items():
        if wrong:
            raise click.UsageError(message)


def print_json(data: Record) -> None:
    """One JSON object on one line."""
    # escaped to ASCII, so that it prints in every locale
    click.echo(json.dumps(plain(data), allow_nan=False))


def number(value: float, digits: int = 8) -> str:
    """A number for people.

    Example:
        >>> number(-1451.3990), number(float("inf")), number(3)
        ('-1451.399', 'inf', '3')
    """
    return f"{value + 0.0:.{digits}g}"  # + 0.0 turns -0 into 0


def show_summary(data: Record, as_json: bool) -> None:
    """A summary as JSON, or as two columns for people, without what is empty.

    Example:
        >>> show_summary({"n_labels": 3, "never_present": [], "terms": ["unary", "potts"]}, False)
        labels  3
        terms   unary, potts
    """
    if as_json:
        print_json(data)
        return
    words = ((WORDS.get(key, key.replace("_", " ")), value) for key, value in data.items())
    print_pairs((k, ", ".join(map(str, v)) if isinstance(v, list) else str(v)) for k, v in words)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Two aligned columns, what and how much, without what is empty."""
    rows = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}".rstrip())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> None:
    """A plain table; the columns in ``left`` are aligned to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        pairs = enumerate(zip(row, widths, strict=True))
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in pairs]
        click.echo("  ".join(cells).rstrip())
