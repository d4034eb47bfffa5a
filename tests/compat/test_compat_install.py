"""Taking over the import name, and giving it back."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from proxfield import compat

NAMES = ("pydensecrf", "pydensecrf.densecrf", "pydensecrf.eigen", "pydensecrf.utils")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No pydensecrf, neither before nor after."""
    for name in [n for n in sys.modules if n.split(".")[0] == "pydensecrf"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    compat.uninstall()
    for name in [n for n in sys.modules if n.split(".")[0] == "pydensecrf"]:
        del sys.modules[name]


@pytest.fixture
def original() -> dict[str, ModuleType]:
    """A package of that name that is imported already."""
    modules = {name: ModuleType(name) for name in ("pydensecrf", "pydensecrf.densecrf")}
    modules["pydensecrf"].__file__ = "elsewhere/pydensecrf/__init__.py"
    sys.modules.update(modules)
    return modules


def test_install_registers_every_module() -> None:
    compat.install()
    assert compat.installed()
    for name in NAMES:
        assert importlib.import_module(name).__name__ == f"proxfield.compat.{name}"
    from pydensecrf.densecrf import DenseCRF  # type: ignore[import-not-found]

    from proxfield.compat.pydensecrf import densecrf

    assert DenseCRF is densecrf.DenseCRF


def test_twice_is_as_good_as_once() -> None:
    compat.install()
    before = {name: sys.modules[name] for name in NAMES}
    compat.install()
    assert {name: sys.modules[name] for name in NAMES} == before
    compat.uninstall()
    compat.uninstall()
    assert not compat.installed() and not set(NAMES) & set(sys.modules)


def test_an_imported_original_is_not_replaced(original: dict[str, ModuleType]) -> None:
    with pytest.raises(RuntimeError, match=r"already imported \(from elsewhere.*force=True"):
        compat.install()
    assert {name: sys.modules.get(name) for name in original} == original
    assert "pydensecrf.utils" not in sys.modules


def test_force_replaces_it_and_uninstall_puts_it_back(original: dict[str, ModuleType]) -> None:
    compat.install(force=True)
    compat.install()
    compat.install(force=True)
    assert compat.installed()
    compat.uninstall()
    assert not compat.installed()
    assert {name: sys.modules.get(name) for name in NAMES if name in sys.modules} == original


def test_uninstall_leaves_an_original_alone(original: dict[str, ModuleType]) -> None:
    compat.uninstall()
    assert {name: sys.modules.get(name) for name in original} == original


# ---- unchanged scripts ----

SCRIPT = """
import sys
import numpy as np
import pydensecrf.densecrf as dcrf
import beside
from pydensecrf.utils import unary_from_labels

labels = np.array([[1, 1, 2], [1, 0, 2]])
crf = dcrf.DenseCRF2D(3, 2, 2)
crf.setUnaryEnergy(unary_from_labels(labels, 2, gt_prob=0.9))
crf.addPairwiseGaussian(sxy=1, compat=1)
print(np.argmax(crf.inference(3), axis=0).reshape(2, 3).tolist())
print(__name__, sys.argv[1:], beside.WORD)
if "fail" in sys.argv:
    sys.exit(7)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "script.py").write_text(SCRIPT)
    (folder / "sub" / "beside.py").write_text("WORD = 'found'")
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def test_a_script_runs_unchanged(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "proxfield.compat", "sub/script.py", "a", "--b")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first in ("[[0, 0, 1], [0, 0, 1]]", "[[0, 0, 1], [0, 1, 1]]")
    assert second == "__main__ ['a', '--b'] found"


def test_the_same_through_install(tmp_path: Path) -> None:
    code = "import proxfield.compat; proxfield.compat.install(); import sys; sys.argv = ['x', 'y']"
    done = run(
        tmp_path, "-c", f"{code}; sys.path.insert(0, 'sub'); exec(open('sub/script.py').read())"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("__main__ ['y'] found\n")


def test_exit_codes(tmp_path: Path) -> None:
    assert run(tmp_path, "-m", "proxfield.compat", "sub/script.py", "fail").returncode == 7
    for bad in ([], ["missing.py"], ["--what"]):
        done = run(tmp_path, "-m", "proxfield.compat", *bad)
        assert done.returncode == 2 and done.stdout == "" and "proxfield.compat" in done.stderr
    assert "usage" in run(tmp_path, "-m", "proxfield.compat", "--help").stdout


def test_a_module_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "import sys, pydensecrf.utils as u; print(u.__name__, sys.argv[1:])"
    )
    done = run(tmp_path, "-m", "proxfield.compat", "-m", "inner", "z")
    assert done.stdout == "proxfield.compat.pydensecrf.utils ['z']\n", done.stderr


def test_importing_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, proxfield.compat; proxfield.compat.install(); import pydensecrf.densecrf, "
        "pydensecrf.utils; print(sorted({'numba', 'scipy', 'torch'} & set(sys.modules)))"
    )
    assert run(tmp_path, "-c", code).stdout == "[]\n"
