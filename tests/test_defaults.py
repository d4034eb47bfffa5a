"""docs/reference/defaults.md says what the signatures and the command line say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest

import proxfield as pf
from proxfield import learn
from proxfield.cli.main import cli
from proxfield.cli.running import default_rule
from proxfield.images.inputs import READING
from proxfield.images.settings import GivenSettings
from proxfield.torch.inference import infer as torch_infer
from proxfield.torch.layer import DenseCRF as TorchDenseCRF

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "defaults.md"
ABSENT = "–"
Defaults = dict[str, Any]


def of_function(function: Callable[..., Any]) -> Defaults:
    """Defaults of all arguments that have one."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def of_command(name: str) -> Defaults:
    """Defaults of all options, as the command gets them."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    context = click.Context(command, resilient_parsing=True)
    found = {p.name: p.get_default(context) for p in command.params if isinstance(p, click.Option)}
    given = {k: None if "UNSET" in repr(v) else v for k, v in found.items() if k is not None}
    # given as text, read by a callback
    return {k: float(v) if k == "spacing" and v is not None else v for k, v in given.items()}


SETTINGS = pf.DenseSettings()
OF_MODEL = ("compatibility", "normalization", "self_message", "filter")
TERMS = {
    **dict.fromkeys(GivenSettings.__annotations__),  # what the preset says
    **{name: getattr(SETTINGS, name) for name in OF_MODEL},
}
INFER = of_function(pf.infer)
IMAGES = {**of_function(pf.DenseCRF), **TERMS, **READING, "confidence": None}
LAYER = {**of_function(TorchDenseCRF), **TERMS}
DENSE = {**INFER, **of_function(pf.DenseCRF.infer)}
"""`DenseCRF.infer` hands on what it doesn't have itself, as commands do."""
WAYS: dict[str, dict[str, Defaults]] = {
    "Inference": {
        "infer": INFER,
        "infer_many": of_function(pf.infer_many),
        "torch.infer": of_function(torch_infer),
        "solve": {**INFER, **of_command("solve"), "rule": default_rule()},
        "compare": {k: v for k, v in {**INFER, **of_command("compare")}.items() if k != "rule"},
        "solve_map": of_function(pf.solve_map),
        "map": {**of_function(pf.solve_map), **of_command("map")},
        "DenseCRF.infer": DENSE,
        "refine": {**DENSE, **of_command("refine")},
        "torch.DenseCRF": LAYER,
    },
    "Terms of dense CRFs": {
        "Gaussian": of_function(pf.Gaussian),
        "DenseCRF": IMAGES,
        "refine": {**IMAGES, **of_command("refine")},
        "torch.DenseCRF": LAYER,
    },
    "Tiles": {
        "refine_tiles": of_function(pf.refine_tiles),
        "refine": of_command("refine"),
    },
    "Learning": {
        "CRF": of_function(learn.CRF),
        "fit_pseudo": of_function(learn.fit_pseudo),
        "fit_chains": of_function(learn.fit_chains),
        "fit_marginals": of_function(learn.fit_marginals),
        "fit_weights": of_function(learn.fit_weights),
    },
    "Decision tree fields": {
        "DecisionTreeField": of_function(learn.DecisionTreeField),
        "fit": of_command("fit"),
    },
}
NOT_DEFAULTS = {
    *("callback", "progress", "trace", "output", "evidence_base"),  # what comes out, and how
    *("fixed", "start", "l2"),  # of learning; why l2 differs is said below its table
    *("labels_axis", "channel_axis", "normalize", "energies", "probabilities", "cooccurrence"),
}
"""Shared names that aren't settings of the inference or of a term."""


def section(title: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def table(title: str) -> dict[str, dict[str, str]]:
    """Cells by option and column."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    header, _, *body = ([c.strip().strip("`") for c in row.strip("|").split("|")] for row in rows)
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}


@pytest.mark.parametrize("title", list(WAYS))
def test_the_table_is_true(title: str) -> None:
    ways = WAYS[title]
    for option, cells in table(title).items():
        assert list(cells) == list(ways)
        for way, cell in cells.items():
            where = f"{option} of {way}"
            if cell == ABSENT:
                assert option not in ways[way], where
                continue
            value = eval(cell, {"__builtins__": {}})
            assert value == ways[way][option], where
            assert type(value) is type(ways[way][option]), where


def test_presets() -> None:
    rows = [line for line in section("Presets").splitlines() if line.startswith("|")]
    header, _, *body = ([c.strip().strip("`") for c in row.strip("|").split("|")] for row in rows)
    found = {row[0]: dict(zip(header[1:], map(float, row[1:]), strict=True)) for row in body}
    held = {
        name: {
            k: v for k, v in asdict(p).items() if k not in (*OF_MODEL, "color_range", "confidence")
        }
        for name, p in pf.PRESETS.items()
    }
    assert found == held
    for preset in pf.PRESETS.values():  # they differ in nothing else
        assert (
            pf.DenseSettings(**{name: getattr(preset, name) for name in found["gentle"]}) == preset
        )
    command = cli.get_command(click.Context(cli), "refine")
    assert command is not None
    option = next(p for p in command.params if p.name == "preset")
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == list(pf.PRESETS)


@pytest.mark.parametrize("title", list(WAYS))
def test_every_difference_is_in_the_table_and_explained(title: str) -> None:
    ways, rows = WAYS[title], table(title)
    elsewhere = {name for other in WAYS if other != title for name in table(other)}
    bullets = re.findall(r"^- ((?:`\w+`(?:, )?)+):", section(title), re.MULTILINE)
    explained = {name for bullet in bullets for name in re.findall(r"\w+", bullet)}
    differing = set()
    for option in {name for defaults in ways.values() for name in defaults}:
        if option in NOT_DEFAULTS | elsewhere:
            continue
        values = [repr(defaults[option]) for defaults in ways.values() if option in defaults]
        if len(set(values)) > 1:
            differing.add(option)
    assert differing <= set(rows)
    assert differing == explained
