"""What is said while kernels are compiled: once, on stderr or to who listens, or not at all."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import proxfield
import proxfield.people  # which says what its kernels are for
from proxfield.core.compiled import notice

COMPILING = "compiling kernels, once (cached afterwards)…"
LINE = f"proxfield: {COMPILING}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> notice.Notice:
    """A fresh one whose patience is short; handlers of pytest's own don't count as listening."""
    monkeypatch.setenv(notice.SWITCH, "0")
    monkeypatch.setattr(notice, "PATIENCE", 0.02)
    monkeypatch.setattr(notice, "PAUSE", 0.01)
    monkeypatch.setattr(notice, "_is_heard", lambda: False)
    return notice.Notice()


@pytest.fixture
def heard() -> Iterator[list[str]]:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    notice.log.addHandler(handler)
    yield records
    notice.log.removeHandler(handler)


def event(module: str = "proxfield.core.engines.numba.dense") -> Any:
    function = SimpleNamespace(__module__=module, __qualname__="kernel")
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def compile_for(listener: notice.Notice, seconds: float, module: str = "proxfield.x") -> None:
    """As numba tells it, and until the listener has said what it has to say."""
    listener.on_start(event(module))
    time.sleep(seconds)
    listener.on_end(event(module))
    if listener.watcher is not None:
        listener.watcher.join(60)
        assert not listener.watcher.is_alive()


def test_a_long_compilation_is_announced_once(
    listener: notice.Notice, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_for(listener, 0.2)
    compile_for(listener, 0.2)
    out, err = capsys.readouterr()
    assert (out, err) == ("", LINE)


def test_short_ones_count_together(
    listener: notice.Notice, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice, "PATIENCE", 1e3)
    compile_for(listener, 0.05)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(notice, "PATIENCE", listener.spent)
    compile_for(listener, 0.05)
    assert capsys.readouterr().err == LINE


def test_seconds_are_counted_on_a_terminal(
    listener: notice.Notice, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    compile_for(listener, 0.2)
    text = screen.getvalue()
    assert text.startswith(f"proxfield: {COMPILING}\rproxfield: {COMPILING} ")
    assert text.endswith(" s\n") and text.count("\n") == 1


def test_it_says_what_is_compiled_and_about_how_long() -> None:
    assert notice.describe(event("proxfield.core.engines.numba.dense")) == (
        "compiling kernels for dense fields, once, about 10 s (cached afterwards)…"
    )
    assert notice.describe(event("proxfield.people.numba.occupancy_kernels")) == (
        "compiling kernels for occupancy maps, once, about 15 s (cached afterwards)…"
    )
    assert notice.describe(event("proxfield.x")) == COMPILING
    package = Path(proxfield.__file__).parent
    kernels = []
    for path in package.rglob("*.py"):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        found = re.findall(r"^@(?:parallel_)?kernel\ndef (\w+)", path.read_text("utf-8"), re.M)
        kernels += [f"{module}.{name}" for name in found]
    for beginning, _, _ in notice.WORK:
        assert any(name.startswith(beginning) for name in kernels), beginning


def test_who_listens_gets_it_instead(
    heard: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(notice.SWITCH, "0")
    monkeypatch.setattr(notice, "PATIENCE", 0.02)
    compile_for(notice.Notice(), 0.2)
    assert heard == [COMPILING]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("how", ["setting", "variable", "level", "suspended", "not ours"])
def test_nothing_is_said(
    how: str,
    listener: notice.Notice,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notice, "NOTICE", listener)
    if how == "setting":
        notice.quiet()
    elif how == "variable":
        monkeypatch.setenv(notice.SWITCH, "1")
        listener = notice.Notice()
    elif how == "level":
        monkeypatch.setattr(notice.log, "level", logging.WARNING)
        notice.log.manager._clear_cache()  # type: ignore[attr-defined]
    said_elsewhere = how == "suspended"
    with notice.when_compiling(len) if said_elsewhere else notice.compiled_kernels():
        compile_for(listener, 0.2, "somebody.else" if how == "not ours" else "proxfield.x")
    assert capsys.readouterr().err == ""
    notice.log.manager._clear_cache()  # type: ignore[attr-defined]
    if how == "setting":
        notice.quiet(False)
        compile_for(listener, 0.2)
        assert capsys.readouterr().err == LINE


def test_stderr_may_be_missing(listener: notice.Notice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    compile_for(listener, 0.1)
    assert listener.said
