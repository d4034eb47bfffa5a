"""Evidence files: which variables are observed, and with which label."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from proxfield.errors import InputError, shown
from proxfield.io.files import Source, Target, atomic_write
from proxfield.io.tokens import Text, Tokens, read_text


def _first_pair(tokens: Tokens) -> int:
    """Where the pairs begin: after ``k``, or after ``1 k``.

    A file with a sample count has an even number of numbers and one without has
    an odd number, so a single sample can't be taken for the other format.
    """
    first = tokens.integer(0, "the number of observations", 0)
    if tokens.count == 1 + 2 * first:
        return 1
    second = float(tokens.numbers[1]) if tokens.count > 1 else -1.0
    if first == 1 and tokens.count == 2 + 2 * second:
        return 2
    if first > 1 and _is_samples(tokens, first):
        raise tokens.error(
            f"the file has {first} samples of evidence, expected only one sample (split the file)",
            0,
        )
    if first == 1 and tokens.count > 1 and tokens.count % 2 == 0:
        observations = tokens.integer(1, "the number of observations", 0)
        raise tokens.error(
            f"{observations} observations are declared, but {tokens.count - 2} numbers follow, "
            f"expected {2 * observations} (a variable and a label each)",
            1,
        )
    raise tokens.error(
        f"{first} observations are declared, but {tokens.count - 1} numbers follow, "
        f"expected {2 * first} (a variable and a label each)",
        0,
    )


def _is_samples(tokens: Tokens, samples: int) -> bool:
    """Whether the file is a sample count followed by so many samples."""
    at = 1
    for _ in range(samples):
        if at >= tokens.count:
            return False
        observations = float(tokens.numbers[at])
        if not (observations >= 0 and observations.is_integer()):
            return False
        at += 1 + 2 * int(observations)
    return at == tokens.count


def parse_evidence(
    data: bytes | Text, name: str, cardinalities: npt.ArrayLike, *, base: int = 0
) -> dict[int, int]:
    """Read the text of an evidence file.

    The file is ``k v x v x ..`` or, with a sample count, ``1 k v x v x ..``; an empty
    file means no evidence. Labels always count from 0.

    Args:
        data: The content of the file.
        name: The name of the file for messages.
        cardinalities: Number of labels of each variable.
        base: 1 if the file counts variables from 1, otherwise 0.

    Returns:
        The label of each observed variable, in file order; variables count from 0.

    Raises:
        InputError: If anything is wrong; the message names the line.

    Example:
        >>> parse_evidence(b"1 2 0 1 2 0", "x.evid", [2, 2, 2])
        {0: 1, 2: 0}
    """
    if base not in (0, 1):
        raise InputError(f"base of the variable indices is {shown(base)}, expected 0 or 1")
    counts = np.asarray(cardinalities, dtype=np.int64).reshape(-1)
    tokens = Tokens(data, name)
    if tokens.count == 0:
        return {}
    begin = _first_pair(tokens)
    places = np.arange(begin, tokens.count, 2)
    what = "an observed variable" + (" (counted from 1)" if base else "")
    if places.size and counts.size == 0:
        raise tokens.error("a variable is observed, but the model has none, expected '0'", begin)
    tokens.check_integers(tokens.numbers[places], places, what, base, base + counts.size - 1)
    variables = tokens.numbers[places].astype(np.int64) - base
    found = tokens.numbers[places + 1]
    top = counts[variables] - 1
    good = (found >= 0) & (found <= top) & (found == np.floor(found))
    if not good.all():
        bad = int(np.argmin(good))
        what = f"the label of variable {int(variables[bad]) + base}"
        tokens.integer(int(places[bad]) + 1, what, 0, int(top[bad]))
    evidence: dict[int, int] = {}
    pairs = zip(variables.tolist(), found.astype(np.int64).tolist(), strict=True)
    for place, (variable, label) in zip(places.tolist(), pairs, strict=True):
        if evidence.setdefault(variable, label) != label:
            raise tokens.error(
                f"variable {variable + base} is observed with label {evidence[variable]} and "
                f"again with label {label}, expected one label",
                place,
            )
    return evidence


def read_evidence(
    source: Source, cardinalities: npt.ArrayLike, *, base: int = 0, max_bytes: int | None = None
) -> dict[int, int]:
    """Read an evidence file, plain or compressed.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        cardinalities: Number of labels of each variable.
        base: 1 if the file counts variables from 1, otherwise 0.
        max_bytes: Maximum number of bytes of content. By default 4 GiB, and for a compressed file
            at most 64 MiB or 250 times its own size, whichever is more.

    Returns:
        The label of each observed variable; see :func:`parse_evidence`.

    Raises:
        InputError: If the file can't be read, is larger than allowed or isn't valid evidence.

    Example:
        >>> import io
        >>> read_evidence(io.BytesIO(b"1 2 0"), [2, 2], base=1)
        {1: 0}
    """
    return parse_evidence(*read_text(source, max_bytes), cardinalities, base=base)


def write_evidence(evidence: Mapping[int, int] | npt.ArrayLike, target: Target) -> None:
    """Write an evidence file ``k v x v x …``, variables in ascending order.

    Args:
        evidence: The label of each observed variable; or, as ``Field.evidence`` has it, one
            integer for each variable, -1 where it isn't observed.
        target: Where to write.

    Raises:
        InputError: If the evidence isn't made of integers >= 0 or can't be written.

    Example:
        >>> write_evidence({3: 1, 0: 0}, "-")
        2 0 0 3 1
    """
    if isinstance(evidence, Mapping):
        pairs = list(evidence.items())
    else:
        observed = np.asarray(evidence)
        if observed.ndim != 1 or not (observed.size == 0 or observed.dtype.kind in "iu"):
            raise InputError(
                f"evidence is an array of {observed.dtype} with {observed.ndim} dimensions, "
                "expected one integer for each variable or a mapping"
            )
        pairs = [(v, x) for v, x in enumerate(observed.tolist()) if x != -1]
    for variable, label in pairs:
        for value in (variable, label):
            if not isinstance(value, int | np.integer) or value < 0:
                raise InputError(
                    f"evidence has variable {shown(variable)} with label {shown(label)}, "
                    "expected integers >= 0"
                )
    body = [f"{int(variable)} {int(label)}" for variable, label in sorted(pairs)]
    atomic_write(target, " ".join([str(len(body)), *body]) + "\n")
