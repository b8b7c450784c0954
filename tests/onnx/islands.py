"""Random graphs of floats, 8-bit values, integers and flags, with changing sizes, compared with ONNX
Runtime.

python -m tests.onnx.islands 5000          compares 5000 graphs, on the default device
python -m tests.onnx.islands 5000 20000    begins with seed 20000
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from vkq.onnx.prepared import Staged

from .networks import onnxruntime_results

K, ROWS = 6, 11
FLOATS, INTS, FLAGS = "float", "int", "flag"
TYPES = {FLOATS: TensorProto.FLOAT, INTS: TensorProto.INT64, FLAGS: TensorProto.BOOL}
# (operator, types of its operands, type of its result); operands have shape (N, L, K)
ELEMENTS = [
    ("Add", [INTS, INTS], INTS), ("Sub", [INTS, INTS], INTS), ("Max", [INTS, INTS], INTS),
    ("Mul", [INTS, INTS], INTS), ("Neg", [INTS], INTS), ("Abs", [INTS], INTS), ("Min", [INTS, INTS], INTS),
    ("Equal", [INTS, INTS], FLAGS), ("Greater", [INTS, INTS], FLAGS), ("Less", [FLOATS, FLOATS], FLAGS),
    ("Not", [FLAGS], FLAGS), ("And", [FLAGS, FLAGS], FLAGS), ("Or", [FLAGS, FLAGS], FLAGS),
    ("Xor", [FLAGS, FLAGS], FLAGS), ("IsNaN", [FLOATS], FLAGS), ("Where", [FLAGS, FLOATS, FLOATS], FLOATS),
    ("Where", [FLAGS, INTS, INTS], INTS), ("Add", [FLOATS, FLOATS], FLOATS),
    ("Sub", [FLOATS, FLOATS], FLOATS),
    ("Mul", [FLOATS, FLOATS], FLOATS), ("Relu", [FLOATS], FLOATS), ("Max", [FLOATS, FLOATS], FLOATS),
    ("Sigmoid", [FLOATS], FLOATS), ("LpPool", [FLOATS], FLOATS), ("Tanh", [FLOATS], FLOATS),
    ("Atan", [FLOATS], FLOATS), ("Asinh", [FLOATS], FLOATS), ("Softsign", [FLOATS], FLOATS),
]  # fmt: skip
OF_THE_CPU = {"LpPool": {"kernel_shape": [1]}}  # an operator that vkq does not support; here it computes |x|
ROUNDED = {
    "Sigmoid",
    "Tanh",
    "LpPool",
    "Atan",
    "Asinh",
    "Softsign",
    "Softmax",
    "LayerNormalization",
    "ReduceMean",
}


class Island:
    """A random graph. Its results are the last float, the last integer and the last flag."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values = {FLOATS: ["x"], INTS: ["i"], FLAGS: ["b"]}
        for _ in range(int(self.random.integers(3, 12))):
            self._step()

    def _new(self, op: str, inputs: list[str], kind: str = "", **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        if kind:
            self.values[kind].append(name)
        return name

    def _constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def _pick(self, kind: str) -> str:
        """Return the name of a value, or (sometimes) of a new constant that broadcasts."""
        if self.random.random() < 0.25 and kind != FLAGS:
            shape = [(), (K,), (1, 1, K)][self.random.integers(3)]
            numbers = self.random.integers(-4, 5, shape)
            return self._constant(numbers if kind == INTS else numbers.astype(np.float32) / 4)
        return str(self.random.choice(self.values[kind][-4:]))

    def _step(self) -> None:
        how = self.random.random()
        if how < 0.6:
            op, kinds, result = ELEMENTS[self.random.integers(len(ELEMENTS))]
            operands = [self._pick(kind) for kind in kinds]
            # The first operand has the full shape.
            operands[0] = str(self.random.choice(self.values[kinds[0]][-4:]))
            self._new(op, operands, result, **OF_THE_CPU.get(op, {}))
        elif how < 0.66:
            source, to = self.random.choice([INTS, FLAGS]), self.random.choice([FLOATS, INTS])
            self._new("Cast", [str(self.random.choice(self.values[source]))], str(to), to=TYPES[to])
        elif how < 0.75:
            self._quantized()
        elif how < 0.84:
            self._rows()
        elif how < 0.92:
            self._moved()
        elif how < 0.97:
            self._over_rows()
        else:
            self._chosen()

    def _quantized(self) -> None:
        """Add an 8-bit Relu between QuantizeLinear and DequantizeLinear."""
        scale, zero = self._constant(np.float32(0.05)), self._constant(np.int8(self.random.integers(-9, 9)))
        x = self._pick(FLOATS)
        x = self._new("Add", [x, "x"]) if x in self.constants else x
        q = self._new("QuantizeLinear", [x, scale, zero])
        real = self._new("DequantizeLinear", [q, scale, zero])
        again = self._new("QuantizeLinear", [self._new("Relu", [real]), scale, zero])
        self._new("DequantizeLinear", [again, scale, zero], FLOATS)

    def _rows(self) -> None:
        """Gather rows of a table by ids, as an embedding does. The table is float or dequantized."""
        table = self._constant(self.random.standard_normal((ROWS, K)).astype(np.float32))
        if self.random.random() < 0.5:
            codes = self.random.integers(-128, 128, (ROWS, K)).astype(np.int8)
            parameters = [self._constant(np.float32(0.02)), self._constant(np.int8(1))]
            table = self._new("DequantizeLinear", [self._constant(codes), *parameters])
        self._new("Gather", [table, "ids"], FLOATS)

    def _moved(self) -> None:
        """Transpose a value and back, or concatenate parts of two values along any axis."""
        kind = str(self.random.choice([FLOATS, INTS, FLAGS]))
        x, y = (str(self.random.choice(self.values[kind][-4:])) for _ in range(2))
        if self.random.random() < 0.5:
            perm = [int(a) for a in self.random.permutation(3)]
            there = self._new("Neg" if kind != FLAGS else "Not", [self._new("Transpose", [x], perm=perm)])
            self._new("Transpose", [there], kind, perm=[perm.index(a) for a in range(3)])
            return
        axis = self._constant(np.array([self.random.integers(3)]))
        ends = [self._constant(np.array([n])) for n in (0, 1, 1 << 40)]
        parts = [self._new("Slice", [y, ends[1], ends[2], axis]), self._new("Slice", [x, *ends[:2], axis])]
        self._new("Concat", parts, kind, axis=int(self.constants[axis][0]))

    def _over_rows(self) -> None:
        """Apply a row function (softmax, normalization, mean) to floats, or a cumulative sum to integers."""
        x, axis = str(self.random.choice(self.values[FLOATS][-4:])), int(self.random.integers(-2, 0))
        how = self.random.integers(4)
        if how == 0:
            self._new("Softmax", [x], FLOATS, axis=axis)
        elif how == 1:
            scale = self._constant(self.random.uniform(0.5, 1.5, K).astype(np.float32))
            self._new("LayerNormalization", [x, scale], FLOATS, axis=-1, epsilon=0.01)
        elif how == 2:
            mean = self._new("ReduceMean", [x, self._constant(np.array([axis]))], keepdims=1)
            self._new("Sub", [x, mean], FLOATS)
        else:
            i = str(self.random.choice(self.values[INTS][-4:]))
            self._new("CumSum", [i, self._constant(np.array(axis))], INTS)

    def _chosen(self) -> None:
        """Add an If whose condition depends on the size of axis 1, and a Loop with a few iterations."""
        x = str(self.random.choice(self.values[FLOATS][-4:]))
        info = helper.make_tensor_value_info
        size = self._new("Gather", [self._new("Shape", ["x"]), self._constant(np.array(1))])
        long = self._new("Less", [self._constant(np.array(4)), size])
        graphs = [
            helper.make_graph([helper.make_node(op, [x, "x"], [f"{op}{size}"])], op, [],
                              [info(f"{op}{size}", TensorProto.FLOAT, None)]) for op in ("Add", "Max")
        ]  # fmt: skip
        x = self._new("If", [long], FLOATS, then_branch=graphs[0], else_branch=graphs[1])
        k, a = f"k{x}", f"a{x}"
        inside = [helper.make_node("Identity", [k], [f"{k}o"]), helper.make_node("Sub", [a, "x"], [f"{a}o"])]
        given = [info(f"i{x}", TensorProto.INT64, ()), info(k, TensorProto.BOOL, ())]
        given.append(info(a, TensorProto.FLOAT, None))
        made = [info(f"{k}o", TensorProto.BOOL, ()), info(f"{a}o", TensorProto.FLOAT, None)]
        body = helper.make_graph(inside, "body", given, made)
        self._new("Loop", [self._constant(np.array(2)), "", x], FLOATS, body=body)

    def model(self) -> bytes:
        sizes = ["n", "l", K]
        kinds = {"x": FLOATS, "i": INTS, "b": FLAGS}
        inputs = [helper.make_tensor_value_info(name, TYPES[kind], sizes) for name, kind in kinds.items()]
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, sizes[:2]))
        results = []
        for kind, values in self.values.items():
            self.nodes.append(helper.make_node("Identity", values[-1:], [kind]))
            results.append(helper.make_tensor_value_info(kind, TYPES[kind], None))
        stored = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "island", inputs, results, stored)
        opsets = [helper.make_opsetid("", 20)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
        return data


def feed(seed: int, n: int, length: int) -> dict[str, np.ndarray]:
    r, shape = np.random.default_rng(seed), (n, length, K)
    return {
        "x": np.rint(r.standard_normal(shape) * 8).astype(np.float32) / 8,
        "i": r.integers(-6, 7, shape),
        "b": r.integers(0, 2, shape).astype(bool),
        "ids": r.integers(-ROWS, ROWS, shape[:2]),
    }


def attempt(device: vkq.Device, seed: int) -> str:
    """Compare a random graph's results with ONNX Runtime's in three runs, with two sizes of (batch, length).
    Return the name of the last executable's class, or "staged" for a `Staged`."""
    island = Island(seed)
    data = island.model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = vkq.onnx.InferenceSession(data, device, fallback="onnxruntime")
        for k, (n, length) in enumerate([(1, 3), (2, 5), (1, 3)]):
            given = feed(seed + k, n, length)
            got = session.run(None, given)
            for name, a, b in zip(island.values, got, onnxruntime_results(data, given), strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape), (seed, name)
                # Allow one 8-bit step, because the libraries round ties differently.
                if name == FLOATS:
                    bound = 0.05001 * 4 + 1e-4 * np.abs(b[np.isfinite(b)]).max(initial=0)
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=bound, err_msg=str(seed))
                elif not _floats_decide(island):
                    np.testing.assert_array_equal(a, b, err_msg=str(seed))
    made = list(session._executables.kept.values())
    assert len(made) == 2, seed
    return "staged" if isinstance(made[-1], Staged) else type(made[-1]).__name__


def _floats_decide(island: Island) -> bool:
    """Return True if flags may depend on floats that the libraries round differently."""
    ops = {node.op_type for node in island.nodes}
    return "Less" in ops and bool(ops & ROUNDED)


def main() -> None:
    count = Counter[str]()
    with vkq.Device() as device:
        first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
        for seed in range(first, first + int(sys.argv[1])):
            count[attempt(device, seed)] += 1
    print(dict(count))


if __name__ == "__main__":
    main()
