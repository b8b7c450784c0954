"""Load the extension built with sanitizers (``make sanitize``) instead of the usual one, in this process
and its children. PYTHONPATH contains this folder, so Python imports this module at its start."""

import importlib.abc
import importlib.util
import os
import sys

PATH = os.environ.get("VKQ_SANITIZED_EXTENSION")


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        return importlib.util.spec_from_file_location(name, PATH) if name == "vkq._kompute" else None


if PATH:
    sys.meta_path.insert(0, Finder())
