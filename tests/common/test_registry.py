"""Registries of the core: applications add entries, and are imported when these are needed."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.common.registry import Registry
from proxfield.errors import InputError


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_entries_keep_their_order() -> None:
    kinds = Registry[type]({"fraction": "fractions:Fraction"})
    kinds["text"] = str
    kinds["number"] = int
    assert dict(kinds) == {"fraction": Fraction, "text": str, "number": int}
    del kinds["text"]
    assert list(kinds) == ["fraction", "number"]
    assert len(kinds) == 2
    with pytest.raises(KeyError, match="text"):
        kinds["text"]


@pytest.mark.parametrize(
    "use",
    [
        "'original' in proxfield.RULES",
        "'original' in list(proxfield.RULES)",
        "'occupancy' in proxfield.TERMS",
        "'occupancy' in list(proxfield.TERMS)",
    ],
)
def test_applications_are_imported_when_they_are_needed(use: str) -> None:
    program = f"""
import sys, proxfield
proxfield.RULES["fixed"], proxfield.TERMS["unary"], proxfield.Field(2, 2).lower()
print([m for m in sys.modules if "people" in m], {use})
"""
    assert run(program) == "[] True"


def test_a_saved_field_needs_no_import(tmp_path: Path) -> None:
    boxes = pf.Boxes(2, 4, [[0, 0, 2, 2], [2, 0, 4, 2]])
    field = pf.Field(2, 2, [pf.Occupancy([boxes], [np.eye(2, 4)])])
    field.save(tmp_path / "f.npz")
    program = f"""
import proxfield
field = proxfield.Field.load({str(tmp_path / "f.npz")!r})
print(type(field.terms[0]).__name__, field.energy([0, 1]))
"""
    assert run(program) == f"ExactOccupancy {field.energy([0, 1])}"


def test_names_of_applications_are_taken() -> None:
    program = """
import proxfield
try:
    proxfield.saveable(kind="occupancy")(type("Mine", (proxfield.Unary,), {}))
except proxfield.InputError as error:
    print(error)
"""
    assert "people.occupancy.ExactOccupancy is already saved as 'occupancy'" in run(program)
    with pytest.raises(InputError, match="is already saved as 'occupancy'"):
        pf.saveable(kind="occupancy")(type("Mine", (pf.Unary,), {}))


def test_the_core_names_no_application() -> None:
    names = re.compile(r"occupan|silhouettes\b.*import|proxfield\.(people|images|learn)\b", re.I)
    core = Path(pf.__file__).parent / "core"
    found = [
        f"{path.relative_to(core)}: {line.strip()}"
        for path in sorted(core.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if names.search(line) and "pip install" not in line
    ]
    assert found == []
