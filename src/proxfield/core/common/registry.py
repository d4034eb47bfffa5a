"""Named entries that applications add to, such as kinds of terms and rules."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import resolve_name
from typing import TypeVar, cast

import proxfield

T = TypeVar("T")


class Registry(UserDict[str, T]):
    """Entries by name. A new one is one line, and asking for one imports no other.

    Applications add theirs when they are imported. They are imported when a name isn't known yet,
    or when all entries are asked for.

    Args:
        places: Where entries are, as "module:name".
        package: What the modules' names are relative to.

    Example:
        >>> registry = Registry({"fraction": "fractions:Fraction"})
        >>> registry["fraction"](1, 2)
        Fraction(1, 2)
        >>> registry.name_of(registry["fraction"])
        'fraction'
        >>> registry["text"] = str
        >>> list(registry)
        ['fraction', 'text']
    """

    def __init__(self, places: Mapping[str, str] | None = None, package: str = "") -> None:
        super().__init__()  # entries that were added themselves, which come before places
        prefix = f"{package}." if package else ""
        self.places = {name: prefix + place for name, place in (places or {}).items()}

    def name_of(self, entry: T) -> str | None:
        """The name of a class, if it is registered."""
        entries: dict[str, object] = {**self.places, **self.data}
        found = (name for name, known in entries.items() if known in (entry, place(entry)))
        return next(found, None)

    def __repr__(self) -> str:
        return f"Registry({', '.join(self)})"

    def __getitem__(self, name: str) -> T:
        if name not in self.data and name in self.places:
            return cast("T", resolve_name(self.places[name]))
        if name not in self.data:
            import_applications()
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        if name not in self.places and name not in self.data:
            import_applications()
        return name in self.places or name in self.data

    def __iter__(self) -> Iterator[str]:
        import_applications()
        return iter({**self.places, **self.data})

    def __len__(self) -> int:
        return len(list(iter(self)))


def place(entry: object) -> str:
    """Where a class is, as "module:name"."""
    return f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"


def import_applications() -> None:
    """Import what the applications of the package add to the registries."""
    for name in proxfield.APPLICATIONS:
        import_module(f"proxfield.{name}")
