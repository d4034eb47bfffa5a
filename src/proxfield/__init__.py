"""proxfield: mean field with parallel updates that provably converge.

Marginals, MAP labellings and certified bounds on log Z in discrete random fields (CRFs,
MRFs, factor graphs). Names are loaded when first used, so that importing the package
and showing the command line's help cost next to nothing.
"""

from __future__ import annotations

from proxfield._version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes some milliseconds to import, in which Ctrl-C isn't handled yet
    from typing import Any

    from proxfield.core.compiled.notice import quiet as quiet
    from proxfield.core.engines.plan import Custom as Custom
    from proxfield.core.engines.plan import Kind as Kind
    from proxfield.core.engines.plan import Order as Order
    from proxfield.core.engines.plan import Update as Update
    from proxfield.core.engines.terms import register as register
    from proxfield.core.filters.gaussian import gaussian_filter as gaussian_filter
    from proxfield.core.lowering.builder import Builder as Builder
    from proxfield.core.solve.curvature import Curvature as Curvature
    from proxfield.core.solve.history import Progress as Progress
    from proxfield.core.solve.infer import infer as infer
    from proxfield.core.solve.many import infer_many as infer_many
    from proxfield.core.solve.rules.base import Problem as Problem
    from proxfield.core.solve.rules.base import Rule as Rule
    from proxfield.core.solve.rules.parallel import CustomRule as CustomRule
    from proxfield.core.solve.rules.registry import RULES as RULES
    from proxfield.core.solve.solve_map import MapResult as MapResult
    from proxfield.core.solve.solve_map import MapStatus as MapStatus
    from proxfield.core.solve.solve_map import MapTrace as MapTrace
    from proxfield.core.solve.solve_map import solve_map as solve_map
    from proxfield.core.terms.base import Layout as Layout
    from proxfield.core.terms.base import Term as Term
    from proxfield.core.terms.consistency import Consistency as Consistency
    from proxfield.core.terms.cooccurrence import Cooccurrence as Cooccurrence
    from proxfield.core.terms.factor import Factor as Factor
    from proxfield.core.terms.gaussian import Gaussian as Gaussian
    from proxfield.core.terms.grid import GridPairwise as GridPairwise
    from proxfield.core.terms.pairwise import Ising as Ising
    from proxfield.core.terms.pairwise import Pairwise as Pairwise
    from proxfield.core.terms.pairwise import Potts as Potts
    from proxfield.core.terms.registry import TERMS as TERMS
    from proxfield.core.terms.registry import saveable as saveable
    from proxfield.core.terms.unary import Constant as Constant
    from proxfield.core.terms.unary import Unary as Unary
    from proxfield.errors import InputError as InputError
    from proxfield.errors import MemoryLimitError as MemoryLimitError
    from proxfield.errors import ProxfieldError as ProxfieldError
    from proxfield.errors import UnsupportedError as UnsupportedError
    from proxfield.field import Field as Field
    from proxfield.images.batch import refine_batch as refine_batch
    from proxfield.images.cooccurrence import CooccurrenceStatistics as CooccurrenceStatistics
    from proxfield.images.dense_result import DenseResult as DenseResult
    from proxfield.images.densecrf import DenseCRF as DenseCRF
    from proxfield.images.pixels import bilateral_filter as bilateral_filter
    from proxfield.images.search import TuneProgress as TuneProgress
    from proxfield.images.search import TuneResult as TuneResult
    from proxfield.images.settings import PRESETS as PRESETS
    from proxfield.images.settings import DenseSettings as DenseSettings
    from proxfield.images.settings import read_config as read_config
    from proxfield.images.settings import write_config as write_config
    from proxfield.images.tiles import TilesResult as TilesResult
    from proxfield.images.tiles import refine_tiles as refine_tiles
    from proxfield.images.tune import tune as tune
    from proxfield.io import uai
    from proxfield.io.results import read_evidence as read_evidence
    from proxfield.mixture import Clamp as Clamp
    from proxfield.mixture import Mode as Mode
    from proxfield.people.occupancy import Occupancy as Occupancy
    from proxfield.people.silhouettes import Boxes as Boxes
    from proxfield.people.silhouettes import Runs as Runs
    from proxfield.people.silhouettes import Silhouettes as Silhouettes
    from proxfield.result import Result as Result
    from proxfield.result import Status as Status
    from proxfield.result import Trace as Trace
    from proxfield.warming import warmup as warmup

    read_uai, write_uai = uai.read_model, uai.write_model

APPLICATIONS = ("images.registration", "people.original")
"""Modules that add what applications bring to the core's registries, imported when it is needed."""

_PLACES = {
    "core.compiled.notice": "quiet",
    "core.engines.plan": "Custom Kind Order Update",
    "core.engines.terms": "register",
    "core.filters.gaussian": "gaussian_filter",
    "core.lowering.builder": "Builder",
    "core.solve.curvature": "Curvature",
    "core.solve.history": "Progress",
    "core.solve.infer": "infer",
    "core.solve.many": "infer_many",
    "core.solve.rules.base": "Problem Rule",
    "core.solve.rules.parallel": "CustomRule",
    "core.solve.rules.registry": "RULES",
    "core.solve.solve_map": "MapResult MapStatus MapTrace solve_map",
    "core.terms.base": "Layout Term",
    "core.terms.registry": "TERMS saveable",
    "errors": "InputError MemoryLimitError ProxfieldError UnsupportedError",
    "field": "Field",
    "images.batch": "refine_batch",
    "images.pixels": "bilateral_filter",
    "images.cooccurrence": "CooccurrenceStatistics",
    "images.dense_result": "DenseResult",
    "images.densecrf": "DenseCRF",
    "images.search": "TuneProgress TuneResult",
    "images.settings": "PRESETS DenseSettings read_config write_config",
    "images.tiles": "TilesResult refine_tiles",
    "images.tune": "tune",
    "io.results": "read_evidence",
    "io.uai": "read_uai write_uai",
    "mixture": "Clamp Mode",
    "people.occupancy": "Occupancy",
    "people.silhouettes": "Boxes Runs Silhouettes",
    "result": "Result Status Trace",
    "warming": "warmup",
}
"""Public names by module, but for the terms of the core, which `TERMS` has."""
_HOME = {name: module for module, names in _PLACES.items() for name in names.split()}
_THERE = {"read_uai": "read_model", "write_uai": "write_model"}
"""What names are called in their modules, where it differs."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    # PyTorch itself is imported when its layer is used
    if name in ("distributed", "generate", "learn", "torch"):
        return import_module(f"proxfield.{name}")
    if name == "__all__":
        return sorted({*_HOME, "__version__", *_terms()})
    if name in _HOME:
        value = getattr(import_module(f"proxfield.{_HOME[name]}"), _THERE.get(name, name))
    elif not name.startswith("_") and name in (terms := _terms()):
        value = getattr(import_module(terms[name]), name)
    else:
        raise AttributeError(f"module 'proxfield' has no attribute {name!r}")
    globals()[name] = value
    return value


def _terms() -> dict[str, str]:
    """The modules of the core's terms, by the names of their classes."""
    from importlib import import_module

    places = import_module("proxfield.core.terms.registry").TERMS.places.values()
    return {name: module for module, _, name in (place.partition(":") for place in places)}


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
