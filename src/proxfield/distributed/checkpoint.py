"""Checkpoints: every rank's state in a file of its own, and files that say which belong together.

A set of files is complete before it is named, so that a run which is killed at any moment finds the
last complete one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.backends.base import State
from proxfield.distributed.transport import Transport, fail_together
from proxfield.errors import InputError, UnsupportedError

FORMAT = 1
INDEX = "checkpoint.json"


def arrays_of(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a state, and its other values, by name."""
    held = state.arrays
    if state.memory and not set(state.memory) <= {"size"}:
        raise UnsupportedError("checkpoints can't hold what a custom rule remembers")
    values = dict(vars(held)) if hasattr(held, "__dict__") else {}
    packed = values.pop("arrays", None)
    arrays = dict(packed._asdict()) if hasattr(packed, "_asdict") else {}
    arrays.update({k: v for k, v in values.items() if isinstance(v, np.ndarray)})
    rest = {k: v for k, v in values.items() if not isinstance(v, np.ndarray)}
    plain = (type(None), bool, int, float)
    if not arrays or not all(isinstance(v, plain) for v in rest.values()):
        raise UnsupportedError("checkpoints need the kernels cpu or reference")
    return arrays, {**rest, **{f"memory {k}": v for k, v in state.memory.items()}}


def restore(state: State, arrays: dict[str, Any], values: dict[str, Any]) -> None:
    """Put a saved state into one of the same program."""
    own, _ = arrays_of(state)
    packed: Any = getattr(state.arrays, "arrays", None)
    names = getattr(packed, "_fields", ())
    for name, array in arrays.items():
        if name in names:
            own[name][:] = array
        else:
            setattr(state.arrays, name, array)
    for name in own.keys() - arrays.keys():
        setattr(state.arrays, name, None)
    for name, value in values.items():
        if name.startswith("memory "):
            state.memory[name.removeprefix("memory ")] = value
        elif name != "version":  # of unary energies, which are set again
            setattr(state.arrays, name, value)


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

    def path(self, number: int) -> Path:
        """This rank's file of a set."""
        return self.folder / f"state-{number}-rank-{self.transport.rank}.npz"

    def index(self) -> Path:
        """This rank's file that names the last complete set."""
        return self.folder / f"rank-{self.transport.rank}-{INDEX}"

    def save(self, state: State, run: dict[str, Any]) -> None:
        """Write a set. Collective: if one rank can't, every rank raises `DistributedError`."""
        number, problem = self.number + 1, ""
        try:
            arrays, values = arrays_of(state)
            plain = {k: v for k, v in run.items() if not isinstance(v, np.ndarray)}
            named = {f"run {k}": v for k, v in run.items() if isinstance(v, np.ndarray)}
            head = json.dumps({"format": FORMAT, "key": self.key, "values": values, "run": plain})
            named.update({f"state {k}": v for k, v in arrays.items()})
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(self.path(number), {"head": np.array(head), **named})
        except (OSError, UnsupportedError) as error:
            why = getattr(error, "strerror", None) or str(error)
            problem = f"can't write a checkpoint in {self.folder.name}: {why}"
        fail_together(self.transport, problem)
        try:  # all files are there: now they count
            aside = self.index().with_suffix(".tmp")
            with aside.open("w") as out:
                json.dump({"number": number, "size": self.transport.size, "key": self.key}, out)
                out.flush()
                os.fsync(out.fileno())
            aside.replace(self.index())
        except OSError as error:
            problem = f"can't write a checkpoint in {self.folder.name}: {error.strerror}"
        fail_together(self.transport, problem)
        for old in range(max(0, number - 2), number - 1):  # one set before it stays, in case that
            with suppress(OSError):  # another rank was killed before it named this one
                self.path(old).unlink()
        self.number = number

    def _write(self, path: Path, arrays: dict[str, Any]) -> None:
        aside = path.with_suffix(".tmp")
        try:
            with aside.open("wb") as out:
                np.savez(out, **arrays)
                out.flush()
                os.fsync(out.fileno())
            aside.replace(path)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise

    def load(self, state: State) -> dict[str, Any] | None:
        """Put the last complete set into a state; None without one. Collective."""
        number, problem = 0, ""
        try:
            found = json.loads(self.index().read_text())
            number = int(found["number"])
            if found["size"] != self.transport.size:
                problem = f"the checkpoint is of {found['size']} ranks, not {self.transport.size}"
            elif found["key"] != self.key:
                problem = "the checkpoint is of another field, rule or dtype; use another folder"
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"can't read {self.index().name}: {error}"
        fail_together(self.transport, problem)
        low = -self.transport.reduce(np.array([-float(number)]), "max")[0]
        number = int(low)  # ranks may have been killed between naming a set
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
