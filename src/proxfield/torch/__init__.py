"""Differentiable inference for PyTorch: dense CRFs as layers, marginals with gradients.

`DenseCRF` is an ``nn.Module`` for images and volumes, `DenseCRFLoss` is its energy as a loss,
`infer` gives differentiable marginals of any sparse or mixed field, `gaussian_filter` is the sum
over all pairs that the first two are made of. Gradients are exact for the updates made; implicit
differentiation of the fixed point is an option. `refine` refines tensors without gradients, in a
few milliseconds. Names are loaded when first used; they need PyTorch:
``pip install "proxfield[gpu]"``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxfield.core.engines.torch.program import TorchProgram as TorchProgram
    from proxfield.core.filters.torch.filter import gaussian_filter as gaussian_filter
    from proxfield.core.filters.torch.plans import clear_plans as clear_plans
    from proxfield.torch.inference import infer as infer
    from proxfield.torch.layer import DenseCRF as DenseCRF
    from proxfield.torch.loss import DenseCRFLoss as DenseCRFLoss
    from proxfield.torch.refine import refine as refine

_HOME = {
    "DenseCRF": "torch.layer",
    "DenseCRFLoss": "torch.loss",
    "TorchProgram": "core.engines.torch.program",
    "clear_plans": "core.filters.torch.plans",
    "gaussian_filter": "core.filters.torch.filter",
    "infer": "torch.inference",
    "refine": "torch.refine",
}

__all__ = list(_HOME)  # names above, in the same order


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'proxfield.torch' has no attribute {name!r}")
    from proxfield.core.devices.cuda import need_torch

    need_torch()
    value = getattr(import_module(f"proxfield.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
