"""Functions that travel to workers, and folders of small images."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

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


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
