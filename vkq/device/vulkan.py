"""The process's one VkInstance, its physical devices, and opening a VkDevice with the features that vkq uses.

The PyPI package ``vulkan`` (a cffi binding) loads libvulkan when it is imported, so it is imported on first
use: ``import vkq`` works on a machine with no Vulkan at all.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

from ..errors import DeviceError, DeviceLostError, NoDeviceError, OutOfMemoryError, VkqError
from ..turns import FORKED, Turns
from . import drivers, newer, remedy, validation
from .meanwhile import long

# (struct, minimum core version, extension that brings it before that, fields): asked for where present,
# enabled at opening. The single-feature structs are used rather than VkPhysicalDeviceVulkan1xFeatures, so
# that Vulkan 1.1 and 1.2 devices with the extension are served by the same table.
FEATURES: tuple[tuple[str, tuple[int, int] | None, str | None, tuple[str, ...]], ...] = (
    (
        "ShaderIntegerDotProductFeatures",
        (1, 3),
        "VK_KHR_shader_integer_dot_product",
        ("shaderIntegerDotProduct",),
    ),
    ("Maintenance4Features", (1, 3), "VK_KHR_maintenance4", ("maintenance4",)),
    (
        "SubgroupSizeControlFeatures",
        (1, 3),
        "VK_EXT_subgroup_size_control",
        ("subgroupSizeControl", "computeFullSubgroups"),
    ),
    ("8BitStorageFeatures", (1, 2), "VK_KHR_8bit_storage", ("storageBuffer8BitAccess",)),
    ("16BitStorageFeatures", (1, 1), None, ("storageBuffer16BitAccess",)),
    ("ShaderFloat16Int8Features", (1, 2), "VK_KHR_shader_float16_int8", ("shaderFloat16", "shaderInt8")),
    (
        "VulkanMemoryModelFeatures",
        (1, 2),
        "VK_KHR_vulkan_memory_model",
        ("vulkanMemoryModel", "vulkanMemoryModelDeviceScope"),
    ),
    ("CooperativeMatrixFeaturesKHR", None, "VK_KHR_cooperative_matrix", ("cooperativeMatrix",)),
    (
        "ShaderBfloat16FeaturesKHR",
        None,
        "VK_KHR_shader_bfloat16",
        ("shaderBFloat16Type", "shaderBFloat16CooperativeMatrix"),
    ),
    (
        "PipelineExecutablePropertiesFeaturesKHR",
        None,
        "VK_KHR_pipeline_executable_properties",
        ("pipelineExecutableInfo",),
    ),
)
CORE_FEATURES = ("shaderInt64", "shaderInt16")

VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST = -1, -2, -4
_NO_LAYER = "VKQ_VALIDATION=1 asks for the validation layer: install vulkan-validationlayers, or unset it"
_lock = Turns("opening Vulkan")
_instance: Instance | None = None


@functools.cache
def binding() -> Any:
    """The ``vulkan`` package, imported late. Raises NoDeviceError where libvulkan is missing."""
    try:
        import vulkan
    except ModuleNotFoundError as error:
        raise NoDeviceError(
            f"the Python package vulkan is missing ({error}); install it with pip install vulkan"
        ) from error
    except (ImportError, OSError) as error:
        why = "" if isinstance(error, OSError) else f" ({error})"  # whose text asks for an SDK
        raise NoDeviceError(
            f"the Vulkan loader, libvulkan, could not be loaded{why}; install it: {remedy.loader()}; and a"
            f" driver: {remedy.driver()}"
        ) from error
    return vulkan


def result_name(result: int) -> str:
    """The name of a VkResult, such as ``VK_ERROR_DEVICE_LOST``."""
    vk = binding()
    for name in dir(vk):
        if (
            name.startswith(("VK_ERROR_", "VK_SUCCESS", "VK_TIMEOUT", "VK_NOT_READY"))
            and getattr(vk, name) == result
        ):
            return name
    return f"VkResult {result}"


def error_for(result: int, call: str) -> VkqError:
    """The exception for a failed Vulkan call (the extension raises it)."""
    text = f"{call} failed with {result_name(result)} ({result})"
    if result == VK_ERROR_DEVICE_LOST:
        return DeviceLostError(f"the device is lost: {text}; open a new vkq.Device", result, call)
    if result in (VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY):
        return OutOfMemoryError(
            f"{text}; free tensors or use smaller ones, the device stays usable", result, call
        )
    return DeviceError(text, result, call)


def never_computed(result: int, call: str) -> VkqError:
    """The error of reading what a failed submission should have computed."""
    cause = error_for(result, call)
    return type(cause)(
        f"this tensor was never computed, because its submission failed ({cause}); compute it again",
        result,
        call,
    )


def check(result: int, call: str) -> None:
    """Raises the typed error of a negative VkResult."""
    if result < 0:
        raise error_for(result, call)


class Instance:
    """The VkInstance, with the Khronos validation layer where VKQ_VALIDATION=1 asks for it."""

    def __init__(self) -> None:
        vk = binding()
        self.messages: list[str] = []  # what the validation layer said
        self.pid = os.getpid()
        self.drivers = drivers.tried()
        with drivers.told(self.drivers.environment):
            self._create(vk)

    def _create(self, vk: Any) -> None:
        ffi, lib = vk.ffi, vk.lib
        validate = validation.wanted()
        app = vk.VkApplicationInfo(
            pApplicationName="vkq", pEngineName="vkq", apiVersion=vk.VK_MAKE_VERSION(1, 3, 0)
        )
        layers, extensions, chain = [], [], None
        if validate:
            layers, extensions, chain = [validation.LAYER], list(validation.EXTENSIONS), validation.chain(vk)
        out = ffi.new("VkInstance*")
        # Without portability the loader hides devices such as MoltenVK's. An old loader has it not; to ask it
        # before would load every driver once more.
        for portability in (["VK_KHR_portability_enumeration"], []):
            info = vk.VkInstanceCreateInfo(
                flags=vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR if portability else 0,
                pNext=chain,
                pApplicationInfo=app,
                ppEnabledLayerNames=layers,
                ppEnabledExtensionNames=extensions + portability,
            )
            create = functools.partial(lib.vkCreateInstance, ffi.addressof(info), ffi.NULL, out)
            result = long(create)
            if result != vk.VK_ERROR_EXTENSION_NOT_PRESENT:
                break
        if result < 0:
            raise NoDeviceError(
                f"vkCreateInstance failed with {result_name(result)} ({result}): "
                + (_NO_LAYER if result == vk.VK_ERROR_LAYER_NOT_PRESENT else remedy.no_driver())
                + "".join(f"; {one}" for one in self.drivers.refused),
                result,
                "vkCreateInstance",
            )
        self.handle = out[0]
        if validate:
            create = self.function("vkCreateDebugUtilsMessengerEXT")
            info, messenger = validation.messenger(vk, self.messages), ffi.new("VkDebugUtilsMessengerEXT*")
            check(create(self.handle, info, ffi.NULL, messenger), "vkCreateDebugUtilsMessengerEXT")

    def function(self, name: str) -> Any:
        """An instance-level or device-level function that the cffi library does not export."""
        vk = binding()
        address = vk.lib.vkGetInstanceProcAddr(self.handle, name.encode())
        if address == vk.ffi.NULL:
            raise DeviceError(f"the Vulkan loader has no {name}")
        return vk.ffi.cast(f"PFN_{name}", address)

    def physical_devices(self) -> list[Any]:
        """Handles of the physical devices, in the loader's order; none is no error."""
        vk = binding()
        count = vk.ffi.new("uint32_t*")
        check(
            vk.lib.vkEnumeratePhysicalDevices(self.handle, count, vk.ffi.NULL), "vkEnumeratePhysicalDevices"
        )
        if count[0] == 0:
            return []
        out = vk.ffi.new("VkPhysicalDevice[]", count[0])
        check(vk.lib.vkEnumeratePhysicalDevices(self.handle, count, out), "vkEnumeratePhysicalDevices")
        return list(out)[: count[0]]


