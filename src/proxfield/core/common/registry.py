"""Classes by name, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar, cast

T = TypeVar("T", bound=type)


class Registry(Mapping[str, T]):
    """Classes by name. A new one is one line, and asking for one imports no other.

    Args:
        places: Where each is, as "module:name".
        package: What the modules' names are relative to.

    Example:
        >>> registry = Registry({"fraction": "fractions:Fraction"})
        >>> list(registry), registry["fraction"](1, 2)
        (['fraction'], Fraction(1, 2))
        >>> registry.name_of(registry["fraction"])
        'fraction'
    """

    def __init__(self, places: Mapping[str, str], package: str = "") -> None:
        prefix = f"{package}." if package else ""
        self.places = {name: prefix + place for name, place in places.items()}
        self.added: dict[str, T] = {}
        """Classes that were registered themselves, which come before places."""

    def add(self, name: str, cls: T) -> None:
        """Register a class under a name."""
        self.added[name] = cls

    def name_of(self, cls: T) -> str | None:
        """The name of a class, if it is registered."""
        place = f"{cls.__module__}:{cls.__qualname__}"
        for name in self:
            there = self.added.get(name)
            if there is cls or (there is None and self.places[name] == place):
                return name
        return None

    def __repr__(self) -> str:
        return f"Registry({', '.join(self)})"

    def __getitem__(self, name: str) -> T:
        if name in self.added:
            return self.added[name]
        module, _, attribute = self.places[name].partition(":")
        return cast("T", getattr(import_module(module), attribute))

    def __contains__(self, name: object) -> bool:
        return name in self.places or name in self.added

    def __iter__(self) -> Iterator[str]:
        return iter({**self.places, **self.added})

    def __len__(self) -> int:
        return len({**self.places, **self.added})
