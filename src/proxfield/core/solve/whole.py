"""Dense CRFs over images as one piece of work for a GPU: all updates in one step of the loop.

Ten updates of an image take a GPU some milliseconds. Lowering the field, packing it and asking the
device after every few updates takes many times that. Where nothing has to be decided on the way
(the usual call: the rule `fixed` with its certified step, some updates, no budget and no callback)
`WholeImage` makes the updates at once, by `dense_call`; whatever else is asked for, or turns out,
the field's own program does.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as field_of

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Pixels
from proxfield.core.devices.cuda import torch
from proxfield.core.engines.base import Batch, Rows
from proxfield.core.engines.registry import placed
from proxfield.core.engines.triton import dense_call
from proxfield.core.engines.triton.dense_call import DenseCall, DenseFound, TermKey
from proxfield.core.engines.triton.device_pack import download
from proxfield.core.filters.points import PixelPoints
from proxfield.core.solve.history import Limits
from proxfield.core.solve.infer import result_of
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.base import Outcome
from proxfield.core.solve.rules.parallel import Fixed
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.field import Field
from proxfield.result import Result

MAX_UPDATES = 64
"""Updates up to which a call isn't cut into pieces between which it could be stopped."""
MAX_LABELS = 256
"""Labels up to which a program of the kernels holds whole rows."""


class NotWholeError(Exception):
    """Something has to be decided between the updates."""


@dataclass
class WholeImage(Batch[None, None]):
    """One image, all of whose updates are one call. It has no state beside what was found.

    A change of q within the tolerance is for a program that can test fixed points.
    """

    call: DenseCall
    energies: NDArray[np.float32]
    images: list[Pixels | None]
    tol: float
    found: DenseFound = field_of(init=False)

    def __post_init__(self) -> None:
        self.looks_every = self.call.key.updates

    def advance_each(
        self, state: None, plan: None, n: int, tol: float, trace: bool, wanted: NDArray[np.bool_]
    ) -> list[Rows]:
        found = self.found = self.call.run(self.energies, self.images)
        moving = bool((found.change > self.tol).all())  # False for NaN
        if not (found.finite and moving and np.isfinite(found.free_energy).all()):
            raise NotWholeError
        f = found.free_energy[:-1] if trace else np.full(n, np.nan)
        return [Rows(f, found.change)]

    def free_energy_each(self, state: None) -> Doubles:
        return self.found.free_energy[-1:]

    def marginals_each(self, state: None) -> list[Doubles]:
        return [download(self.found.q).reshape(-1)]

    def residual_each(self, state: None) -> tuple[Doubles, Doubles]:
        raise NotWholeError

    def copy(self, state: None) -> None:
        raise NotWholeError

    def warm_up(self, plan: None, state: None, trace: bool) -> None:
        pass


def infer_whole(field: Field, request: Request) -> Result | None:
    """The result of a request if it can be had in one piece, else None."""
    terms = image_terms(field)
    if terms is None or not in_one_piece(request):
        return None
    unary, gaussians = terms
    n_labels = unary.energies.shape[1]
    if not 2 <= n_labels <= MAX_LABELS or unary.energies.dtype != np.float32:
        return None
    device = placed(request.kernels).device
    points = [term.points for term in gaussians if isinstance(term.points, PixelPoints)]
    updates = int(request.max_iters or 0)
    key = dense_call.CallKey(
        field.n_vars, n_labels, updates, tuple(map(term_key, gaussians)), str(device.handle())
    )
    loop = Loop(Limits(updates, request.tolerance), None, request.trace, now=request.now)
    try:
        call = dense_call.KEPT.get(key, points)
        if any(needs_diagonal(made.kind, made.key) for made in call.terms):
            return None
        images = [p.channels for p in points]
        program = WholeImage(call, unary.energies, images, request.tolerance)
        status = loop.run(program, None, None)
    except NotWholeError:
        return None
    except torch.cuda.OutOfMemoryError:
        dense_call.KEPT.clear()  # the loop says what would fit, if it doesn't either
        return None
    outcome = Outcome(program.marginals_each(None)[0], loop.last, status)
    result = result_of(field, request, loop, outcome)
    result.best = download(program.found.best).astype(np.int64, copy=False)
    return result


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
        whole = term.first == 0 and term.n_points == field.n_vars and term.blur is None
        # with an origin it is a tile, none like another
        if not (whole and isinstance(term.points, PixelPoints)) or any(term.points.origin):
            return None
        gaussians.append(term)
    return (unary, gaussians) if gaussians else None


def in_one_piece(request: Request) -> bool:
    """Whether nothing has to be decided between the updates."""
    rule, init, free = request.rule, request.init, (request.budget, request.callback)
    return (
        type(rule) is Fixed
        and rule.step == "certified"
        and 1 <= (request.max_iters or 0) <= MAX_UPDATES
        and isinstance(init, str)
        and (init, request.dtype, request.keep) == ("unary", "float32", "last")
        and free == (None, None)
    )


def term_key(term: Gaussian) -> TermKey:
    """What a program is kept by."""
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
