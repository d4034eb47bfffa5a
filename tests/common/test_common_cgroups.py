"""Limits of containers and batch jobs, from files like those of Linux."""

from pathlib import Path

import psutil
import pytest

from proxfield.core.common import memory

GIB = 2**30


class Tree:
    """Control groups in a folder; this process belongs to ``job``, inside ``slurm``."""

    def __init__(self, folder: Path) -> None:
        self.root, self.membership = folder / "cgroup", folder / "self"
        self.root.mkdir()
        self.join("/slurm/job")

    def join(self, path: str) -> None:
        self.membership.write_text(f"1:name=old:/elsewhere\n0::{path}\n")

    def write(self, group: str, **files: str) -> None:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text + "\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    out = Tree(tmp_path)
    monkeypatch.setattr(memory, "ROOT", out.root)
    monkeypatch.setattr(memory, "MEMBERSHIP", out.membership)
    return out


def test_without_groups_there_is_no_limit(tree: Tree) -> None:
    assert memory.memory_left() is None and memory.cpu_limit() is None


def test_max_is_no_limit(tree: Tree) -> None:
    tree.write("slurm/job", memory_max="max", memory_current="17", cpu_max="max 100000")
    assert memory.memory_left() is None and memory.cpu_limit() is None


def test_the_tightest_group_counts(tree: Tree) -> None:
    tree.write("slurm/job", memory_max=str(8 * GIB), memory_current=str(GIB), cpu_max="max 100000")
    tree.write(
        "slurm", memory_max=str(9 * GIB), memory_current=str(3 * GIB), cpu_max="250000 100000"
    )
    assert memory.memory_left() == 6 * GIB
    assert memory.cpu_limit() == 3  # two and a half


def test_limits_of_the_root_are_those_of_a_container(tree: Tree) -> None:
    tree.join("/")
    tree.write(".", memory_max=str(GIB), memory_current=str(GIB // 4), cpu_max="50000 100000")
    assert memory.memory_left() == GIB * 3 // 4
    assert memory.cpu_limit() == 1


def test_a_group_above_what_is_mounted(tree: Tree) -> None:
    tree.join("/../other")
    tree.write(".", memory_max="1000", memory_current="1", cpu_max="200000 100000")
    assert memory.memory_left() == 999 and memory.cpu_limit() == 2


def test_pages_of_files_are_given_up(tree: Tree) -> None:
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7"
    tree.write("slurm/job", memory_max=str(2 * GIB), memory_current=str(2 * GIB), memory_stat=stat)
    assert memory.memory_left() == GIB


def test_more_used_than_allowed_leaves_nothing(tree: Tree) -> None:
    tree.write("slurm/job", memory_max="100", memory_current="150")
    assert memory.memory_left() == 0


@pytest.mark.parametrize("text", ["", "100000", "a b", "100000 0", "-1 100000"])
def test_damaged_files_are_no_limit(tree: Tree, text: str) -> None:
    tree.write("slurm/job", cpu_max=text, memory_max=text, memory_current="1")
    assert memory.cpu_limit() is None


def test_memory_is_the_smaller_of_both(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    free = psutil.virtual_memory()._replace(available=5 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert memory.available_memory() == 5 * GIB
    tree.write("slurm/job", memory_max=str(4 * GIB), memory_current="0")
    assert memory.available_memory() == 4 * GIB
    tree.write("slurm/job", memory_max=str(6 * GIB))
    assert memory.available_memory() == 5 * GIB


def test_a_system_that_does_not_tell(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    assert memory.available_memory() is None
    tree.write("slurm/job", memory_max="1000", memory_current="1")
    assert memory.available_memory() == 999


def test_cores_are_those_allowed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def cpu_affinity(self) -> list[int]:
            return [0, 1, 2, 5, 6, 7]

    count = memory.available_cores.__wrapped__
    monkeypatch.setattr(psutil, "Process", Process)
    assert count() == 6
    tree.write("slurm/job", cpu_max="400000 100000")
    assert count() == 4
    tree.write("slurm/job", cpu_max="900000 100000")
    assert count() == 6


def test_cores_without_affinity(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "Process", object)  # as on macOS
    monkeypatch.setattr(psutil, "cpu_count", lambda: 12)
    assert memory.available_cores.__wrapped__() == 12
