"""``proxfield make snakes``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxfield.learn import make_snakes, read_snakes


def test_snakes(invoke: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "snakes.npz"
    args = ("make", "snakes", path, "--train", 5, "--test", 3, "--seed", 2, "--json")
    made = json.loads(invoke(*args).stdout)
    assert made["train"] == 5 and made["test"] == 3
    parts = read_snakes(path)
    pictures, _ = make_snakes(8, seed=2)
    assert all((a == b).all() for a, b in zip(parts["train"][0], pictures[:5], strict=True))
    assert all((a == b).all() for a, b in zip(parts["test"][0], pictures[5:], strict=True))
    before = path.read_bytes()
    invoke(*args)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there(invoke: Callable[..., Any], tmp_path: Path) -> None:
    result = invoke("make", "snakes", tmp_path / "none" / "snakes.npz")
    assert result.exit_code == 2
    assert "folder doesn't exist" in result.stderr