def instance() -> Instance:
    """The process's instance, made on first use. After a fork the child has none: Vulkan objects do not
    survive it."""
    global _instance
    with _lock:
        if _instance is None:
            _instance = Instance()
        if _instance.pid != os.getpid():
            raise DeviceError(FORKED)
        return _instance


def loader_version() -> str:
    """The Vulkan version that the loader offers, such as 1.3.239."""
    vk = binding()
    out = vk.ffi.new("uint32_t*")
    check(vk.lib.vkEnumerateInstanceVersion(out), "vkEnumerateInstanceVersion")
    return f"{out[0] >> 22 & 0x7F}.{out[0] >> 12 & 0x3FF}.{out[0] & 0xFFF}"


def refused_drivers() -> tuple[drivers.Refused, ...]:
    """The drivers that crashed or hung in the child that tried them, and are left out here."""
    return instance().drivers.refused


def validation_messages() -> list[str]:
    """What the Khronos validation layer has said so far (with VKQ_VALIDATION=1)."""
    return list(_instance.messages) if _instance else []


def handle_int(handle: Any) -> int:
    """A Vulkan handle as an integer, for the extension."""
    return int(binding().ffi.cast("uintptr_t", handle))


@functools.cache
def _structure_types() -> dict[str, int]:
    """sType by the struct's name without underscores and case: physicaldevicemaintenance4features."""
    vk, prefix = binding(), "VK_STRUCTURE_TYPE_"
    return {
        n[len(prefix) :].replace("_", "").lower(): getattr(vk, n) for n in dir(vk) if n.startswith(prefix)
    }


