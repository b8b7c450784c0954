"""Features whose tests failed in the device's probe. vkq then uses kernels without these features, with the
same results. `vkq.select.path` refuses the paths and dot forms that failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from . import verdict
from .capabilities import Capabilities

TEXELS, SHUFFLES, MATRICES = "texels", "shuffles", "matrices"  # names of tests of the probe
FEATURES = {TEXELS: "texel buffers", SHUFFLES: "subgroup shuffles", MATRICES: "matrix units"}
SHUFFLE = 16  # VK_SUBGROUP_FEATURE_SHUFFLE_BIT


def refused(failures: Mapping[str, str]) -> dict[str, str]:
    """Return the features whose test failed: {name of the feature: error of its test}.

    >>> refused({"texels": "1 of 2 words wrong", "u8s8": "2 of 2 wrong"})
    {'texel buffers': '1 of 2 words wrong'}
    """
    return {name: failures[test] for test, name in FEATURES.items() if test in failures}


def without(c: Capabilities) -> tuple[str, ...]:
    """Return a text for each feature of a device whose test failed, with the error. Return no text if this
    process has no report of the device's probe."""
    found = verdict.known(c)
    return tuple(f"{name} ({why})" for name, why in refused(found.failures if found else {}).items())


def believed(c: Capabilities) -> Capabilities:
    """Return the capabilities of a device, without texel buffers and subgroup shuffles if their tests
    failed. Matrix units remain: `vkq.select.path.refusal` refuses them if their test failed."""
    found = verdict.known(c)
    failures, properties = found.failures if found else {}, dict(c.properties)
    if TEXELS in failures:
        properties["maxTexelBufferElements"] = 0
    if SHUFFLES in failures:
        properties["supportedOperations"] &= ~SHUFFLE
    return dataclasses.replace(c, properties=properties) if properties != c.properties else c
