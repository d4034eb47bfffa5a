"""The logger "proxfield": silent unless the program that uses the library listens to it.

import logging
logging.basicConfig()
logging.getLogger("proxfield").setLevel(logging.DEBUG)
"""

from __future__ import annotations

import logging

log = logging.getLogger("proxfield")
log.addHandler(logging.NullHandler())  # else Python prints warnings that nobody listens to
