"""Garbage collection rests while kernels are compiled, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numba
import pytest
from numba.core import event

from proxfield.core.compiled.notice import Pause


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


class During(event.Listener):
    """Whether garbage was collected when a compilation began; after `Pause` was told."""

    def __init__(self) -> None:
        self.on: list[bool] = []

    def on_start(self, event: Any) -> None:
        self.on.append(gc.isenabled())

    def on_end(self, event: Any) -> None:
        pass


def test_it_pauses_while_numba_compiles_and_goes_on_afterwards() -> None:
    during = During()
    register: Any = event.register
    register("numba:compile", during)
    try:
        assert numba.njit(lambda x: x + 1)(2) == 3
    finally:
        unregister: Any = event.unregister
        unregister("numba:compile", during)
    assert during.on
    assert not any(during.on)
    assert gc.isenabled()


def test_a_failed_compilation_leaves_it_on() -> None:
    with pytest.raises(numba.TypingError):
        numba.njit(lambda x: x.nothing)(2)
    assert gc.isenabled()


def test_nested_compilations_end_with_the_outermost() -> None:
    pause = Pause()
    pause.on_start(None)
    pause.on_start(None)
    pause.on_end(None)
    assert not gc.isenabled()
    pause.on_end(None)
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    pause = Pause()
    pause.on_start(None)
    pause.on_end(None)
    assert not gc.isenabled()
