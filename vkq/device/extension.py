"""Import the compiled extension ``vkq._kompute`` at its first use, so that the shader tools work without
the extension."""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ..errors import DeviceError

_BINDINGS = Path(__file__).parents[1] / "runtime" / "native"  # the folder of bind*.cpp
_REMEDY = "build it again: make (in a checkout), or pip install --force-reinstall vkq"


@functools.cache
def native_module() -> Any:
    """Import and return the extension. In a checkout, the extension must have been built from the bindings
    of this checkout: the functions of another build may have other arguments.

    Raises DeviceError if the extension is missing, is for another Python, or was built from other bindings.
    """
    try:
        module = importlib.import_module("vkq._kompute")
    except ImportError as error:
        raise DeviceError(_missing(error)) from error
    sources, built = _sources(), getattr(module, "bindings_sha256", None)
    if sources not in (None, built):
        raise DeviceError(
            f"{module.__file__} is stale: it was built from other bindings"
            f" ({str(built)[:8]}) than those in {_BINDINGS} ({str(sources)[:8]}); {_REMEDY}"
        )
    return module


def _sources() -> str | None:
    """Return the hash of the extension's bindings (the files that define its functions), which
    CMakeLists.txt computes in the same way. Return None in a wheel, which has no bindings."""
    found = sorted(_BINDINGS.glob("bind*.cpp"))
    hashes = "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in found)
    return hashlib.sha256(hashes.encode()).hexdigest() if found else None


def _missing(error: ImportError) -> str:
    """Return an error text for a failed import of the extension, with the cause and the remedy."""
    here = sysconfig.get_config_var("SOABI")
    folders = sys.modules["vkq"].__path__
    found = sorted({p.name for folder in folders for p in Path(folder).glob("_kompute*.so")})
    others = f"; there is {', '.join(found)}, and this Python takes {here}" if found else ""
    return f"vkq's compiled extension cannot be imported ({error}){others}; {_REMEDY} with this Python"
