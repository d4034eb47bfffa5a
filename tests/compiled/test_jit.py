"""The kernel cache: a per-user folder, named after the sources, with a fallback."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
from platformdirs import windows
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

import proxfield
from proxfield.core.compiled import jit, notice

COLOR_A_TRIANGLE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from proxfield.core.compiled.graphs import greedy_colors
    import numpy as np
    row, column = np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1], dtype=np.int32)
    print(greedy_colors(row, column).tolist())
print([str(w.message) for w in caught])
import proxfield
print(proxfield.__file__)
"""


COUNT_HITS = """
from proxfield.core.compiled.jit import kernel_cache, shared_kernels
print(sum(greedy_colors.stats.cache_hits.values()), sum(greedy_colors.stats.cache_misses.values()))
print(kernel_cache())
print(shared_kernels())
"""
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


def heed_permissions() -> None:
    """Before a process starts: not even root may write where permissions say no."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def run(code: str, package: Path, start: Callable[[], None] | None = None, **env: str) -> list[str]:
    """Run code in a fresh process with a copy of the package; returns lines of its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PROXFIELD", "XDG"))}
    clean |= {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **env}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean,
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=start,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in a folder that nobody may write to."""
    root = tmp_path_factory.mktemp("site")
    source = Path(proxfield.__file__).parent
    shutil.copytree(source, root / "proxfield", ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted(root.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root.chmod(0o555)
    yield root
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_read_only_package_folder(package: Path, tmp_path: Path) -> None:
    before = files(package)
    cache = tmp_path / "cache"
    colors, caught, where = run(COLOR_A_TRIANGLE, package, PROXFIELD_CACHE_DIR=str(cache))
    assert colors == "[0, 1, 2]"
    assert caught == "[]"
    assert where.startswith(str(package))
    assert files(package) == before
    assert list(cache.glob("kernels-*/**/*.nbi")), "nothing was cached"


def test_unwritable_cache_warns_and_works(package: Path, tmp_path: Path) -> None:
    """A file stands where the folder should be, which stops even root."""
    blocked = tmp_path / "blocked"
    blocked.write_text("not a folder")
    colors, caught, _ = run(
        COLOR_A_TRIANGLE, package, PROXFIELD_CACHE_DIR=str(blocked), TMPDIR=str(tmp_path)
    )
    assert colors == "[0, 1, 2]"
    assert "can't write compiled kernels" in caught
    assert "PROXFIELD_CACHE_DIR" in caught
    assert list(tmp_path.glob("proxfield-*/kernels-*/**/*.nbi"))


def test_second_process_loads_instead_of_compiling(package: Path, tmp_path: Path) -> None:
    code = COLOR_A_TRIANGLE + "print(sum(greedy_colors.stats.cache_hits.values()))\n"
    hits = [run(code, package, PROXFIELD_CACHE_DIR=str(tmp_path))[-1] for _ in range(2)]
    assert hits == ["0", "1"]


@pytest.fixture
def read_only_cache(package: Path, tmp_path: Path) -> Iterator[Path]:
    """A warm cache that processes started with `heed_permissions` can't write to."""
    if not sys.platform.startswith("linux"):
        pytest.skip("permissions are taken from root by a call of Linux")
    cache = tmp_path / "cache"
    run(COLOR_A_TRIANGLE, package, PROXFIELD_CACHE_DIR=str(cache))
    (tmp_path / "tmp").mkdir()
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        probe = f"import os; print(os.access({str(cache)!r}, os.W_OK))"
        writable = run(probe, package, heed_permissions)
    except subprocess.SubprocessError:
        writable = ["unknown"]
    if writable != ["False"]:
        pytest.skip("this user may write to folders that are read-only")
    yield cache
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_kernels_of_a_read_only_cache_are_used(
    package: Path, read_only_cache: Path, tmp_path: Path
) -> None:
    code, before = COLOR_A_TRIANGLE + COUNT_HITS, files(read_only_cache)
    env = {"PROXFIELD_CACHE_DIR": str(read_only_cache), "TMPDIR": str(tmp_path / "tmp")}
    colors, caught, _, counts, written, read = run(code, package, heed_permissions, **env)
    assert (colors, caught, counts) == ("[0, 1, 2]", "[]", "1 0")
    assert Path(written).is_relative_to(tmp_path / "tmp")
    assert Path(read).parent == read_only_cache
    assert files(read_only_cache) == before
    assert all(path.is_symlink() for path in Path(written).rglob("*.nb?"))


def test_new_kernels_are_written_beside_a_read_only_cache(
    package: Path, read_only_cache: Path, tmp_path: Path
) -> None:
    other = COLOR_A_TRIANGLE.replace("[0, 2, 4, 6]", "[0, 2, 4, 6], dtype=np.int32")
    env = {"PROXFIELD_CACHE_DIR": str(read_only_cache), "TMPDIR": str(tmp_path / "tmp")}
    before = files(read_only_cache)
    for code, expected in ((other, "0 1"), (other, "1 0"), (COLOR_A_TRIANGLE, "1 0")):
        *_, counts, written, _ = run(code + COUNT_HITS, package, heed_permissions, **env)
        assert counts == expected
    assert files(read_only_cache) == before
    kernels = sorted(Path(written).rglob("*.nbc"))
    assert [path.is_symlink() for path in kernels] == [True, False]


