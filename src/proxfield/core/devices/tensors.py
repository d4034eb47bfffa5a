"""Names for torch's types in annotations.

torch is optional and isn't installed where types are checked, so to the type checker each of them
is ``Any``. They say what is meant, and `typing.Any` stays for what may truly be anything.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""A ``torch.Tensor``."""
TorchDevice: TypeAlias = Any
"""A ``torch.device``, or what makes one: its name; where it may be left out, None."""
TorchDtype: TypeAlias = Any
"""A ``torch.dtype``, for example ``torch.float32``."""
CudaGraph: TypeAlias = Any
"""A ``torch.cuda.CUDAGraph``."""
AutogradContext: TypeAlias = Any
"""What ``torch.autograd`` hands from a forward to its backward function."""
AutogradFunction: TypeAlias = Any
"""A class derived from ``torch.autograd.Function``."""
Kernel: TypeAlias = Any
"""A function compiled by Triton: launched as ``kernel[grid](...)``."""
constexpr: TypeAlias = Any
"""A ``triton.language.constexpr``: an argument that a kernel is compiled for."""
