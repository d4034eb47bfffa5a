"""Results (marginals MAR, a labelling MAP, the partition function PR) and evidence in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.errors import InputError, shown
from proxfield.io.files import Source, Target, atomic_write
from proxfield.io.tokens import Text, Tokens, read_text

_LN10 = math.log(10.0)
# Printed probabilities are rounded, so one may come out slightly above 1.
_SLACK = 1e-6


def format_mar(marginals: Sequence[npt.ArrayLike]) -> str:
    """The text of a MAR file: ``n`` and then ``c p1 … pc`` for each variable.

    Args:
        marginals: The probabilities of each variable's labels.

    Returns:
        The text; every number reads back as the same double.

    Raises:
        InputError: If a marginal isn't a non-empty row of numbers in 0..1.

    Example:
        >>> format_mar([[0.25, 0.75], [1.0]])
        'MAR\\n2 2 0.25 0.75 1 1.0\\n'
    """
    pieces = [str(len(marginals))]
    for variable, given in enumerate(marginals):
        row = np.asarray(given, dtype=np.float64)
        if row.ndim != 1 or row.size == 0:
            raise InputError(
                f"the marginal of variable {variable} has shape {row.shape}, "
                "expected a row of at least one probability"
            )
        if not (row.min() >= 0 and row.max() <= 1 + _SLACK):
            raise InputError(
                f"the marginal of variable {variable} runs from {row.min()} to {row.max()}, "
                "expected probabilities in 0..1"
            )
        pieces.append(str(row.size))
        pieces += map(repr, (row + 0.0).tolist())
    return "MAR\n" + " ".join(pieces) + "\n"


def format_map(labels: npt.ArrayLike) -> str:
    """The text of a MAP file: ``n`` and then the label of each variable.

    Args:
        labels: One integer >= 0 for each variable.

    Returns:
        The text.

    Raises:
        InputError: If the labels aren't a row of integers >= 0.

    Example:
        >>> format_map([0, 2, 1])
        'MAP\\n3 0 2 1\\n'
    """
    row = np.asarray(labels)
    if row.ndim != 1 or not (row.size == 0 or (row.dtype.kind in "iu" and row.min() >= 0)):
        raise InputError(
            f"labels are {row.dtype} of shape {row.shape}, expected a row of integers >= 0"
        )
    return "MAP\n" + " ".join(map(str, [row.size, *row.tolist()])) + "\n"


def format_pr(log_z: float) -> str:
    """The text of a PR file, which holds log10 Z.

    Args:
        log_z: The natural logarithm of the partition function; -inf if it's 0.

    Returns:
        The text.

    Raises:
        InputError: If the number is NaN or +inf.

    Example:
        >>> format_pr(0.0)
        'PR\\n0.0\\n'
    """
    value = float(log_z)
    if math.isnan(value) or value == math.inf:
        raise InputError(f"log Z is {value}, expected a finite number or -inf")
    return f"PR\n{value / _LN10 + 0.0!r}\n"


def parse_mar(
    data: bytes | Text, name: str = "<mar>", cardinalities: npt.ArrayLike | None = None
) -> list[Doubles]:
    """Read the text of a MAR file, with or without the header word and a sample count of 1.

    Args:
        data: The content of the file.
        name: The name of the file for messages.
        cardinalities: The numbers of labels to expect, if known.

    Returns:
        The marginal of each variable.

    Raises:
        InputError: If anything is wrong; the message names the line.

    Example:
        >>> [p.tolist() for p in parse_mar(b"MAR 1 2 0.25 0.75")]
        [[0.25, 0.75]]
    """
    tokens = Tokens(data, name, headers=("MAR",))
    if tokens.count == 0:
        raise tokens.error("the MAR file is empty, expected the number of variables", 0)
    count = tokens.integer(0, "the number of variables", 0)
    begin = 1
    try:
        heads = _marginal_heads(tokens, begin, count)
    except InputError as plain:
        # Files with a sample count have one number more before the marginals.
        if count != 1 or tokens.count < 2:
            raise
        begin = 2
        try:
            count = tokens.integer(1, "the number of variables", 0)
            heads = _marginal_heads(tokens, begin, count)
        except InputError as sampled:
            # "1 2 .." declares one variable with two labels as well as two variables; the
            # reading that fails later in the file is what was meant.
            raise (sampled if (sampled.line or 0) > (plain.line or 0) else plain) from None
    sizes = tokens.numbers[heads].astype(np.int64)
    values = np.delete(tokens.numbers[begin:], heads - begin)
    good = (values >= 0) & (values <= 1 + _SLACK)
    if not good.all():
        places = np.delete(np.arange(begin, tokens.count), heads - begin)
        place = int(places[np.argmin(good)])
        raise tokens.error(
            f"probability {tokens.word(place)[:40]!r}, expected a number in 0..1", place
        )
    if cardinalities is not None:
        wanted = np.asarray(cardinalities, dtype=np.int64)
        if sizes.size != wanted.size:
            raise tokens.error(f"{sizes.size} marginals, expected {wanted.size}", 0)
        if (wrong := np.flatnonzero(sizes != wanted)).size:
            first = int(wrong[0])
            raise tokens.error(
                f"variable {first} has {sizes[first]} labels, expected {wanted[first]}",
                int(heads[first]),
            )
    return [row.copy() for row in np.split(values, np.cumsum(sizes)[:-1])] if count else []


def _marginal_heads(tokens: Tokens, begin: int, count: int) -> Ints:
    """Places of the cardinalities of all marginals, which must fill the file exactly."""
    if 2 * count > tokens.count - begin:
        raise tokens.error(
            f"{count} variables are declared, but the file has only {tokens.count - begin} "
            f"numbers left, expected at least {2 * count}",
            begin - 1,
        )
    heads, end = tokens.records(begin, count, "the number of labels", 1, tokens.count)
    if end < tokens.count:
        raise tokens.error(
            f"{tokens.count - end} more numbers after the last marginal, "
            "expected the end of the file",
            end,
        )
    return heads


def parse_map(
    data: bytes | Text, name: str = "<map>", cardinalities: npt.ArrayLike | None = None
) -> Ints:
    """Read the text of a MAP file, with or without the header word and a sample count of 1.

    ``MPE`` is accepted as the header word too.

    Args:
        data: The content of the file.
        name: The name of the file for messages.
        cardinalities: The numbers of labels to check against, if known.

    Returns:
        The label of each variable, int64 (n,).

    Raises:
        InputError: If anything is wrong; the message names the line.

    Example:
        >>> parse_map(b"MAP 3 0 2 1").tolist()
        [0, 2, 1]
    """
    tokens = Tokens(data, name, headers=("MAP", "MPE"))
    if tokens.count == 0:
        raise tokens.error("the MAP file is empty, expected the number of variables", 0)
    count = tokens.integer(0, "the number of variables", 0)
    begin = 1
    if count == 1 and tokens.count > 2:
        begin = 2
        count = tokens.integer(1, "the number of variables", 0)
    if count != tokens.count - begin:
        raise tokens.error(
            f"{count} variables are declared, but {tokens.count - begin} numbers follow, "
            f"expected {count}",
            begin - 1,
        )
    top = np.full(count, np.iinfo(np.int32).max, dtype=np.int64)
    if cardinalities is not None:
        top = np.asarray(cardinalities, dtype=np.int64).reshape(-1) - 1
        if top.size != count:
            raise tokens.error(f"{count} labels, expected {top.size}", begin - 1)
    labels = tokens.numbers[begin:]
    places = np.arange(begin, tokens.count)
    tokens.check_integers(labels, places, "a label", 0, top)
    return labels.astype(np.int64)


def parse_pr(data: bytes | Text, name: str = "<pr>") -> float:
    """Read the text of a PR file, with or without the header word and a sample count of 1.

    Args:
        data: The content of the file, which holds log10 Z.
        name: The name of the file for messages.

    Returns:
        The natural logarithm of the partition function.

    Raises:
        InputError: If anything is wrong; the message names the line.

    Example:
        >>> round(parse_pr(b"PR 1.0"), 6)
        2.302585
    """
    tokens = Tokens(data, name, headers=("PR",))
    if tokens.count == 0:
        raise tokens.error("the PR file is empty, expected log10 of the partition function", 0)
    place = 1 if tokens.count > 1 and tokens.numbers[0] == 1 else 0
    if tokens.count > place + 1:
        raise tokens.error(
            f"{tokens.count - place - 1} more numbers after log10 Z, expected the end of the file",
            place + 1,
        )
    value = float(tokens.numbers[place])
    if math.isnan(value) or value == math.inf:
        raise tokens.error(
            f"log10 Z is {tokens.word(place)[:40]!r}, expected a finite number or -inf", place
        )
    return value * _LN10


def read_mar(
    source: Source, cardinalities: npt.ArrayLike | None = None, *, max_bytes: int | None = None
) -> list[Doubles]:
    """Read a MAR file, plain or compressed; see :func:`parse_mar`.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        cardinalities: The numbers of labels to expect, if known.
        max_bytes: Maximum number of bytes of content, as for `read_model`.

    Returns:
        The marginal of each variable.

    Example:
        >>> import io
        >>> len(read_mar(io.BytesIO(b"MAR 2 1 1 1 1")))
        2
    """
    return parse_mar(*read_text(source, max_bytes), cardinalities)


def read_map(
    source: Source, cardinalities: npt.ArrayLike | None = None, *, max_bytes: int | None = None
) -> Ints:
    """Read a MAP file, plain or compressed; see :func:`parse_map`.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        cardinalities: The numbers of labels to check against, if known.
        max_bytes: Maximum number of bytes of content, as for `read_model`.

    Returns:
        The label of each variable.

    Example:
        >>> import io
        >>> read_map(io.BytesIO(b"MAP 2 0 1")).tolist()
        [0, 1]
    """
    return parse_map(*read_text(source, max_bytes), cardinalities)


def read_pr(source: Source, *, max_bytes: int | None = None) -> float:
    """Read a PR file, plain or compressed; see :func:`parse_pr`.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        max_bytes: Maximum number of bytes of content, as for `read_model`.

    Returns:
        The natural logarithm of the partition function.

    Example:
        >>> import io
        >>> read_pr(io.BytesIO(b"PR 0"))
        0.0
    """
    return parse_pr(*read_text(source, max_bytes))


# ---- evidence ----


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
    at = int(first == 1 and tokens.count > 1 and tokens.count % 2 == 0)
    observations = tokens.integer(at, "the number of observations", 0)
    raise tokens.error(
        f"{observations} observations are declared, but {tokens.count - 1 - at} numbers follow, "
        f"expected {2 * observations} (a variable and a label each)",
        at,
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
        max_bytes: Maximum number of bytes of content, as for `read_model`.

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
