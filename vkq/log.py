"""The logger ``vkq`` of the standard library's `logging`. It is silent unless the program gives it a
handler."""

from __future__ import annotations

import logging

LOG = logging.getLogger("vkq")
LOG.addHandler(logging.NullHandler())  # without a handler, Python would print the warnings
