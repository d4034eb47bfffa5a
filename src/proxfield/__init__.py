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

    from proxfield.backends.terms import register as register
    from proxfield.compiled.notice import quiet as quiet
    from proxfield.errors import InputError as InputError
    from proxfield.errors import MemoryLimitError as MemoryLimitError
    from proxfield.errors import ProxfieldError as ProxfieldError
    from proxfield.errors import UnsupportedError as UnsupportedError
    from proxfield.field import Field as Field
    from proxfield.filters.gaussian import gaussian_filter as gaussian_filter
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
    from proxfield.inference.curvature import Curvature as Curvature
    from proxfield.inference.history import Progress as Progress
    from proxfield.inference.infer import infer as infer
    from proxfield.inference.many import infer_many as infer_many
    from proxfield.inference.map_result import MapResult as MapResult
    from proxfield.inference.map_result import MapStatus as MapStatus
    from proxfield.inference.map_result import MapTrace as MapTrace
    from proxfield.inference.solve_map import solve_map as solve_map
    from proxfield.io.evidence import read_evidence as read_evidence
    from proxfield.io.uai import read_model as read_uai
    from proxfield.io.uai_write import write_model as write_uai
    from proxfield.lowering.builder import Builder as Builder
    from proxfield.mixture import Clamp as Clamp
    from proxfield.mixture import Mode as Mode
    from proxfield.result import Result as Result
    from proxfield.result import Status as Status
    from proxfield.result import Trace as Trace
    from proxfield.rules.base import Rule as Rule
    from proxfield.rules.parallel import CustomRule as CustomRule
    from proxfield.rules.plan import Custom as Custom
    from proxfield.rules.plan import Kind as Kind
    from proxfield.rules.plan import Order as Order
    from proxfield.rules.plan import Update as Update
    from proxfield.rules.registry import RULES as RULES
    from proxfield.rules.session import Problem as Problem
    from proxfield.terms import TERMS as TERMS
    from proxfield.terms import Boxes as Boxes
    from proxfield.terms import Consistency as Consistency
    from proxfield.terms import Constant as Constant
    from proxfield.terms import Cooccurrence as Cooccurrence
    from proxfield.terms import Factor as Factor
    from proxfield.terms import Gaussian as Gaussian
    from proxfield.terms import GridPairwise as GridPairwise
    from proxfield.terms import Ising as Ising
    from proxfield.terms import Layout as Layout
    from proxfield.terms import Occupancy as Occupancy
    from proxfield.terms import Pairwise as Pairwise
    from proxfield.terms import Potts as Potts
    from proxfield.terms import Runs as Runs
    from proxfield.terms import Silhouettes as Silhouettes
    from proxfield.terms import Term as Term
    from proxfield.terms import Unary as Unary
    from proxfield.terms import saveable as saveable
    from proxfield.warming import warmup as warmup

_HOME = {
    "CooccurrenceStatistics": "images.cooccurrence",
    "Curvature": "inference.curvature",
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
    "register": "backends.terms",
    "InputError": "errors",
    "MemoryLimitError": "errors",
    "ProxfieldError": "errors",
    "UnsupportedError": "errors",
    "Field": "field",
    "gaussian_filter": "filters.gaussian",
    "bilateral_filter": "images.bilateral",
    "Custom": "rules.plan",
    "Kind": "rules.plan",
    "Order": "rules.plan",
    "Update": "rules.plan",
    "Progress": "inference.history",
    "Builder": "lowering.builder",
    "infer": "inference.infer",
    "infer_many": "inference.many",
    "MapResult": "inference.map_result",
    "MapStatus": "inference.map_result",
    "MapTrace": "inference.map_result",
    "solve_map": "inference.solve_map",
    "read_evidence": "io.evidence",
    "RULES": "rules.registry",
    "Clamp": "mixture",
    "Mode": "mixture",
    "Result": "result",
    "Status": "result",
    "Trace": "result",
    "CustomRule": "rules.parallel",
    "Rule": "rules.base",
    "Problem": "rules.session",
    "TERMS": "terms",
    "Boxes": "terms",
    "Consistency": "terms",
    "Constant": "terms",
    "Cooccurrence": "terms",
    "Factor": "terms",
    "Gaussian": "terms",
    "GridPairwise": "terms",
    "Ising": "terms",
    "Layout": "terms",
    "Occupancy": "terms",
    "Pairwise": "terms",
    "Potts": "terms",
    "Runs": "terms",
    "Silhouettes": "terms",
    "Term": "terms",
    "Unary": "terms",
    "saveable": "terms",
    "read_uai": "io.uai:read_model",
    "write_uai": "io.uai_write:write_model",
    "quiet": "compiled.notice",
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
