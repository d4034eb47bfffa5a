"""The bar of `infer(progress=True)`, and what is logged."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import repulsive_grid
from proxfield.core.solve import progress


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; in the test itself, because pytest sets it before that."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return stream


class Shown:
    """A display handle of IPython that remembers what it showed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        assert data["text/plain"] == ""
        self.texts.append(data["text/html"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    """IPython as it is in a notebook's kernel."""
    handles: list[Shown] = []
    shell = type("Shell", (type("ZMQInteractiveShell", (), {}),), {})()

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Shown:
        assert display_id
        handles.append(Shown())
        handles[-1].update(data, raw=raw)
        return handles[-1]

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: shell  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handles


def run(**options: Any) -> pf.Result:
    return pf.infer(repulsive_grid(), "fixed", tol=0, max_iters=3000, **options)


def test_nothing_is_shown_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_nothing_is_shown_unless_asked(
    monkeypatch: pytest.MonkeyPatch, notebook: list[Shown]
) -> None:
    terminal = open_terminal(monkeypatch)
    run()
    assert terminal.getvalue() == ""
    assert notebook == []


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    terminal = open_terminal(monkeypatch)
    run(progress=True)
    text = terminal.getvalue()
    assert "fixed" in text
    assert "iteration 3000" in text
    assert capfd.readouterr().out == ""


def test_a_notebook_gets_a_bar(notebook: list[Shown], capfd: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    (handle,) = notebook
    assert any("<progress" in text and "iteration" in text for text in handle.texts)
    assert any("value=" in text for text in handle.texts)
    assert handle.texts[-1] == ""  # it goes away
    assert capfd.readouterr() == ("", "")


def test_names_of_rules_are_escaped() -> None:
    shown = progress.html_bar(None, "<rule>", "a & b")
    assert shown == "&lt;rule&gt; <progress max='1'></progress> a &amp; b"


def test_ipython_on_a_terminal_is_no_notebook(
    notebook: list[Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress.notebook_display() is not None
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert progress.notebook_display() is None


@pytest.mark.parametrize("rule", ["fixed", "momentum", "sweep", "auto", "restarts", "anneal"])
def test_a_bar_changes_nothing(rule: str, notebook: list[Shown]) -> None:
    plain = pf.infer(repulsive_grid(), rule, max_iters=300)
    shown = pf.infer(repulsive_grid(), rule, max_iters=300, progress=True)
    assert len(notebook) == 1
    assert shown.q.tobytes() == plain.q.tobytes()
    assert shown.iterations == plain.iterations


def test_the_users_callback_is_still_called(notebook: list[Shown]) -> None:
    seen: list[int] = []

    def stop(progress: pf.Progress) -> bool:
        seen.append(progress.iteration)
        return len(seen) == 2

    result = run(progress=True, callback=stop)
    assert result.status is pf.Status.STOPPED
    assert len(seen) == 2


def test_the_bar_goes_away_after_an_error(notebook: list[Shown]) -> None:
    def fail(progress: pf.Progress) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(progress=True, callback=fail)
    assert notebook[0].texts[-1] == ""


@pytest.mark.parametrize(
    ("iteration", "seconds", "budget", "share"),
    [(50, 1.0, None, 0.5), (1, 3.0, 4.0, 0.75), (99, 1.0, 4.0, 0.99), (1, 9.0, 4.0, 1.0)],
)
def test_the_nearer_limit_counts(
    iteration: int, seconds: float, budget: float | None, share: float
) -> None:
    seen = pf.Progress(iteration, seconds, np.inf, 0.1, 100, budget, lambda: np.zeros(0))
    assert progress.share_done(seen) == share
    assert progress.detail(seen) == f"iteration {iteration}"


def test_progress_is_true_or_false() -> None:
    with pytest.raises(pf.InputError, match="progress='yes', expected True or False"):
        run(progress="yes")


# ---- logging ----


def test_a_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="proxfield")
    result = pf.infer(repulsive_grid(), "fixed", max_iters=5)
    lines = [record.getMessage() for record in caplog.records]
    assert {record.name for record in caplog.records} == {"proxfield"}
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert any("Fixed(step='certified') on kernels cpu in float64" in line for line in lines)
    assert any("to 36 variables, 60 ising edges" in line for line in lines)
    assert any(line.startswith("fixed: max-iters with F = ") for line in lines)
    assert lines[-1] == repr(result)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (repulsive_grid(weight=3.0), "auto: F may have many minima"),
        (repulsive_grid(weight=0.1), "auto: F is convex"),
        (pf.Field(3, 2, [pf.Gaussian(np.eye(3))]), "auto: variables can't be visited one by one"),
    ],
)
def test_what_auto_chose_is_logged(
    field: pf.Field, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="proxfield")
    pf.infer(field, max_iters=100)
    assert text in caplog.text


def test_impossible_fields_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="proxfield")
    pf.infer(pf.Field([2], terms=[pf.Constant(np.inf)]))
    assert "to nothing: no labelling is possible" in caplog.text


def test_nothing_is_printed_by_default() -> None:
    code = (
        "import proxfield as pf; pf.infer(pf.Field(3, 2), 'fixed', kernels='reference');"
        "import logging; assert logging.getLogger('proxfield').handlers;"
        "logging.getLogger('proxfield').warning('to nobody')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("", "")
