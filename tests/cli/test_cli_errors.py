"""Bad input: one line on stderr, exit code 2, no traceback, no partial file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from proxfield.cli import commands

PREFIX = "proxfield: error: "
GOOD = "MARKOV\n2\n2 2\n2\n1 0\n2 0 1\n2 1 2\n4 1 2 3 4\n"

BAD_MODELS: dict[str, str | bytes] = {
    "truncated": GOOD[:-5],
    "truncated-in-scopes": "MARKOV\n2\n2 2\n2\n1 0\n2 0",
    "too-few-factors": GOOD.replace("2 2\n2\n", "2 2\n1\n"),
    "too-many-factors": GOOD.replace("2 2\n2\n", "2 2\n3\n"),
    "wrong-variables": GOOD.replace("MARKOV\n2\n", "MARKOV\n3\n"),
    "negative-entry": GOOD.replace("3 4\n", "-3 4\n"),
    "nan-entry": GOOD.replace("3 4\n", "nan 4\n"),
    "inf-entry": GOOD.replace("3 4\n", "inf 4\n"),
    "word-entry": GOOD.replace("3 4\n", "three 4\n"),
    "scope-out-of-range": GOOD.replace("2 0 1\n", "2 0 2\n"),
    "negative-scope": GOOD.replace("2 0 1\n", "2 0 -1\n"),
    "repeated-variable": GOOD.replace("2 0 1\n", "2 1 1\n"),
    "table-size": GOOD.replace("4 1 2 3 4\n", "3 1 2 3\n"),
    "zero-labels": GOOD.replace("2 2\n2\n", "2 0\n2\n"),
    "huge-table": "MARKOV\n4\n1000 1000 1000 1000\n1\n4 0 1 2 3\n1000000000000 1 2\n",
    "huge-variable": "MARKOV\n1\n1000000000000\n0\n",
    "huge-count": "MARKOV\n1000000000000\n2 2\n0\n",
    "trailing": GOOD + "7\n",
    "header": GOOD.replace("MARKOV", "MARKOW"),
    "empty": "",
    "blank": " \n\n",
    "binary": bytes(range(256)) * 40,
    "broken-gzip": b"\x1f\x8b\x08\x00rubbish",
    "broken-xz": b"\xfd7zXZ\x00rubbish",
}


@pytest.fixture
def refuse(invoke: Callable[..., Any]) -> Callable[..., str]:
    """Call, expect a refusal in one line that leaves no file, and return the line."""

    def call(*args: Any, **extra: Any) -> str:
        before = sorted(p.name for p in Path().iterdir())
        result = invoke(*args, **extra)
        assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
        assert result.stdout == ""
        assert result.stderr.startswith(PREFIX)
        assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
        assert "Traceback" not in result.stderr
        assert sorted(p.name for p in Path().iterdir()) == before
        return str(result.stderr)

    return call


@pytest.mark.parametrize("name", BAD_MODELS)
@pytest.mark.parametrize("command", ["solve", "compare", "info"])
def test_bad_models(refuse: Callable[..., str], name: str, command: str, tmp_path: Path) -> None:
    text = BAD_MODELS[name]
    path = tmp_path / f"{name}.uai"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    extra = ("--task", "MAR", "-o", "out.MAR", "--trace", "t.csv") if command == "solve" else ()
    assert f"{name}.uai" in refuse(command, path, *extra)


def test_bad_model_on_stdin(refuse: Callable[..., str]) -> None:
    assert "<stdin>:" in refuse("solve", "-", input=BAD_MODELS["negative-entry"])


def test_good_model_is_good(invoke: Callable[..., Any]) -> None:
    Path("good.uai").write_text(GOOD)
    assert invoke("solve", "good.uai").exit_code == 0


BAD_EVIDENCE = {
    "variable-out-of-range": "1 20 0",
    "label-out-of-range": "1 0 2",
    "negative": "1 -1 0",
    "count": "2 0 0",
    "word": "1 a 0",
    "contradiction": "2 0 0 0 1",
    "two-samples": "2 1 0 0 1 0 1",
}


@pytest.mark.parametrize("name", BAD_EVIDENCE)
@pytest.mark.parametrize("command", ["solve", "compare", "info"])
def test_bad_evidence(refuse: Callable[..., str], models: Path, name: str, command: str) -> None:
    Path("bad.evid").write_text(BAD_EVIDENCE[name] + "\n")
    line = refuse(command, models / "grid.uai", "--evidence", "bad.evid")
    assert "bad.evid" in line


def test_evidence_counted_from_1_has_no_0(refuse: Callable[..., str], models: Path) -> None:
    args = ("--evidence", models / "grid.evid", "--evidence-base", 1)
    assert "counted from 1" in refuse("solve", models / "grid.uai", *args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--rule", "nonsense"), "unknown rule 'nonsense', expected one of: sweep"),
        (("--rule", "adhoc", "--set", "gamma=1"), "adhoc has no parameter 'gamma'"),
        (("--set", "max_iters=3"), "no parameter 'max_iters'"),
        (("--rule", "adhoc", "--set", "eta=2"), "eta=2"),
        (("--rule", "adhoc", "--set", "eta=nan"), "eta=nan"),
        (("--rule", "adhoc", "--set", "eta=half"), "eta='half'"),
        (("--set", "step"), "expected key=value"),
        (("--set", "=1"), "expected key=value"),
        (("--set", "step=1", "--set", "step=0.5"), "twice"),
        (("--rule", "fixed", "--set", "step=huge"), "step='huge'"),
        (("--budget", "0"), "budget=0.0"),
        (("--budget", "-1"), "budget=-1.0"),
        (("--budget", "nan"), "budget=nan"),
        (("--budget", "soon"), "--budget"),
        (("--max-iters", "-1"), "--max-iters"),
        (("--max-iters", "1.5"), "--max-iters"),
        (("--tol", "-1"), "tol=-1.0"),
        (("--tol", "nan"), "tol=nan"),
        (("--threads", "0"), "--threads"),
        (("--seed", "-1"), "--seed"),
        (("--init", "middle"), "--init"),
        (("--dtype", "float16"), "--dtype"),
        (("--kernels", "cuda9"), "--kernels"),
        (("--keep", "worst"), "--keep"),
        (("--task", "SUM"), "--task"),
        (("--evidence-base", "2"), "--evidence-base"),
        (("-o", "x"), "-o needs --task"),
        (("--task", "MAR", "--json"), "both write to stdout"),
        (("--task", "MAR", "-o", "x", "--trace", "x"), "same file"),
        (("--trace", "-"), "expected a file name"),
        (("--max-iterz", "3"), "--max-iters"),  # click's words for it differ
        (("--evidence", "missing.evid"), "missing.evid: no such file"),
        (("extra",), "extra"),
    ],
)
def test_bad_options_of_solve(
    refuse: Callable[..., str], models: Path, args: tuple[str, ...], words: str
) -> None:
    assert words in refuse("solve", models / "grid.uai", *args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("slove",), "did you mean 'solve'?"),
        (("dance",), "expected one of: solve"),
        (("--verbose",), "--verbose"),
        (("solve",), "MODEL"),
        (("solve", "missing.uai"), "missing.uai: no such file"),
        (("solve", "."), "is a directory"),
        (("solve", "-", "--evidence", "-"), "can't both come from standard input"),
        (("compare", "missing.uai"), "missing.uai: no such file"),
        (("info", "missing.uai"), "missing.uai: no such file"),
        (("make",), "Missing command"),
        (("make", "torus"), "torus"),
        (("make", "grid", "--rows", "0"), "--rows"),
        (("make", "grid", "--strength", "nan"), "strength=nan"),
        (("make", "grid", "--strength", "-1"), "strength=-1.0"),
        (("make", "grid", "--strength", "1e6"), "span"),
        (("make", "grid", "--n-labels", "1"), "--n-labels"),
        (("make", "grid", "--labels", "3"), "--n-labels"),
        (("make", "grid", "--json"), "--json and the model both write to stdout"),
        (("cooccurrence", "maps", "--json"), "--json and the counts both write to stdout"),
        (("make", "grid", "--rows", "10000000", "--cols", "10000000"), "available"),
        (("make", "rbm", "--visible", "10000000", "--hidden", "10000000"), "available"),
        (("make", "segmentation", "--regions", "1000000000000"), "available"),
        (("make", "segmentation", "--noise", "-1"), "noise=-1.0"),
        (("make", "grid", "-o", "no/such/folder.uai"), "folder doesn't exist"),
        (("doctor", "--loud"), "--loud"),
    ],
)
def test_bad_calls(refuse: Callable[..., str], args: tuple[str, ...], words: str) -> None:
    assert words in refuse(*args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--rules", "fixed,nonsense"), "unknown rule 'nonsense'"),
        (("--rules", ","), "--rules is empty"),
        (("--plot", "x.gif"), "ending in .png, .svg or .pdf"),
        (("--plot", "x.png", "--no-plot"), "contradict"),
        (("--plot", "no/x.png"), "folder doesn't exist"),
        (("--budget", "0"), "budget=0.0"),
    ],
)
def test_bad_options_of_compare(
    refuse: Callable[..., str], models: Path, args: tuple[str, ...], words: str
) -> None:
    assert words in refuse("compare", models / "grid.uai", *args)


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_unwritable_targets_are_found_before_the_run(
    refuse: Callable[..., str],
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    replace_infer: Callable[..., None],
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the run began")

    replace_infer(never)
    monkeypatch.setattr("proxfield.cli.running.read_model", never)
    task = ("--task", "MAR") if option == "-o" else ()

    def line(target: Any) -> str:
        return refuse("solve", models / "grid.uai", *task, option, target)

    assert "folder doesn't exist" in line("no/such/file")
    assert "is a directory" in line(tmp_path)
    assert "same file" in line(models / "grid.uai")
    (tmp_path / "plain").write_text("")
    assert "can't write" in line("plain/file")
    (tmp_path / "locked").mkdir(mode=0o500)
    if not os.access("locked", os.W_OK):  # the superuser may write anywhere
        assert "permission denied" in line("locked/file")


def test_a_failed_write_leaves_the_old_file(
    invoke: Callable[..., Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proxfield.io.files.os.fsync", full)
    Path("out").write_text("old")
    result = invoke("solve", models / "grid.uai", "--task", "MAR", "-o", "out")
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert Path("out").read_text() == "old"
    assert [p.name for p in Path().iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (OSError(5, "Input/output error", "disk"), "disk: Input/output error"),
    ],
)
def test_failures_of_the_machine(
    refuse: Callable[..., str],
    models: Path,
    replace_infer: Callable[..., None],
    error: Exception,
    words: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    replace_infer(fail)
    assert words in refuse("solve", models / "grid.uai")


def test_bugs_are_one_line_or_a_traceback(
    invoke: Callable[..., Any],
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    replace_infer: Callable[..., None],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("not\nforeseen")

    monkeypatch.delenv("PROXFIELD_DEBUG", raising=False)
    replace_infer(fail)
    result = invoke("solve", models / "grid.uai")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{PREFIX}ZeroDivisionError: not foreseen; this is a bug")
    assert "PROXFIELD_DEBUG=1" in result.stderr
    assert result.stderr.count("\n") == 1
    monkeypatch.setenv("PROXFIELD_DEBUG", "1")
    result = invoke("solve", models / "grid.uai")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_warnings_are_one_line(
    invoke: Callable[..., Any], models: Path, replace_infer: Callable[..., None]
) -> None:
    import warnings

    from proxfield.core.solve.infer import infer

    def warn(*args: Any, **options: Any) -> Any:
        warnings.simplefilter("always")
        warnings.warn("look\nout", stacklevel=1)
        return infer(*args, **options)

    replace_infer(warn)
    assert invoke("solve", models / "grid.uai").stderr == "proxfield: warning: look out\n"


def test_the_work_of_every_command_is_found() -> None:
    """Commands name it by module and function, as text."""
    for path in Path(commands.__file__).parent.glob("*.py"):
        for place in re.findall(r'done_by\("(.*?)"', path.read_text(encoding="utf-8")):
            module, _, name = place.partition(":")
            assert callable(getattr(import_module(f"proxfield.cli.{module}"), name)), place
