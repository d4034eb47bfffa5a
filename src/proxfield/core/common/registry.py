"""Named entries that applications add to, such as kinds of terms and rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TypeVar

import proxfield

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """Entries by name, in the order in which they were added.

    Applications add theirs when they are imported. They are imported when a name isn't known yet,
    or when all entries are asked for.

    Args:
        entries: Names and entries to begin with.

    Example:
        >>> numbers = Registry({"one": 1})
        >>> numbers["two"] = 2
        >>> list(numbers)
        ['one', 'two']
    """

    def __init__(self, entries: Iterable[tuple[str, T]] | Mapping[str, T] = ()) -> None:
        self.known = dict(entries)
        """What has been added so far."""

    def __getitem__(self, name: str) -> T:
        if name not in self.known:
            import_applications()
        return self.known[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self.known[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.known[name]

    def __iter__(self) -> Iterator[str]:
        import_applications()
        return iter(self.known)

    def __len__(self) -> int:
        import_applications()
        return len(self.known)


def import_applications() -> None:
    """Import what the applications of the package add to the registries."""
    for name in proxfield.APPLICATIONS:
        import_module(f"proxfield.{name}")
