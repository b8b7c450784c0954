"""Make the inputs of a model for a measurement: random values with a fixed seed. Shapes and ranges come from
the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from vkq.errors import ArgumentError, ModelError
from vkq.graph.graph import Array
from vkq.onnx.session import InferenceSession

MANY = 1 << 20  # an integer input whose values may be this large is assumed not to be row indices
Range = tuple[int, int]


def ranges_of(texts: Sequence[str]) -> dict[str, Range]:
    """Parse the values of the option ``--ids``, each NAME=LOW:HIGH. Return a dict from the input's name to
    (LOW, HIGH), where HIGH is excluded.

    >>> ranges_of(["input_ids=0:30000"])
    {'input_ids': (0, 30000)}
    """
    found = {}
    for text in texts:
        parts = re.fullmatch(r"(.+)=(-?\d{1,10}):(-?\d{1,10})", text)
        if not parts or int(parts[2]) >= int(parts[3]):
            raise ArgumentError(f"--ids is {text!r}; write it as NAME=LOW:HIGH, such as input_ids=0:30000")
        found[parts[1]] = int(parts[2]), int(parts[3])
    return found


def random_inputs(
    session: InferenceSession, shapes: Mapping[str, tuple[int, ...]], ids: Mapping[str, Range]
) -> dict[str, Array]:
    """Return a random array for each input of the model. Floats are normally distributed. Integers are in
    the range that *ids* gives for the input. Without such a range they are valid row indices if the model
    uses the input as indices; else they are 0 and 1."""
    types = {argument.name: argument.dtype for argument in session.model.inputs}
    wrong = [name for name in ids if np.dtype(types.get(name, "float32")).kind not in "iu"]
    if wrong:
        raise ArgumentError(f"--ids names {wrong}; the model's inputs are {types}")
    try:
        bounds = session.lowered(shapes).bounds
    except ModelError:  # shapes depend on values, or the whole model runs on the CPU: no bounds are known
        bounds = {}
    random, feed = np.random.default_rng(0), {}
    for name, dtype in types.items():
        if dtype in ("float32", "float16"):
            feed[name] = random.standard_normal(shapes[name], np.float32).astype(dtype)
            continue
        high = bounds.get(name, (0, MANY))[1] + 1
        low, end = ids.get(name, (0, high if high < MANY and dtype != "bool" else 2))
        feed[name] = random.integers(low, end, shapes[name]).astype(dtype)
    return feed
