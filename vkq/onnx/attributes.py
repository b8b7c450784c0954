"""The types of attributes. An attribute has the same type in all of ONNX's operators that vkq knows, so the
name of the attribute determines the type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ModelError
from ..graph.graph import Node


def _is_integer(value: Any) -> bool:
    return isinstance(value, int)


def _are_integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_integer, value))


Fits = Callable[[Any], bool]
KINDS: dict[str, tuple[Fits, tuple[str, ...]]] = {
    "a whole number": (
        _is_integer,
        (
            "K", "N", "accuracy_level", "allowzero", "antialias", "axis", "bits", "block_size", "blocksize",
            "ceil_mode", "channels_last", "count_include_pad", "group", "keepdims", "noop_with_empty_axes",
            "num_outputs", "saturate", "select_last_index", "start", "storage_order", "training_mode",
            "transA", "transB",
        ),
    ),
    "whole numbers": (
        _are_integers,
        ("axes", "dilations", "kernel_shape", "output_padding", "output_shape", "pads", "perm", "strides"),
    ),
    "a number": (
        lambda value: isinstance(value, int | float),
        ("alpha", "beta", "epsilon", "extrapolation_value", "gamma", "momentum"),
    ),
    "a text": (
        lambda value: isinstance(value, str),
        (
            "approximate", "auto_pad", "coordinate_transformation_mode", "keep_aspect_ratio_policy", "mode",
            "nearest_mode",
        ),
    ),
}  # fmt: skip
_BY_NAME = {name: (kind, fits) for kind, (fits, names) in KINDS.items() for name in names}


def check_attributes(node: Node) -> None:
    """Raise ModelError if an attribute of a known operator has the wrong type."""
    for name, value in node.attributes.items():
        kind, fits = _BY_NAME.get(name, ("", None))
        if fits is not None and not fits(value):
            raise ModelError(f"{node}: its attribute {name} is {value!r:.60}; it must be {kind}")
