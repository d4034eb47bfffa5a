"""Dense CRFs over images as one piece of work for a GPU: the same result, without the loop.

Ten updates of an image take a GPU some milliseconds. Lowering the field, packing it and asking the
device after every few updates takes many times that. Where nothing has to be decided on the way
(the usual call: the rule `fixed` with its certified step, some updates, no budget and no callback)
`dense_call` makes the updates at once; whatever else is asked for, or turns out, the loop does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proxfield.core.engines.registry import placed
from proxfield.core.filters.points import PixelPoints
from proxfield.core.solve.rules.parallel import Fixed
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.field import Field
from proxfield.result import Result, Status, Trace

if TYPE_CHECKING:
    from proxfield.core.engines.triton.dense_call import CallKey, Found, TermKey
    from proxfield.core.solve.request import Request

MAX_UPDATES = 64
"""Updates up to which a call isn't cut into pieces between which it could be stopped."""
MAX_LABELS = 256
"""Labels up to which a program of the kernels holds whole rows."""


def infer_whole(field: Field, request: Request) -> Result | None:
    """The result of a request if it can be had in one piece, else None."""
    terms = image_terms(field)
    if terms is None or not in_one_piece(request):
        return None
    unary, gaussians = terms
    n_labels = unary.energies.shape[1]
    if not 2 <= n_labels <= MAX_LABELS or unary.energies.dtype != np.float32:
        return None
    from proxfield.core.devices.cuda import torch
    from proxfield.core.engines.triton import dense_call

    device = placed(request.kernels).device
    points = [term.points for term in gaussians if isinstance(term.points, PixelPoints)]
    key = dense_call.CallKey(
        field.n_vars,
        n_labels,
        int(request.max_iters or 0),
        tuple(map(term_key, gaussians)),
        str(device.handle()),
    )
    begun = request.now()
    try:
        call = dense_call.program_of(key, points)
        if any(needs_diagonal(made.kind, made.key) for made in call.terms):
            return None
        found = call.run(unary.energies, [p.channels for p in points])
    except torch.cuda.OutOfMemoryError:
        dense_call.KEPT.clear()  # the loop says what would fit, if it doesn't either
        return None
    moving = bool((found.change > request.tol).all())  # False for NaN
    if not (found.finite and moving and np.isfinite(found.free_energy).all()):
        return None
    return result_of(field, request, found, key, request.now() - begun)


def image_terms(field: Field) -> tuple[Unary, list[Gaussian]] | None:
    """Unary energies and Gaussian terms, if a field has these alone, over all its pixels."""
    if not field.terms or (field.evidence >= 0).any():
        return None
    unary, *rest = field.terms
    if type(unary) is not Unary or unary.given is not None:
        return None
    gaussians = []
    for term in rest:
        if type(term) is not Gaussian:
            return None
        if term.omitted:
            continue
        whole = term.first == 0 and term.n_points == field.n_vars
        if not whole or not isinstance(term.points, PixelPoints):
            return None
        if term.blur is not None or any(term.points.origin):  # a tile, none like another
            return None
        gaussians.append(term)
    return (unary, gaussians) if gaussians else None


def in_one_piece(request: Request) -> bool:
    """Whether nothing has to be decided between the updates."""
    rule, updates = request.rule, request.max_iters
    return (
        type(rule) is Fixed
        and rule.step == "certified"
        and updates is not None
        and 1 <= updates <= MAX_UPDATES
        and isinstance(request.init, str)
        and request.init == "unary"
        and request.dtype == "float32"
        and request.keep == "last"
        and request.budget is None
        and request.callback is None
    )


def term_key(term: Gaussian) -> TermKey:
    """What a program is kept by."""
    from proxfield.core.engines.triton.dense_call import TermKey

    assert isinstance(term.points, PixelPoints)
    return TermKey(
        term.points.key,
        term.filter_name,
        term.weight,
        None if term.matrix is None else np.ascontiguousarray(term.matrix).tobytes(),
        term.normalization,
        term.self_message,
    )


def needs_diagonal(kind: str, key: TermKey) -> bool:
    """Whether a term needs the lattice's diagonal, which the host computes."""
    return kind == "lattice" and not key.self_message


def result_of(field: Field, request: Request, found: Found, key: CallKey, seconds: float) -> Result:
    """What was found as a result, on the host."""
    from proxfield.core.engines.triton.device_pack import download

    count = key.updates
    f = found.free_energy
    if not request.trace:
        f = np.append(np.full(count, np.nan), f[-1])
    trace = Trace(
        np.arange(count + 1),
        np.linspace(0.0, seconds, count + 1),
        f,
        np.append(np.nan, found.change),
    )
    return Result(
        field=field,
        q=download(found.q).reshape(-1),
        free_energy=float(f[-1]),
        status=Status.MAX_ITERS,
        iterations=count,
        seconds=seconds,
        rule=request.rule.name,
        params=request.rule.params,
        trace=trace,
        kernels=request.kernels,
        best=download(found.best).astype(np.int64, copy=False),
        asked=request.asked(Status.MAX_ITERS),
    )
