"""proxfield: mean field with parallel updates that provably converge.

Marginals, MAP labellings and certified bounds on log Z in discrete random fields (CRFs,
MRFs, factor graphs). Names are loaded when first used, so that importing the package
and showing the command line's help cost next to nothing.
"""

from __future__ import annotations

from proxfield._version import __version__

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
    from proxfield.core.solve.map_result import MapResult as MapResult
    from proxfield.core.solve.map_result import MapStatus as MapStatus
    from proxfield.core.solve.map_result import MapTrace as MapTrace
    from proxfield.core.solve.problem import Problem as Problem
    from proxfield.core.solve.rules.base import Rule as Rule
    from proxfield.core.solve.rules.parallel import CustomRule as CustomRule
    from proxfield.core.solve.rules.registry import RULES as RULES
    from proxfield.core.solve.solve_map import solve_map as solve_map
    from proxfield.core.terms.base import Layout as Layout
    from proxfield.core.terms.base import Term as Term
    from proxfield.core.terms.consistency import Consistency as Consistency
    from proxfield.core.terms.cooccurrence import Cooccurrence as Cooccurrence
    from proxfield.core.terms.factor import Factor as Factor
    from proxfield.core.terms.gaussian import Gaussian as Gaussian
    from proxfield.core.terms.grid import GridPairwise as GridPairwise
    from proxfield.core.terms.occupancy import Occupancy as Occupancy
    from proxfield.core.terms.pairwise import Ising as Ising
    from proxfield.core.terms.pairwise import Pairwise as Pairwise
    from proxfield.core.terms.pairwise import Potts as Potts
    from proxfield.core.terms.registry import TERMS as TERMS
    from proxfield.core.terms.saving import saveable as saveable
    from proxfield.core.terms.silhouettes import Boxes as Boxes
    from proxfield.core.terms.silhouettes import Runs as Runs
    from proxfield.core.terms.silhouettes import Silhouettes as Silhouettes
    from proxfield.core.terms.unary import Constant as Constant
    from proxfield.core.terms.unary import Unary as Unary
    from proxfield.errors import InputError as InputError
    from proxfield.errors import MemoryLimitError as MemoryLimitError
    from proxfield.errors import ProxfieldError as ProxfieldError
    from proxfield.errors import UnsupportedError as UnsupportedError
    from proxfield.field import Field as Field
    from proxfield.images.batch import refine_batch as refine_batch
    from proxfield.images.bilateral import bilateral_filter as bilateral_filter
    from proxfield.images.config import read_config as read_config
    from proxfield.images.config import write_config as write_config
    from proxfield.images.cooccurrence import CooccurrenceStatistics as CooccurrenceStatistics
    from proxfield.images.densecrf import DenseCRF as DenseCRF
    from proxfield.images.densecrf import DenseResult as DenseResult
    from proxfield.images.presets import PRESETS as PRESETS
    from proxfield.images.tiles import TilesResult as TilesResult
    from proxfield.images.tiles import refine_tiles as refine_tiles
    from proxfield.images.tune import TuneProgress as TuneProgress
    from proxfield.images.tune import TuneResult as TuneResult
    from proxfield.images.tune import tune as tune
    from proxfield.io.evidence import read_evidence as read_evidence
    from proxfield.io.uai import read_model as read_uai
    from proxfield.io.uai_write import write_model as write_uai
    from proxfield.mixture import Clamp as Clamp
    from proxfield.mixture import Mode as Mode
    from proxfield.result import Result as Result
    from proxfield.result import Status as Status
    from proxfield.result import Trace as Trace
    from proxfield.warming import warmup as warmup

