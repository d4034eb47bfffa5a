"""What a mutant is: one small fault in one file, and the tests that have to notice it."""

from __future__ import annotations

from dataclasses import dataclass


class MutantError(Exception):
    """A mutant that doesn't fit the sources."""


@dataclass(frozen=True)
class Mutant:
    """A small fault.

    Args:
        name: Says what is wrong.
        path: The file, within src/proxfield.
        old: Text that occurs exactly once in it.
        new: What stands there instead.
        tests: Tests of which at least one has to fail, within tests/; separated by spaces.
        needs_torch: Whether the tests are skipped without torch.
    """

    name: str
    path: str
    old: str
    new: str
    tests: str
    needs_torch: bool = False

    @property
    def nodes(self) -> list[str]:
        """The tests as pytest takes them."""
        return [f"tests/{test}" for test in self.tests.split()]

    def mutate(self, text: str) -> str:
        """The content of the file with the fault.

        Raises:
            MutantError: If the old text doesn't occur exactly once.

        Example:
            >>> Mutant("flip", "x.py", "a + b", "a - b", "").mutate("c = a + b")
            'c = a - b'
        """
        count = text.count(self.old)
        if count != 1:
            raise MutantError(
                f"{self.name}: {self.path} holds {self.old!r} {count} times, not once"
            )
        return text.replace(self.old, self.new)
