"""Set the version in every file that names it, and check them before a release.

    python scripts/release.py prepare 0.2.0 [--date 2026-01-31]
    python scripts/release.py check v0.2.0        # prints the release notes

``prepare`` writes the version and the date (by default today) to src/proxfield/_version.py,
CHANGELOG.md, CITATION.cff, docs/project/citing.md and recipe/recipe.yaml. ``check`` exits with 1 if
one of them disagrees with the tag. docs/project/releasing.md has the whole list of steps. Needs
nothing but Python.
"""

from __future__ import annotations

import argparse
import re
from datetime import date
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
FORM = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?")
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
LINES = {
    "src/proxfield/_version.py": '__version__ = "VERSION"',
    "CITATION.cff": "version: VERSION",
    "docs/project/citing.md": "  version = {VERSION}",
    "recipe/recipe.yaml": '  version: "VERSION"',
}
"""The line that holds the version."""


class Files:
    """The files that name the version.

    Args:
        folder: The clone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> str:
        """A file's text."""
        return (self.folder / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        with (self.folder / name).open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)

    def replace(self, name: str, pattern: str, line: str) -> None:
        """Replace the only line that a pattern matches."""
        out, found = re.subn(f"^{pattern}$", lambda _: line, self.read(name), flags=re.MULTILINE)
        if found != 1:
            raise SystemExit(f"{name}: {found} lines match {pattern!r}, expected one")
        self.write(name, out)

    def prepare(self, version: str, day: str) -> None:
        """Write the version and the date of its release."""
        if not FORM.fullmatch(version):
            raise SystemExit(f"{version!r} is no version, expected one like 0.2.0 or 0.2.0rc1")
        for name, line in LINES.items():
            start = re.escape(line.partition("VERSION")[0])
            self.replace(name, f"{start}.*", line.replace("VERSION", version))
        heading = rf"## {re.escape(version)} \((unreleased|{DATE})\)"
        self.replace("CHANGELOG.md", heading, f"## {version} ({day})")
        cited = re.sub("^date-released: .*\n", "", self.read("CITATION.cff"), flags=re.MULTILINE)
        self.write("CITATION.cff", cited)
        self.replace(
            "CITATION.cff", f"version: {version}", f"version: {version}\ndate-released: {day}"
        )

    def check(self, tag: str) -> str:
        """The notes of a release; stops with one line if a file disagrees with the tag."""
        version = tag.removeprefix("v")
        if tag == version or not FORM.fullmatch(version):
            raise SystemExit(f"the tag is {tag!r}, expected one like v0.2.0")
        for name, template in LINES.items():
            line = template.replace("VERSION", version)
            if line not in self.read(name).splitlines():
                raise SystemExit(f"{name}: no line {line!r} (scripts/release.py prepare {version})")
        section = rf"^## {re.escape(version)} \((?P<day>[^)\n]*)\)$(?P<notes>.*?)(?=^## |\Z)"
        found = re.search(section, self.read("CHANGELOG.md"), flags=re.M | re.S)
        if found is None:
            raise SystemExit(f"CHANGELOG.md: no section {version} (date)")
        day, notes = found["day"], found["notes"].strip()
        if not re.fullmatch(DATE, day):
            raise SystemExit(f"CHANGELOG.md: {version} has no date but {day!r}")
        if f"date-released: {day}" not in self.read("CITATION.cff").splitlines():
            raise SystemExit(f"CITATION.cff: no line 'date-released: {day}'")
        if not notes:
            raise SystemExit(f"CHANGELOG.md: the section {version} is empty")
        return notes


def main() -> None:
    """Prepare or check a release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="write the version and the date")
    prepare.add_argument("version")
    prepare.add_argument("--date", default=date.today().isoformat(), help="by default today")
    check = commands.add_parser("check", help="compare with a tag, print the notes")
    check.add_argument("tag")
    args = parser.parse_args()
    files = Files(CLONE)
    if args.command == "prepare":
        files.prepare(args.version, args.date)
    else:
        print(files.check(args.tag))


if __name__ == "__main__":
    main()
