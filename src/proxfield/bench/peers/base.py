"""What a peer is: a tool, what it can do, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield._version import __version__
from proxfield.core.common.extras import install_hint


class Question(str, Enum):
    """What a peer is asked for."""

    INFERENCE = "inference"
    """Marginals, log Z or both."""
    MAP = "map"
    """The labelling of lowest energy."""
    DENSE = "dense"
    """The label map of an image, by ten updates of a dense CRF."""


class LogZKind(str, Enum):
    """What a number for log Z is."""

    EXACT = "exact"
    LOWER = "lower bound"
    UPPER = "upper bound"
    ESTIMATE = "estimate"


@dataclass(frozen=True)
class Answer:
    """What a peer says.

    Attributes:
        marginals: Of the field, flat.
        log_z: Its number for log Z, of kind ``kind``.
        labels: A labelling of the field, or the labels of an image.
        proved: Whether the labelling is proved optimal.
        converged: Whether the iterations did; None where the tool doesn't say.
    """

    marginals: NDArray[np.float64] | None = None
    log_z: float | None = None
    kind: LogZKind | None = None
    labels: NDArray[np.int64] | None = None
    proved: bool = False
    converged: bool | None = None


Run = Callable[[], Answer]
"""The part of the work that is timed."""


@dataclass(eq=False)
class Peer:
    """A tool.

    Attributes:
        name: What tables call it.
        tasks: What it can be asked for.
        method: What it does, in a few words.
        prepare: Builds the tool's own model of a `FactorGraph` (of a `Field` for what proxfield
            brings along, of a `NoisyScene` for `Question.DENSE`) and returns a function that runs
            the inference. Takes one of ``tasks``, the problem, and a time budget in seconds for
            tools that can use one. Raises UnsupportedError if the tool can't do this model.
        package: Its distribution on the package index; None for what proxfield brings along.
        module: The module whose presence tells that it is installed.
        install: The command that installs it, where the extra ``peers`` doesn't.
        compiles: Whether it compiles something for each model, so that only a second run is warm.
    """

    name: str
    tasks: tuple[Question, ...]
    method: str
    prepare: Callable[[Question, Any, float], Run]
    package: str | None = None
    module: str | None = None
    install: str | None = None
    compiles: bool = False

    def version(self) -> str | None:
        """The installed version; None if it isn't installed."""
        if self.package is None:
            return __version__
        try:
            if self.module is None or find_spec(self.module) is None:
                return None
            return version(self.package)
        except (ModuleNotFoundError, PackageNotFoundError):
            return None

    def hint(self) -> str:
        """The command that installs it."""
        return self.install or install_hint("peers")