def struct(name: str) -> Any:
    """A zeroed ``Vk<name>`` with its sType set."""
    if name in newer.STRUCTS:
        return newer.struct(name)
    out = binding().ffi.new(f"Vk{name}*")
    out.sType = _structure_types()[name.lower()]
    return out


def chain(structs: list[Any]) -> Any:
    """Links structs by pNext in order and returns the first (NULL for none)."""
    ffi = binding().ffi
    for one, following in itertools.pairwise(structs):
        one.pNext = ffi.cast("void*", following)
    return ffi.cast("void*", structs[0]) if structs else ffi.NULL


def open_device(
    physical: Any, family: int, features: dict[str, bool], extensions: set[str]
) -> tuple[Any, Any]:
    """A VkDevice with one compute queue and every feature of the table that ``features`` says is there:
    (device, queue)."""
    vk = binding()
    ffi, lib = vk.ffi, vk.lib
    structs, wanted = [], []
    for name, _core, extension, fields in FEATURES:
        have = [f for f in fields if features.get(f)]
        if not have:
            continue
        one = struct(f"PhysicalDevice{name}")
        for field in have:
            setattr(one, field, 1)
        structs.append(one)
        if extension in extensions:
            wanted.append(extension)
    # The first for properties that shaders rely on; the second must be enabled where a device has it.
    wanted += [e for e in ("VK_KHR_shader_float_controls", "VK_KHR_portability_subset") if e in extensions]
    core = vk.VkPhysicalDeviceFeatures(**{f: 1 for f in CORE_FEATURES if features.get(f)})
    queue_info = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0])
    info = vk.VkDeviceCreateInfo(
        pNext=chain(structs),
        pQueueCreateInfos=[queue_info],
        pEnabledFeatures=core,
        ppEnabledExtensionNames=wanted,
    )
    out = ffi.new("VkDevice*")
    check(long(lambda: lib.vkCreateDevice(physical, ffi.addressof(info), ffi.NULL, out)), "vkCreateDevice")
    queue = ffi.new("VkQueue*")
    lib.vkGetDeviceQueue(out[0], family, 0, queue)
    return out[0], queue[0]
