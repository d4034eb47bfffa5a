"""Values by name, as options of a command and objects of JSON have them."""

from __future__ import annotations

from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
"""Values of any kinds by name."""
