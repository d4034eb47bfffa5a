"""What pydensecrf offers, on proxfield: the same names, arguments, errors and results.

Modules as in the original: `densecrf`, `eigen` and `utils`. Import them from here, or see
`proxfield.compat.install` for scripts that aren't to be edited.
"""

from __future__ import annotations

THREADS: int | None = None
"""Maximum number of threads; None: all cores. (The original uses one.)"""