def test_links_are_of_one_state_of_a_shared_cache(tmp_path: Path) -> None:
    """Links to code that was compiled again, under an index that wasn't, would be mixed up."""
    there = tmp_path / "kernels-1"
    (there / "inner").mkdir(parents=True)
    for name in ("f.nbi", "f.1.nbc", "f.nbi.tmp.123"):
        (there / "inner" / name).write_text(name)
    linked = [jit.link_kernels(there, jit.kernel_files(there), tmp_path) for _ in range(2)]
    assert linked[0] == linked[1]
    assert {path.name for path in linked[0].rglob("*.*")} == {"f.nbi", "f.1.nbc"}
    assert (linked[0] / "inner" / "f.nbi").read_text() == "f.nbi"
    (there / "inner" / "f.1.nbc").write_text("compiled again")
    assert jit.link_kernels(there, jit.kernel_files(there), tmp_path) != linked[0]


def test_kernels_are_copied_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "kernels-1"
    there.mkdir()
    (there / "f.nbi").write_text("index")

    def refuse(*_: object) -> None:
        raise OSError("a required privilege is not held")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    linked = jit.link_kernels(there, jit.kernel_files(there), tmp_path)
    assert (linked / "f.nbi").read_text() == "index"


@pytest.mark.parametrize(
    "source",
    [
        "core/compiled/math.py",
        "core/filters/numba/lattice.py",
        "core/engines/numba/general.py",
        "learn/kernels.py",
        "people/numba/occupancy_kernels.py",
        "people/numba/__init__.py",
        "core/engines/plan.py",
        "core/engines/triton/sweeps/sweeps.py",
    ],
)
def test_cache_folder_depends_on_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("PROXFIELD_CACHE_DIR", str(tmp_path / "cache"))
    same = jit.kernel_cache.__wrapped__()
    copy = tmp_path / "proxfield"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(proxfield.__file__).parent, copy, ignore=ignored)
    monkeypatch.setattr(jit, "__file__", str(copy / "core" / "compiled" / "jit.py"))
    assert jit.kernel_cache.__wrapped__() == same
    with (copy / source).open("a") as file:
        file.write("# an edit\n")
    assert jit.kernel_cache.__wrapped__() != same


def test_sources_hold_every_kernel() -> None:
    """A kernel elsewhere would stay in the cache when a function that it calls is edited."""
    package = Path(proxfield.__file__).parent
    sources = jit.kernel_sources(package)
    used = re.compile(r"^from proxfield.core.compiled.jit import (.*?\)|.*)$", re.M | re.S)
    makers = {"kernel", "parallel_kernel", "integer_kernel", *jit.MAKERS}
    for path in package.rglob("*.py"):
        for names in used.findall(path.read_text(encoding="utf-8").partition("\n\n\n")[0]):
            if makers & set(re.findall(r"\w+", names)):
                assert path in sources, path
    assert len(sources) < 80, "most edits leave the cache as it is"


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROXFIELD_CACHE_DIR", str(tmp_path))
    assert jit.cache_root() == tmp_path
    monkeypatch.delenv("PROXFIELD_CACHE_DIR")
    monkeypatch.setattr(jit, "PlatformDirs", Unix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jit.cache_root() == tmp_path / "xdg" / "proxfield"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert jit.cache_root() == Path("~/.cache/proxfield").expanduser()
    monkeypatch.setattr(jit, "PlatformDirs", MacOS)
    assert jit.cache_root().parts[-2:] == ("Caches", "proxfield")


def test_cache_root_on_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PROXFIELD_CACHE_DIR", raising=False)
    monkeypatch.setattr(windows, "get_win_folder", lambda name: str(tmp_path / name))
    monkeypatch.setattr(jit, "PlatformDirs", windows.Windows)
    assert jit.cache_root() == tmp_path / "CSIDL_LOCAL_APPDATA" / "proxfield"


def test_compiling_is_announced_once() -> None:
    calls = []

    @numba.njit
    def double(x: float) -> float:
        return 2 * x

    with notice.when_compiling(lambda text: calls.append(1)):
        double(1.0)
        double(np.float32(1.0))
    assert calls == [1]
    with notice.when_compiling(lambda text: calls.append(2)):
        double(2.0)
    assert calls == [1]
    double(1)  # nobody listens any more
    assert calls == [1]


def test_only_old_kernels_of_other_versions_are_forgotten(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in ("kernels-old", "kernels-young", "notes"))
    for folder in (old, young, other):
        folder.mkdir()
        (folder / "file").write_text("x")
    month_ago = young.stat().st_mtime - 31 * 86400
    for path in (old / "file", old, other / "file", other, young):  # but not young / "file"
        os.utime(path, (month_ago, month_ago))
    jit._forget_old(tmp_path)
    assert not old.exists()
    assert young.exists() and other.exists()


@jit.inlined
def triple(x: float) -> float:
    return 3 * x


def test_helpers_are_for_kernels_and_run_uncompiled_elsewhere() -> None:
    @numba.njit
    def call(x: float) -> float:
        return triple(x)

    assert call(2.0) == 6.0
    assert triple("ab") == "ababab"
