"""``compare``, ``info``, ``make`` and ``doctor``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import proxfield as pf
from proxfield import generate
from proxfield.cli.main import cli
from proxfield.cli.progress import Display
from proxfield.core.compiled import jit
from proxfield.core.compiled.simd import choose
from proxfield.core.engines.plan import damping_for
from proxfield.core.solve.curvature import Curvature
from proxfield.io import format_model

# ---- compare ----


def test_compare_prints_a_table_and_draws(invoke: Callable[..., Any], models: Path) -> None:
    pytest.importorskip("matplotlib")
    result = invoke("compare", models / "repulsive.uai", "--max-iters", 200)
    assert result.exit_code == 0
    assert result.stderr == "picture: repulsive-compare.png\n"
    assert Path("repulsive-compare.png").read_bytes().startswith(b"\x89PNG")
    header, *rows = result.stdout.splitlines()
    assert header.split()[0] == "rule"
    assert [row.lstrip("* ").split()[0] for row in rows] == [
        name for name, rule in pf.RULES.items() if not rule.special
    ]
    starred = [row.split() for row in rows if row.startswith("*")]
    values = [float(row.lstrip("* ").split()[1]) for row in rows]
    assert len(starred) == 1
    assert float(starred[0][2]) == min(values)


def test_compare_json(invoke: Callable[..., Any], models: Path) -> None:
    args = ("--rules", "fixed, momentum,fixed", "--no-plot", "--json", "--seed", 4, "--threads", 1)
    result = invoke("compare", models / "grid.uai", *args)
    data = json.loads(result.stdout)
    assert result.stderr == ""
    assert [r["rule"] for r in data["results"]] == ["fixed", "momentum"]
    assert {"F": data["seed"], "threads": data["threads"]} == {"F": 4, "threads": 1}
    best = min(data["results"], key=lambda r: r["free_energy"])
    assert data["best"] == best["rule"]
    assert not list(Path().iterdir())


def test_compare_takes_a_type_and_a_device(invoke: Callable[..., Any], models: Path) -> None:
    args = ("compare", models / "grid.uai", "--rules", "fixed", "--no-plot", "--json")
    single = json.loads(invoke(*args, "--dtype", "float32", "--device", "cpu").stdout)
    double = json.loads(invoke(*args).stdout)
    assert [single[k] for k in ("device", "kernels", "dtype")] == ["cpu", "cpu", "float32"]
    assert [double[k] for k in ("device", "kernels", "dtype")] == ["cpu", "cpu", "float64"]
    field = pf.read_uai(models / "grid.uai")
    there = pf.infer(field, "fixed", dtype="float32")
    assert single["results"][0]["free_energy"] == there.free_energy


def leaves(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The commands that do something."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, *path, name)


WITH_SUMMARY = [leaf for leaf in leaves(cli) if leaf[0] != ("studio",)]  # a server has none


@pytest.mark.parametrize(("path", "command"), WITH_SUMMARY, ids=str)
def test_json_means_the_same_everywhere(path: tuple[str, ...], command: click.Command) -> None:
    options = {o: p for p in command.params for o in p.opts}
    flag = options["--json"]
    assert isinstance(flag, click.Option)
    assert flag.is_flag and flag.help == "Print the summary as one JSON object; numbers that " + (
        "aren't finite are null."
    )
    assert options.get("-o") is options.get("--output")


def test_compare_takes_limits_evidence_and_stdin(invoke: Callable[..., Any], models: Path) -> None:
    args = ("--rules", "fixed", "--no-plot", "--json", "--max-iters", 3, "--tol", 0, "--budget", 9)
    evidence = ("--evidence", models / "grid.evid")
    data = json.loads(
        invoke("compare", "-", *args, *evidence, input=(models / "grid.uai").read_bytes()).stdout
    )
    assert data["n_observed"] == 2
    assert data["results"][0]["iterations"] == 3


@pytest.mark.parametrize(
    ("ending", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89")]
)
def test_compare_draws_what_the_name_says(
    invoke: Callable[..., Any], models: Path, ending: str, magic: bytes
) -> None:
    pytest.importorskip("matplotlib")
    path = Path(f"picture.{ending}")
    result = invoke("compare", models / "grid.uai", "--rules", "fixed,adam", "--plot", path)
    assert result.exit_code == 0
    assert path.read_bytes().startswith(magic)


def test_compare_without_matplotlib(
    invoke: Callable[..., Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plain = invoke("compare", models / "grid.uai", "--rules", "fixed")
    assert plain.exit_code == 0
    assert "fixed" in plain.stdout
    assert plain.stderr.count("\n") == 1
    assert 'pip install "proxfield[plot]"' in plain.stderr
    asked = invoke("compare", models / "grid.uai", "--rules", "fixed", "--plot", "x.png")
    assert asked.exit_code == 2
    assert "fixed" in asked.stdout
    assert asked.stderr.startswith("proxfield: error: ")
    assert asked.stderr.count("\n") == 1
    assert 'pip install "proxfield[plot]"' in asked.stderr
    assert not Path("x.png").exists()


def test_compare_interrupted(
    invoke: Callable[..., Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Any, progress: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxfield.cli.progress.Display.update", interrupt)
    args = ("--no-plot", "--json", "--tol", 0)
    result = invoke("compare", models / "repulsive.uai", *args)
    assert result.exit_code == 130
    data = json.loads(result.stdout)
    assert [r["status"] for r in data["results"]] == ["interrupted"]


@pytest.mark.parametrize("name", ["hard", "impossible", "contradiction", "triple"])
def test_compare_of_strange_models(invoke: Callable[..., Any], models: Path, name: str) -> None:
    result = invoke("compare", models / f"{name}.uai")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1 + sum(not r.special for r in pf.RULES.values())


def test_compilation_is_announced_once_in_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def compile_at_once(notify: Callable[[str], None]) -> Iterator[None]:
        notify("compiling kernels…")
        yield

    monkeypatch.setattr("proxfield.core.compiled.notice.when_compiling", compile_at_once)
    with Display() as display:
        for _ in range(3):
            with display.announcing_compilation():
                pass
    assert capsys.readouterr().err == "compiling kernels…\n"


# ---- info ----


def test_info_of_a_grid(invoke: Callable[..., Any], models: Path) -> None:
    data = json.loads(invoke("info", models / "grid.uai", "--json").stdout)
    assert (data["n_vars"], data["n_labels_min"], data["n_labels_max"]) == (20, 2, 2)
    assert data["factors_by_arity"] == {"1": 20, "2": 31}
    assert data["structure"]["ising_edges"] == 31
    assert data["structure"]["diagonals"] == 2
    field = pf.read_uai(models / "grid.uai")
    c, curvature = Curvature(field.lower(), field), data["curvature"]
    damping = float(damping_for(c.largest))
    assert curvature["lambda"] == pytest.approx(c.largest)
    assert curvature["mu"] == pytest.approx(c.smallest)
    assert curvature["lipschitz"] == pytest.approx(c.lipschitz)
    assert curvature["certified_damping"] == pytest.approx(damping)
    assert curvature["certified_step"] == pytest.approx(1 / (1 + damping))
    local = 1 / (1 + damping_for(c.local))
    assert curvature["local_step_min"] == pytest.approx(local.min())
    assert curvature["local_step_max"] == pytest.approx(local.max())


def test_info_for_people(invoke: Callable[..., Any], models: Path) -> None:
    text = invoke("info", models / "grid.uai", "--evidence", models / "grid.evid").stdout
    assert "20, 2 observed" in text
    assert "18 variables" in text
    assert "certified-local steps" in text
    assert "forbidden" not in text


def test_info_of_tables(invoke: Callable[..., Any], models: Path) -> None:
    data = json.loads(invoke("info", models / "triple.uai", "--json").stdout)
    assert data["structure"]["larger_tables_by_arity"] == {"3": 1}
    assert "tables over 3" in invoke("info", models / "triple.uai").stdout
    Path("potts.uai").write_text(format_model(generate.grid(3, 3, n_labels=4)))
    assert "Potts edges" in invoke("info", "potts.uai").stdout


def test_info_of_hard_models_uses_words(invoke: Callable[..., Any], models: Path) -> None:
    text = invoke("info", models / "hard.uai").stdout
    assert "forbidden configurations" in text
    assert "none while tables forbid" in text
    data = json.loads(invoke("info", models / "hard.uai", "--json").stdout)
    assert data["structure"]["forbidden_configurations"] == 3
    assert data["curvature"]["lambda"] is None
    assert data["curvature"]["certified_step"] is None
    impossible = invoke("info", models / "impossible.uai")
    assert impossible.exit_code == 0
    assert "no labelling has positive probability" in impossible.stdout
    data = json.loads(invoke("info", models / "impossible.uai", "--json").stdout)
    assert data["structure"]["infeasible"] is True
    assert data["curvature"] is None


def test_info_of_a_field_without_variables(invoke: Callable[..., Any]) -> None:
    Path("none.uai").write_text("MARKOV\n0\n\n0\n")
    for command in ("info", "solve"):
        assert invoke(command, "none.uai").exit_code == 0


# ---- make ----


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("grid", "--rows", 3, "--cols", 4), generate.grid(3, 4)),
        (
            ("grid", "--rows", 3, "--cols", 3, "--strength", 2, "--wrap", "--seed", 7),
            generate.grid(3, 3, strength=2, wrap=True, seed=7),
        ),
        (
            ("grid", "--rows", 2, "--cols", 3, "--n-labels", 3, "--attractive"),
            generate.grid(2, 3, n_labels=3, sign="attractive"),
        ),
        (
            ("grid", "--rows", 2, "--cols", 3, "--repulsive"),
            generate.grid(2, 3, sign="repulsive"),
        ),
        (
            ("rbm", "--visible", 4, "--hidden", 3, "--strength", 0.5, "--seed", 2),
            generate.rbm(4, 3, strength=0.5, seed=2),
        ),
        (
            ("segmentation", "--regions", 9, "--strength", 2, "--noise", 0.5, "--seed", 1),
            generate.segmentation(9, strength=2, noise=0.5, seed=1),
        ),
    ],
)
def test_make(invoke: Callable[..., Any], args: tuple[Any, ...], field: pf.Field) -> None:
    result = invoke("make", *args)
    assert result.exit_code == 0
    assert result.stdout == format_model(field)
    said = invoke("make", *args, "-o", "m.uai.xz").stdout
    assert said.splitlines()[0].split() == ["variables", str(field.n_vars)]
    data = json.loads(invoke("make", *args, "-o", "m.uai.xz", "--json").stdout)
    assert data == {
        "n_vars": field.n_vars,
        "n_labels": field.layout.common,
        "terms": list(field.kinds),
        "output": "m.uai.xz",
    }
    read = pf.read_uai("m.uai.xz")
    rng = np.random.default_rng(0)
    for _ in range(5):
        labels = rng.integers(0, field.cardinalities)
        assert read.energy(labels) == pytest.approx(field.energy(labels))


# ---- doctor ----


def test_doctor_says_where_kernels_are_read_and_written(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROXFIELD_CACHE_DIR", str(tmp_path / "shared"))
    monkeypatch.setattr("proxfield.core.compiled.jit._private_folder", lambda: tmp_path / "own")
    monkeypatch.setattr("proxfield.core.compiled.jit.is_writable", lambda folder: False)
    folder = jit._wanted_folder()
    folder.mkdir(parents=True)
    (folder / "f.nbi").write_text("of somebody else")
    jit.kernel_cache.cache_clear()
    try:
        data = json.loads(invoke("doctor", "--json").stdout)
        text = " ".join(invoke("doctor").stdout.split())
    finally:
        monkeypatch.undo()
        jit.kernel_cache.cache_clear()
    assert data["cache_writable"] is False
    assert data["shared_kernel_folder"] == str(folder)
    assert Path(data["kernel_folder"]).parent == tmp_path / "own"
    assert f"its kernels are used, new ones go to {data['kernel_folder']}" in text


def test_doctor(invoke: Callable[..., Any]) -> None:
    result = invoke("doctor", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["check"] == "ok"
    assert data["versions"]["proxfield"] == pf.__version__
    assert data["versions"]["numba"]
    assert data["cores"] >= 1 and data["threads"] >= 1
    assert data["simd"] == str(choose())
    assert data["cache_writable"] is True and data["cache_bytes"] > 0
    assert data["shared_kernel_folder"] is None
    text = invoke("doctor").stdout
    assert f"SIMD {choose()}" in " ".join(text.split())
    assert text.rstrip().endswith("ok")
    assert {"torch", "triton"} <= set(data["versions"])
    assert bool(data["gpus"]) == (data["gpu_problem"] is None)
    assert any(line.split()[0] == "GPU" for line in text.splitlines())


def test_doctor_without_torch(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.devices import cuda as backend

    monkeypatch.setattr(backend, "torch", None)
    monkeypatch.setattr(backend, "triton", None)
    line = 'none: a GPU needs torch and triton: pip install "proxfield[gpu]"'
    assert line in " ".join(invoke("doctor").stdout.split())


def test_doctor_names_gpus(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace as Fake

    from proxfield.core.devices import cuda as backend

    cards = [Fake(name=f"Card {k}", total_memory=(k + 1) << 30) for k in range(2)]
    cuda = Fake(device_count=lambda: 2, get_device_properties=lambda k: cards[k])
    monkeypatch.setattr(backend, "torch", Fake(cuda=cuda))
    monkeypatch.setattr(backend, "find_device", lambda name: Fake(type="cuda"))
    assert "Card 0, 1.0 GiB; Card 1, 2.0 GiB" in " ".join(invoke("doctor").stdout.split())

    def broken(name: str) -> Any:
        raise OSError("libcuda.so:\nno such file")

    monkeypatch.setattr(backend, "find_device", broken)
    result = invoke("doctor", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["gpus"] == []
    assert data["gpu_problem"] == "torch fails: OSError: libcuda.so: no such file"


def test_doctor_notices_a_wrong_answer(
    invoke: Callable[..., Any], replace_infer: Callable[..., None]
) -> None:
    from proxfield.core.solve.infer import infer

    def wrong(*args: Any, **options: Any) -> Any:
        result = infer(*args, **options)
        result.free_energy -= 1e-3
        return result

    replace_infer(wrong)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "came out wrong" in result.stderr
