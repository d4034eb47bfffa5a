"""Values by name, as options of a command and objects of JSON have them."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
"""Values of any kinds by name."""


def plain(value: Any) -> Any:
    """The same data as JSON has it: null for numbers that aren't finite, lists, plain types."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if hasattr(value, "tolist"):  # an array, or a number of numpy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
