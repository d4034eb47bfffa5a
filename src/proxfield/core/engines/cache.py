"""Programs that are made once per lowered field and used again.

One inference asks for the same program several times: for the iterations, for the curvature, for
rounding, for F in float64. A program has scratch arrays of its own, so each thread has its own
programs. Large programs live only as long as somebody uses them; small ones as long as the field.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from proxfield.core.engines.registry import compile_program

if TYPE_CHECKING:
    from proxfield.core.engines.base import Program
    from proxfield.core.lowering.lowered import Lowered

KEPT_BYTES = 1 << 24
"""Size of a lowered field up to which its programs are kept as long as the field."""
MAX_KEPT = 8
"""Maximum number of programs kept per field."""

Key = tuple[int, str, str, int | None]


class ProgramCache:
    """The programs of one lowered field; not copied or pickled with it."""

    def __init__(self) -> None:
        self.used: WeakValueDictionary[Key, Program] = WeakValueDictionary()
        self.kept: dict[Key, Program] = {}
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ProgramCache], tuple[()]]:
        return ProgramCache, ()

    def get(self, key: Key) -> Program | None:
        """The program, if there is one."""
        with self.lock:
            return self.used.get(key)

    def add(self, key: Key, program: Program, keep: bool) -> None:
        """Remember a program."""
        with self.lock:
            self.used[key] = program
            if keep:
                while len(self.kept) >= MAX_KEPT:
                    del self.kept[next(iter(self.kept))]
                self.kept[key] = program


def program_for(
    lowered: Lowered, kernels: str = "cpu", dtype: str = "float64", threads: int | None = None
) -> Program:
    """As `compile_program`, but the same program for the same question from the same thread.

    Example:
        >>> import proxfield as pf
        >>> lowered = pf.Field(2, 2).add(pf.Potts([[0, 1]], 1.0)).lower()
        >>> program_for(lowered) is program_for(lowered)
        True
        >>> program_for(lowered) is program_for(lowered, dtype="float32")
        False
    """
    cache = vars(lowered).setdefault("_programs", ProgramCache())
    key = (threading.get_ident(), kernels, dtype, threads)
    program = cache.get(key)
    if program is None:
        program = compile_program(lowered, kernels, dtype, threads)
        held = lowered.unary.nbytes + sum(term.nbytes for term in lowered.terms)
        cache.add(key, program, held <= KEPT_BYTES)
    found: Program = program
    return found
