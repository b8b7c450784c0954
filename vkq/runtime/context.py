"""Open a device: choose the physical device, and create its VkDevice and the extension's context."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Any, NoReturn, Protocol

from ..device import verdict, vulkan
from ..device.capabilities import Capabilities
from ..device.choose import choose_device
from ..device.extension import native_module
from ..device.profiles import profile
from ..device.refused import believed
from ..device.watchdog import LONGEST_S
from ..errors import ArgumentError, DTypeError, NoDeviceError

OPERATIONS_BEFORE_SUBMIT = 256
# Maximum number of submissions in flight, because each holds memory. The host waits before it adds another.
SUBMISSIONS_IN_FLIGHT = 4


class Closes(Protocol):
    def close(self) -> None: ...


class OfOneProcess:
    """Base class of objects that belong to a device and therefore can be neither pickled nor copied."""

    def __reduce__(self) -> NoReturn:
        raise DTypeError(
            f"{type(self).__name__}: objects on a device belong to one process and cannot be pickled or"
            " copied; open a Device in each process, and send arrays (Tensor.numpy) or a"
            " vkq.onnx.InferenceSession, which opens a device in the other process"
        )


_open: weakref.WeakSet[Closes] = weakref.WeakSet()


def open_context(
    which: int | str | None, given: Capabilities | None, tune: str
) -> tuple[Capabilities, bool, Any]:
    """Open the device for the arguments of `vkq.Device`; *given*: capabilities that replace those of the
    device. Return (capabilities, whether a test replaced them, open context). Another process would not see
    replaced capabilities."""
    extension = native_module()  # first, because nothing is open yet if the import fails
    physical, found = choose_device(given.index if which is None and given else which)
    if tune not in ("auto", "off"):
        raise ArgumentError(f"Device: tune is {tune!r}; it must be 'auto' or 'off'")
    c = given or believed(verdict.with_choices(found) if tune == "auto" else found)
    family, refusal = c.compute_family, c.refusal()
    if refusal or family is None:
        raise NoDeviceError(f"{c.name} cannot run vkq: {refusal}")
    handle, queue = vulkan.open_device(physical, family, dict(c.features), set(c.extensions))
    context = extension.Context(
        vulkan.instance().native, physical, handle, queue, family, profile(c).wide_barriers,
        c.properties["maxStorageBufferRange"], c.properties["maxTexelBufferElements"], c.name,
    )  # fmt: skip
    context.queue.operations_per_chain = OPERATIONS_BEFORE_SUBMIT
    context.queue.chains_in_flight = SUBMISSIONS_IN_FLIGHT
    context.queue.longest_ns = round(1e9 * LONGEST_S)
    return c, c.key != found.key, context


def close_at_exit(device: Closes) -> None:
    """Register a device. If it is open at exit, it is closed before the interpreter destroys objects that
    it uses."""
    _open.add(device)


@atexit.register
def _close_all() -> None:
    if not _open:
        return
    native_module().begin_exit()
    for device in list(_open):
        with contextlib.suppress(Exception):
            device.close()
