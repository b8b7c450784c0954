"""The shapes and seeded data of `vkq check`, imported here for the tests."""

from vkq.check.cases import (
    CASES,
    KNOWN,
    ODD,
    TRANSPOSED,
    Case,
    random_conv2d,
    random_linear,
    random_transposed,
)
from vkq.check.data import Data, random_data

__all__ = [
    "CASES",
    "KNOWN",
    "ODD",
    "TRANSPOSED",
    "Case",
    "Data",
    "random_conv2d",
    "random_data",
    "random_linear",
    "random_transposed",
]
