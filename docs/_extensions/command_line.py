"""The reference of the command line, from the commands themselves.

The directive ``{command-line}`` writes a section for the program and one for each command: its
usage, its help, and its options with anchors such as ``#proxfield-refine--probs``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from proxfield.cli.main import cli

VERBATIM = "\b"
"""What click wants before a paragraph of help that is not to be wrapped."""
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*|-[a-z]\b)")
SECTION = "command"


class CommandLine(SphinxDirective):
    """Documents all commands."""

    def run(self) -> list[nodes.Node]:
        return [document(each) for each in walk(click.Context(cli, info_name="proxfield"))]


def walk(context: click.Context) -> Iterator[click.Context]:
    """A command and all of its subcommands."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            child = context.command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from walk(click.Context(child, info_name=name, parent=context))


def document(context: click.Context) -> nodes.section:
    """The section of one command."""
    command, name = context.command, context.command_path
    anchor = nodes.make_id(name)
    section = nodes.section(ids=[anchor], names=[name], classes=[SECTION])
    section += nodes.title("", "", nodes.literal(name, name))
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    section += nodes.literal_block(usage, usage, language="text")
    section.extend(help_text(command.help or ""))
    rows = nodes.definition_list(classes=["command-line-options"])
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and record[0] != "-h, --help":
            rows += option(anchor, *record)
    if rows.children:
        section += rows
    section.extend(help_text(command.epilog or ""))
    return section


def help_text(text: str) -> Iterator[nodes.Element]:
    """Paragraphs of help; those marked for click as verbatim become blocks of code."""
    for block in inspect.cleandoc(text).split("\n\n"):
        lines = block.splitlines()
        if not lines:
            continue
        if lines[0].strip() != VERBATIM:
            yield prose(block)
            continue
        title, *code = lines[1:]
        if code:
            yield nodes.paragraph("", title.strip())
            shown = textwrap.dedent("\n".join(code))
            yield nodes.literal_block(shown, shown, language="sh")
        else:
            yield nodes.literal_block(title, title.strip(), language="sh")


def option(command: str, names: str, text: str) -> nodes.definition_list_item:
    """One option: its names and value, and its help with default and range."""
    first = names.split()[0].rstrip(",")
    long = next((word for word in names.replace(",", " ").split() if word.startswith("--")), first)
    term = nodes.term("", "", nodes.literal(names, names), ids=[f"{command}{long}"])
    return nodes.definition_list_item("", term, nodes.definition("", prose(text)))


def prose(text: str) -> nodes.paragraph:
    """A paragraph in which names of options are code."""
    pieces = OPTION.split(" ".join(text.split()))
    children: list[nodes.Node] = [
        nodes.literal(piece, piece) if number % 2 else nodes.Text(piece)
        for number, piece in enumerate(pieces)
    ]
    return nodes.paragraph("", "", *children)


def register_anchors(app: Sphinx, document: nodes.document) -> None:
    """Let pages link to the section of a command: ``command-line.md#proxfield-refine``."""
    anchors = {
        section["ids"][0]: (0, section["ids"][0], section["names"][0])
        for section in document.findall(nodes.section)
        if SECTION in section["classes"]
    }
    if anchors:
        app.env.metadata[app.env.docname].setdefault("myst_slugs", {}).update(anchors)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-line", CommandLine)
    app.connect("doctree-read", register_anchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
