"""The nodes and constants of an ONNX graph under construction."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper


class Nodes:
    """Base class of models that tests build: nodes in order, constants, and a random generator. Nodes have
    names like those of exporters."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def _op(self, op: str, *inputs: str, y: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = y or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"/{op}_{len(self.nodes)}", **attributes))
        return name

    def _constant(self, array: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name
