"""Checkpoints: every rank's state in a file of its own, and files that say which belong together.

A set of files is complete before it is named, so that a run which is killed at any moment finds the
last complete one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO

import numpy as np

from proxfield.core.common.records import Record
from proxfield.core.engines.base import State
from proxfield.distributed.transport import Transport, fail_together
from proxfield.errors import InputError, UnsupportedError

FORMAT = 2


SLOT = ("buffers", "spins", "board", "numbers", "u", "v")
"""Tensors of a state of the engine cuda that say where it is."""
KNOWN = "known "
"""Before the names of what a state of the engine cpu knows about its marginals."""


def is_tensor(value: object) -> bool:
    """Whether it is a tensor of torch, which needn't be installed."""
    return hasattr(value, "detach")


def parts_of(state: State) -> Record:
    """Everything that a state holds, by name."""
    held = state.arrays
    values = dict(vars(held)) if hasattr(held, "__dict__") else {}
    slot, packed = values.pop("slot", None), values.pop("arrays", None)
    known = values.pop("known", None)
    if known is not None:  # cpu
        values.update({KNOWN + name: value for name, value in vars(known).items()})
    if slot is not None:  # cuda
        values = {"pending": held.pending}
        values.update({name: getattr(slot, name) for name in SLOT})
        values.update({f"extra {k}": v for k, v in held.extra.items()})
    if hasattr(packed, "_asdict"):  # cpu
        values.update(packed._asdict())
    if isinstance(values.get("sizes"), list):  # torch
        values["sizes"] = values["sizes"][0]
    return values


def restore(state: State, arrays: Record, values: Record) -> None:
    """Put a saved state into one of the same program."""
    parts, held = parts_of(state), state.arrays
    slot, packed = getattr(held, "slot", None), getattr(held, "arrays", None)
    rest = {k: v for k, v in values.items() if not k.startswith("memory ")}
    rest.pop("version", None)  # of unary energies, which are set again
    for name, value in {**rest, **arrays}.items():
        if slot is not None and name == "pending":
            held.pending[:] = value
        elif slot is not None:
            if isinstance(value, np.ndarray):
                value = import_module("torch").from_numpy(value).to(slot.buffers.device)
            own = getattr(slot, name, None)
            if name.startswith("extra "):
                held.extra[name.removeprefix("extra ")] = value
            elif own is None:
                setattr(slot, name, value)
            elif value is None:  # a moment that the rule doesn't keep
                own.zero_()
            else:
                own.copy_(value)
        elif name.startswith(KNOWN):
            setattr(held.known, name.removeprefix(KNOWN), value)
        elif name in getattr(packed, "_fields", ()):
            parts[name][:] = value
        elif name == "sizes":
            held.sizes = [value] * len(held.sizes)
        elif is_tensor(parts.get(name)):
            setattr(held, name, parts[name].new_tensor(value))
        else:
            setattr(held, name, value)
    for name, value in values.items():
        if name.startswith("memory "):
            state.memory[name.removeprefix("memory ")] = value


@dataclass
class Checkpoints:
    """Where a run is kept.

    Args:
        folder: A folder that all ranks see, or one on each machine that the same rank sees again.
        transport: Connects the ranks.
        key: What the run is: another one isn't resumed.
    """

    folder: Path
    transport: Transport
    key: str
    number: int = 0

    def __post_init__(self) -> None:
        self.index = self.folder / f"rank-{self.transport.rank}-checkpoint.json"
        """This rank's file that names the last complete set."""

    def path(self, number: int) -> Path:
        """This rank's file of a set."""
        return self.folder / f"state-{number}-rank-{self.transport.rank}.npz"

    def save(self, state: State, run: Record) -> None:
        """Write a set. Collective: if one rank can't, every rank raises `DistributedError`."""
        number = self.number + 1
        with self._writing():
            if state.memory and not set(state.memory) <= {"size"}:
                raise UnsupportedError("checkpoints can't hold what a custom rule remembers")
            parts = parts_of(state).items()
            found = {k: v.detach().cpu().numpy() if is_tensor(v) else v for k, v in parts}
            arrays = {k: v for k, v in found.items() if isinstance(v, np.ndarray)}
            values = {k: v for k, v in found.items() if k not in arrays}
            simple = all(isinstance(v, bool | int | float | None) for v in values.values())
            if not arrays or not simple:
                raise UnsupportedError(f"checkpoints can't hold a {type(state.arrays).__name__}")
            values.update({f"memory {k}": v for k, v in state.memory.items()})
            plain = {k: v for k, v in run.items() if not isinstance(v, np.ndarray)}
            named: Record = {f"run {k}": v for k, v in run.items() if isinstance(v, np.ndarray)}
            head = json.dumps({"format": FORMAT, "key": self.key, "values": values, "run": plain})
            named.update({f"state {k}": v for k, v in arrays.items()})
            self.folder.mkdir(parents=True, exist_ok=True)
            named["head"] = np.array(head)
            write(self.path(number), lambda out: np.savez(out, **named))
        with self._writing():  # all files are there: now they count
            index = {"number": number, "size": self.transport.size, "key": self.key}
            write(self.index, lambda out: out.write(json.dumps(index).encode()))
        for old in range(max(0, number - 2), number - 1):  # one set before it stays, in case that
            with suppress(OSError):  # another rank was killed before it named this one
                self.path(old).unlink()
        self.number = number

    @contextmanager
    def _writing(self) -> Iterator[None]:
        problem = ""
        try:
            yield
        except (OSError, UnsupportedError) as error:
            why = getattr(error, "strerror", None) or str(error)
            problem = f"can't write a checkpoint in {self.folder.name}: {why}"
        fail_together(self.transport, problem)

    def load(self, state: State) -> Record | None:
        """Put the last complete set into a state; None without one. Collective."""
        number, problem = 0, ""
        try:
            found = json.loads(self.index.read_text())
            number = int(found["number"])
            if found["size"] != self.transport.size:
                problem = f"the checkpoint is of {found['size']} ranks, not {self.transport.size}"
            elif found["key"] != self.key:
                problem = "the checkpoint is of another field, rule or dtype; use another folder"
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"can't read {self.index.name}: {error}"
        fail_together(self.transport, problem)
        # ranks may have been killed between naming a set
        number = -int(self.transport.maximum(-number))
        if number == 0:
            return None
        try:
            with self.path(number).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                head = json.loads(str(file["head"]))
                if head["format"] != FORMAT or head["key"] != self.key:
                    raise InputError("is of another run")
                arrays = {k[6:]: file[k] for k in file.files if k.startswith("state ")}
                run = {k[4:]: file[k] for k in file.files if k.startswith("run ")}
                restore(state, arrays, head["values"])
        except Exception as error:  # a damaged file raises many kinds of errors
            problem = f"can't read {self.path(number).name}: {error}"
        fail_together(self.transport, problem)
        self.number = number
        return {**head["run"], **run}


def write(path: Path, content: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all."""
    aside = path.with_suffix(".tmp")
    try:
        with aside.open("wb") as out:
            content(out)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
