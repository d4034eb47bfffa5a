"""Which implementation a term has on each engine: one registry for all of them.

It follows the class hierarchy. A term without an implementation is computed through its own
``add_gradient`` (on a GPU: on the host), so an implementation only makes it faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import getattr_static
from pkgutil import resolve_name
from typing import Any, TypeVar, overload

from proxfield.core.engines.registry import ENGINES
from proxfield.core.terms.base import Term, describes
from proxfield.core.terms.consistency import Consistency
from proxfield.core.terms.cooccurrence import Cooccurrence, LatentCooccurrence
from proxfield.core.terms.gaussian import Gaussian
from proxfield.errors import InputError, InputTypeError, shown

Maker = Callable[..., Any]
"""Makes an implementation of a term; see `register` for what it is called with."""
M = TypeVar("M", bound=Maker | str)

EVALUATION = frozenset({"add_gradient", "energy", "degree"})
"""What kernels compute instead of the term."""
NOT_EVALUATED = frozenset({"name", *vars(Term)}) - EVALUATION
"""The rest of `Term`'s interface: kernels never replace it, so a subclass may override it."""
SETS = tuple(name for name in ENGINES if name != "reference")
"""Engines with implementations of their own; the reference is the term itself."""


_ENTRIES: dict[tuple[type[Term], str], tuple[Maker | str, frozenset[str]]] = {}
"""An implementation, or where to import it from, and the attributes that it replaces."""


@overload
def register(
    term: type[Term], kernels: str, implementation: M, *, replaces: Iterable[str] | None = None
) -> M: ...
@overload
def register(
    term: type[Term], kernels: str, *, replaces: Iterable[str] | None = None
) -> Callable[[M], M]: ...
def register(
    term: type[Term],
    kernels: str,
    implementation: Maker | str | None = None,
    *,
    replaces: Iterable[str] | None = None,
) -> Any:
    """Register the implementation of a class of terms on an engine.

    It serves the class and its subclasses, unless a subclass has one of its own. A subclass that
    overrides something that the implementation replaces, without one of its own, is computed
    through its own ``add_gradient``. The last registration counts, for programs made after it.

    The implementation is called with ``(term, layout, dtype)`` for "cpu" and with
    ``(term, layout, dtype, device)`` for "cuda" and "torch", and returns an object with:

    - "cpu" (`CpuTerm`): ``add_gradient(q, out)``, which adds dE/dq to ``out`` and returns the
      energy as a float. q and out are arrays of the program's type.  # (size,)
    - "cuda" (`DeviceTerm`): the same with tensors on the device; the energy is a float64 tensor
      without dimensions. ``capturable = True`` says that it can be recorded in a CUDA graph.
    - "torch" (`TorchTerm`): ``gradient(q)``, dE/dq of a batch in operations that autograd can
      differentiate, 0 for other variables.  # (B, n_vars, largest n_labels)
      Where ``degree`` is None also ``energy(q)``, in float64.  # (B,)

    If it has a static method ``accepts(term)``, a term for which that is False is computed as if
    there were no implementation.

    Args:
        term: The class of the terms.
        kernels: "cpu", "cuda" or "torch". The set "reference" calls a term's own methods.
        implementation: A class or a function, or "module:name" to import it when it is first
            needed. Without it, `register` is a decorator.
        replaces: Attributes of the term that the implementation computes itself. By default
            ``add_gradient``, ``energy``, ``degree`` and whatever the class has beyond `Term`.

    Returns:
        The implementation.

    Example:
        >>> import proxfield as pf
        >>> class Regions(pf.Consistency):
        ...     "Segments with CPU code of their own."
        >>> @pf.register(Regions, "cpu")
        ... class RegionsOnCpu:
        ...     def __init__(self, term, layout, dtype):
        ...         self.term, self.layout = term, layout
        ...     def add_gradient(self, q, out):
        ...         self.term.add_gradient(self.layout, q, out)
        ...         return self.term.energy(self.layout, q)
        >>> implementation(Regions([0, 0, 1]), "cpu") is RegionsOnCpu
        True
    """
    if not (isinstance(term, type) and issubclass(term, Term)):
        raise InputTypeError(f"register takes a class of terms, not {shown(term)}")
    if kernels not in SETS:
        raise InputError(
            f"can't register for the kernels {shown(kernels)}, expected one of: {', '.join(SETS)}"
        )
    if describes(term, "lower"):
        raise InputError(
            f"{term.__name__} offers lower(), so that its energy joins that of other terms; "
            "an implementation would never be asked"
        )
    names = replaced_by_default(term) if replaces is None else frozenset(replaces)
    for name in sorted(names):
        if not hasattr(term, name):
            raise InputError(f"replaces={shown(name)}, but {term.__name__} has no such attribute")

    def put(maker: Any) -> Any:
        named = isinstance(maker, str) and all(maker.partition(":"))
        if not (named or callable(maker)):
            raise InputTypeError(
                f'an implementation is a class, a function or "module:name", not {shown(maker)}'
            )
        _ENTRIES[term, kernels] = maker, names
        return maker

    return put if implementation is None else put(implementation)


def replaced_by_default(term: type[Term]) -> frozenset[str]:
    """``add_gradient``, ``energy``, ``degree`` and all that a class has beyond `Term`."""
    own = {name for base in term.__mro__ if base not in Term.__mro__ for name in vars(base)}
    special = {name for name in own if name.startswith("__")}
    return frozenset(own - special - NOT_EVALUATED) | EVALUATION


def implementation(term: Term, kernels: str) -> Maker | None:
    """The implementation of a term on an engine; None: its own methods are to be called.

    Args:
        term: The term.
        kernels: "cpu", "cuda" or "torch".

    Example:
        >>> implementation(Consistency([0, 0, 1]), "cpu") is None
        True
    """
    kind = type(term)
    for base in kind.__mro__:
        entry = _ENTRIES.get((base, kernels))
        if entry is None:
            continue
        own = (getattr_static(kind, name) is getattr_static(base, name) for name in entry[1])
        if not all(own):
            return None
        given = entry[0]
        if isinstance(given, str):
            given = resolve_name(given)
        maker: Maker = given
        accepts: Callable[[Term], bool] | None = getattr(maker, "accepts", None)
        return maker if accepts is None or accepts(term) else None
    return None


register(Gaussian, "cpu", "proxfield.core.engines.numba.dense_views:Views")
register(Gaussian, "cuda", "proxfield.core.engines.triton.terms.gaussian:GaussianOnDevice")
register(Gaussian, "torch", "proxfield.core.engines.torch.energy:AllPairs")
register(Consistency, "cuda", "proxfield.core.engines.triton.terms.base:ConsistencyOnDevice")
register(
    Cooccurrence, "cuda", "proxfield.core.engines.triton.terms.cooccurrence:CooccurrenceOnDevice"
)
register(
    LatentCooccurrence, "cuda", "proxfield.core.engines.triton.terms.cooccurrence:LatentOnDevice"
)
