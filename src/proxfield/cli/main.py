"""The entry point: finds subcommands lazily and turns every failure into one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any, TextIO

import click

from proxfield._version import __version__
from proxfield.cli.signals import INTERRUPTED, MESSAGE, interrupted
from proxfield.errors import LONGEST_LINE, ProxfieldError, one_line

BAD_INPUT = 2
BUG = 1
BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended."""

COMMANDS = {
    "solve": ("fields", "Infer marginals, a labelling and a bound on log Z."),
    "map": ("fields:map_command", "Search for the most probable labelling (MAP)."),
    "compare": ("fields", "Run several rules on one model; print a table and draw a picture."),
    "refine": ("images", "Refine segmentations of images by a dense CRF."),
    "studio": ("images", "Refine one image on a local page, with sliders."),
    "tune": ("images", "Choose the settings of a dense CRF on images with known labels."),
    "fit": ("people", "Learn to complete label images, from examples."),
    "inpaint": ("people", "Complete the hidden part of label images."),
    "detect": ("people", "Find people on the ground, from masks of several cameras."),
    "evaluate": (
        "people",
        "Compare detections of people with the truth: MODA, MODP, precision, recall.",
    ),
    "info": ("fields", "Show a model's size, structure and certified steps."),
    "make": ("fields", "Make a seeded random model, a simulated scene with people, or characters."),
    "cooccurrence": ("images", "Count which classes occur together in label maps."),
    "bench": ("bench", "Run the paper's benchmark; print its table and write a report."),
    "warmup": ("fields", "Compile kernels ahead of time."),
    "doctor": ("fields", "Check this installation."),
}
"""The module of each command in `proxfield.cli.commands`, its other name, and what it does."""


def escape_characters() -> None:
    """Write characters that an output doesn't have as escapes, as a pipe on Windows has no λ."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class LazyGroup(click.Group):
    """A group that imports a subcommand's module when it is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"proxfield.cli.commands.{module}"), name or cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, COMMANDS, n=1)
            known = ", ".join(COMMANDS)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of: {known}"
            raise click.UsageError(f"no such command {name!r}, {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments; click would answer Ctrl-C with an empty line."""
        try:
            return super().make_context(*args, **extra)
        except KeyboardInterrupt:
            sys.exit(report_interrupt())

    def invoke(self, ctx: click.Context) -> object:
        """Handle what click would handle in its own way."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here, so that a reader who left shows as an error we know
            return result
        except KeyboardInterrupt:
            ctx.exit(report_interrupt())
        except BrokenPipeError:
            silence(sys.stdout)
            ctx.exit(BROKEN_PIPE)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, and leave with an exit code; no failure shows a traceback."""
        extra["standalone_mode"] = False
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                code = super().main(args, *rest, **extra)
            except click.Abort:
                code = report_interrupt()
            except click.ClickException as error:
                code = report(error.format_message(), error)
            except (ProxfieldError, OSError, MemoryError) as error:
                code = report(describe(error), error)
            except Exception as error:  # or what a library made of Ctrl-C
                code = report_interrupt() if interrupted() else report_bug(error)
        sys.exit(code if isinstance(code, int) else 0)


def describe(error: BaseException) -> str:
    """An error as a message, also for those that come without one."""
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory; try a smaller model or --dtype float32"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ProxfieldError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def report(message: str, error: BaseException | None = None, *, kind: str = "error: ") -> int:
    """Print one line on stderr, cut to a readable length; returns the exit code for bad input."""
    after = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = message.rstrip(". \n")
        after = f" (see: {error.ctx.command_path} --help)"
    before = f"proxfield: {kind}"
    line = one_line(message, LONGEST_LINE - len(before) - len(after))
    click.echo(f"{before}{line}{after}", err=True)
    return BAD_INPUT


def report_interrupt() -> int:
    """Say that Ctrl-C came before there was a result; returns the exit code."""
    click.echo(MESSAGE, err=True)
    return INTERRUPTED


def report_bug(error: Exception) -> int:
    """One line for an unexpected error, or its traceback if that is requested."""
    if os.environ.get("PROXFIELD_DEBUG", "0") not in ("", "0"):
        import traceback

        lines = traceback.format_exception(type(error), error, error.__traceback__)
        click.echo("".join(lines), err=True, nl=False)
        return BUG
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    report(f"{what}; this is a bug, please rerun with PROXFIELD_DEBUG=1 and report what it shows")
    return BUG


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Warnings in the same form as errors, on one line."""
    report(str(message), kind="warning: ")


def silence(stream: TextIO) -> None:
    """Send what is still to be flushed nowhere: Python would complain about it at its exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Data goes to stdout, progress to stderr. Exit codes: 0 fine, 2 bad input, "
    "3 not converged under --strict, 130 interrupted.",
)
@click.version_option(__version__, prog_name="proxfield", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Mean-field inference in discrete random fields, with updates that provably converge.

    Models are UAI files (MARKOV or BAYES), plain or compressed (.gz, .xz, .bz2).
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """The command line, for scripts that were installed with this name for it."""
    from proxfield.__main__ import main as guarded

    guarded()