_HOME = {
    "CooccurrenceStatistics": "images.cooccurrence",
    "Curvature": "core.solve.curvature",
    "DenseCRF": "images.densecrf",
    "DenseResult": "images.densecrf",
    "refine_batch": "images.batch",
    "refine_tiles": "images.tiles",
    "TilesResult": "images.tiles",
    "PRESETS": "images.presets",
    "TuneProgress": "images.tune",
    "TuneResult": "images.tune",
    "read_config": "images.config",
    "tune": "images.tune",
    "write_config": "images.config",
    "register": "core.engines.terms",
    "InputError": "errors",
    "MemoryLimitError": "errors",
    "ProxfieldError": "errors",
    "UnsupportedError": "errors",
    "Field": "field",
    "gaussian_filter": "core.filters.gaussian",
    "bilateral_filter": "images.bilateral",
    "Custom": "core.engines.plan",
    "Kind": "core.engines.plan",
    "Order": "core.engines.plan",
    "Update": "core.engines.plan",
    "Progress": "core.solve.history",
    "Builder": "core.lowering.builder",
    "infer": "core.solve.infer",
    "infer_many": "core.solve.many",
    "MapResult": "core.solve.map_result",
    "MapStatus": "core.solve.map_result",
    "MapTrace": "core.solve.map_result",
    "solve_map": "core.solve.solve_map",
    "read_evidence": "io.evidence",
    "RULES": "core.solve.rules.registry",
    "Clamp": "mixture",
    "Mode": "mixture",
    "Result": "result",
    "Status": "result",
    "Trace": "result",
    "CustomRule": "core.solve.rules.parallel",
    "Rule": "core.solve.rules.base",
    "Problem": "core.solve.problem",
    "TERMS": "core.terms.registry",
    "Boxes": "core.terms.silhouettes",
    "Consistency": "core.terms.consistency",
    "Constant": "core.terms.unary",
    "Cooccurrence": "core.terms.cooccurrence",
    "Factor": "core.terms.factor",
    "Gaussian": "core.terms.gaussian",
    "GridPairwise": "core.terms.grid",
    "Ising": "core.terms.pairwise",
    "Layout": "core.terms.base",
    "Occupancy": "core.terms.occupancy",
    "Pairwise": "core.terms.pairwise",
    "Potts": "core.terms.pairwise",
    "Runs": "core.terms.silhouettes",
    "Silhouettes": "core.terms.silhouettes",
    "Term": "core.terms.base",
    "Unary": "core.terms.unary",
    "saveable": "core.terms.saving",
    "read_uai": "io.uai:read_model",
    "write_uai": "io.uai_write:write_model",
    "quiet": "core.compiled.notice",
    "warmup": "warming",
}

__all__ = [
    "PRESETS",
    "RULES",
    "TERMS",
    "Boxes",
    "Builder",
    "Clamp",
    "Consistency",
    "Constant",
    "Cooccurrence",
    "CooccurrenceStatistics",
    "Curvature",
    "Custom",
    "CustomRule",
    "DenseCRF",
    "DenseResult",
    "Factor",
    "Field",
    "Gaussian",
    "GridPairwise",
    "InputError",
    "Ising",
    "Kind",
    "Layout",
    "MapResult",
    "MapStatus",
    "MapTrace",
    "MemoryLimitError",
    "Mode",
    "Occupancy",
    "Order",
    "Pairwise",
    "Potts",
    "Problem",
    "Progress",
    "ProxfieldError",
    "Result",
    "Rule",
    "Runs",
    "Silhouettes",
    "Status",
    "Term",
    "TilesResult",
    "Trace",
    "TuneProgress",
    "TuneResult",
    "Unary",
    "UnsupportedError",
    "Update",
    "__version__",
    "bilateral_filter",
    "gaussian_filter",
    "infer",
    "infer_many",
    "quiet",
    "read_config",
    "read_evidence",
    "read_uai",
    "refine_batch",
    "refine_tiles",
    "register",
    "saveable",
    "solve_map",
    "tune",
    "warmup",
    "write_config",
    "write_uai",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    # PyTorch itself is imported when its layer is used
    if name in ("distributed", "generate", "learn", "torch"):
        return import_module(f"proxfield.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'proxfield' has no attribute {name!r}")
    module, _, other = _HOME[name].partition(":")
    value = getattr(import_module(f"proxfield.{module}"), other or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
