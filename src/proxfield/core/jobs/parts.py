"""One part of many items: what a task of a job array (Slurm, for example) works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from proxfield.errors import InputError, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Part ``number`` of ``count``, counted from 1; parts are disjoint and cover everything.

    Example:
        >>> Part.parse("2/3").of("abcdefg")
        ['b', 'e']
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read ``K/N``.

        Raises:
            InputError: If it is something else, or K isn't within 1 to N.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise InputError(f"{shown(text)}, expected K/N with K from 1 to N, as in 3/8")
        return cls(int(number), int(count))

    def of(self, items: Sequence[T]) -> list[T]:
        """Every N-th item: neighbors, which often take as long as each other, are spread."""
        return list(items[self.number - 1 :: self.count])
