"""Functions that travel to workers, and folders of small images."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxfield.errors import InputError
from proxfield.io.images import write_labels, write_probabilities


def square(x: int) -> int:
    return x * x


def square_slowly(x: int) -> int:
    time.sleep(0.05)
    return x * x


def die_once(x: int, folder: str, victims: tuple[int, ...]) -> int:
    """Note each call; at the first call for a victim, kill this process."""
    notes = Path(folder) / f"{x}"
    first = not notes.exists()
    with notes.open("a") as stream:
        stream.write("called\n")
    if first and x in victims:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return x * x


def die_at_5(x: int) -> int:
    if x == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def die_always(x: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def refuse_3(x: int) -> int:
    if x == 3:
        raise InputError("3 isn't wanted", path="three.txt")
    return x


def where(_: int) -> str:
    return str(Path.cwd())


def make_images(folder: Path, count: int, size: tuple[int, int] = (24, 30)) -> None:
    """Images and probabilities of three labels, named alike."""
    rng = np.random.default_rng(0)
    for k in range(count):
        labels = (np.indices(size).sum(axis=0) // 9 + k) % 3
        (folder / "images").mkdir(exist_ok=True, parents=True)
        (folder / "probs").mkdir(exist_ok=True)
        write_labels(folder / "images" / f"i{k:02d}.png", 80 * labels)
        p = np.exp(1.5 * np.eye(3)[labels] + rng.normal(0, 0.7, (*size, 3)))
        write_probabilities(folder / "probs" / f"i{k:02d}.npy", p / p.sum(-1, keepdims=True))


def make_scene(size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """An image, and probabilities of its three labels."""
    rng = np.random.default_rng(0)
    labels = np.indices(size).sum(axis=0) // 19 % 3
    image = (80 * labels[..., None] + rng.normal(20, 9, (*size, 3))).clip(0, 255)
    p = np.exp(1.5 * np.eye(3)[labels] + rng.normal(0, 0.7, (*size, 3)))
    return image.astype(np.uint8), (p / p.sum(-1, keepdims=True)).astype(np.float32)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def children_of(pid: int, command: str = "") -> set[int]:
    """Processes that were started by a process, of any depth, with a word in their command."""
    rows = subprocess.run(
        ["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True
    )
    parents, commands = {}, {}
    for line in rows.stdout.splitlines()[1:]:
        child, parent, args = line.split(None, 2)
        if "resource_tracker" not in args:
            parents[int(child)], commands[int(child)] = int(parent), args
    found = {pid}
    while more := {c for c, p in parents.items() if p in found} - found:
        found |= more
    return {x for x in found - {pid} if command in commands[x]}


def hide_package(name: str) -> None:
    """Make a package look as if it weren't installed in this process."""
    sys.modules[f"hidden {name}"] = sys.modules.get(name)  # type: ignore[assignment]
    sys.modules[name] = None  # type: ignore[assignment]


def show_package(name: str) -> None:
    """Undo `hide_package`."""
    there = sys.modules.pop(f"hidden {name}")
    del sys.modules[name]
    if there is not None:
        sys.modules[name] = there
