"""The number of cores of a device. A core runs whole workgroups. Vendors call cores multiprocessors (NVIDIA),
compute units (AMD), shader cores (Arm) or Xe-cores (Intel)."""

from __future__ import annotations

from .capabilities import Capabilities

# The properties that hold the number of cores, in the extensions VK_NV_shader_sm_builtins,
# VK_AMD_shader_core_properties2 and VK_ARM_shader_core_builtins.
PROPERTIES = ("shaderSMCount", "activeComputeUnitCount", "shaderCoreCount")
INTEL = 0x8086
# {device id: number of Xe-cores}, which no extension reports. Sources:
# - numbers: the entry "Xe-cores" on each product's page at https://www.intel.com/content/www/us/en/ark.html
# - ids: https://dgpu-docs.intel.com/devices/hardware-table.html
XE_CORES = {
    0x56A6: 6,  # Arc A310
    0x5693: 8,  # Arc A370M
    0x56A5: 8,  # Arc A380
    0x5692: 16,  # Arc A550M
    0x56A2: 24,  # Arc A580
    0x5691: 24,  # Arc A730M
    0x56A1: 28,  # Arc A750
    0x5690: 32,  # Arc A770M
    0x56A0: 32,  # Arc A770
    0xE20C: 18,  # Arc B570
    0xE20B: 20,  # Arc B580
}


def told_cores(c: Capabilities) -> int | None:
    """Return the number of cores that the driver reports, else the number listed for the device's id.
    Return None if there is neither; the probe then measures the number."""
    told = next((c.properties[name] for name in PROPERTIES if c.properties.get(name)), None)
    return told or (XE_CORES.get(c.device_id) if c.vendor_id == INTEL else None)
