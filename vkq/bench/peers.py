"""Run a case in other libraries (peers) that are installed, to compare their times with vkq's. A peer
reports its operator, its device, and whether its results agree with the reference."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vkq.bench import ncnn_peer
from vkq.bench.data import Array, Weights
from vkq.check.cases import Q8TO, Case
from vkq.check.expected import Expected
from vkq.errors import ArgumentError
from vkq.problem.conv2d import Conv2dProblem
from vkq.runtime.device import Device


@dataclass(frozen=True)
class PeerArm:
    """One case, run by a peer."""

    call: Callable[[], Any]  # the function to time
    ran: str  # the library, its version, the device and the type
    agreement: str  # whether the results agree with the reference


class Peer(Protocol):
    """A library that can run cases. If it cannot run a case, `arm` raises NotImplementedError with the
    reason."""

    @property
    def name(self) -> str:
        """The library's name for the option ``--peer``."""

    def arm(self, case: Case, weights: Weights, x: Array, expected: Expected, device: Device) -> PeerArm:
        """Run the case once with the peer, compare its result with *expected*, and return the arm to time."""


def agreement(got: Array, expected: Expected) -> str:
    """Return a text on whether a peer's result agrees with the reference, with the largest difference if
    not."""
    wrong = (
        expected.mismatch(got)
        if got.dtype == expected.y.dtype or expected.bound is not None
        else "another type"
    )
    if wrong is None:
        return f"agrees {expected.how}"
    size = float(np.abs(expected.y.astype(np.float64)).max()) or 1.0
    apart = float(np.abs(got.astype(np.float64) - expected.y).max())
    return f"DIFFERS from the reference: {wrong}; at most {apart:.3g} apart where the largest is {size:.3g}"


class OnnxRuntime:
    """ONNX Runtime on the CPU. It runs conv2d as QLinearConv, and linear as QGemm (a QLinearMatMul with a
    bias)."""

    name = "ort"

    def __init__(self) -> None:
        self._ort, self._onnx = library("onnxruntime", self.name), library("onnx", self.name)

    def arm(self, case: Case, weights: Weights, x: Array, expected: Expected, device: Device) -> PeerArm:
        if case.scheme not in Q8TO:
            raise NotImplementedError(f"ONNX Runtime has no operator of scheme {case.scheme}")
        operator, model = self._model(case, weights)
        options = self._ort.SessionOptions()
        options.log_severity_level = 3
        session = self._ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

        def call() -> Array:
            return np.asarray(session.run(None, {"x": x})[0])

        ran = (
            f"ONNX Runtime {self._ort.__version__} {operator} int8, CPU with all cores"
            f" ({', '.join(session.get_providers())})"
        )
        return PeerArm(call, ran, agreement(call(), expected))

    def _model(self, case: Case, data: Weights) -> tuple[str, Any]:
        helper, kinds, p = self._onnx.helper, self._onnx.TensorProto, case.layer
        assert data.x is not None
        assert data.y is not None
        conv = isinstance(p, Conv2dProblem)
        zeros = np.zeros(data.scale.size, np.int8)
        constants: dict[str, Array] = {
            "x_scale": np.float32(data.x.scale), "x_zero": np.int8(data.x.zero_point),
            "w": data.w if conv else np.ascontiguousarray(data.w.T),
            "w_scale": data.scale if data.scale.size > 1 else data.scale[0],
            "w_zero": zeros if zeros.size > 1 else zeros[0], "y_scale": np.float32(data.y.scale),
            "y_zero": np.int8(data.y.zero_point), "bias": data.bias,
        }  # fmt: skip
        if isinstance(p, Conv2dProblem):
            order, operator, domain = (
                "x x_scale x_zero w w_scale w_zero y_scale y_zero bias",
                "QLinearConv",
                "",
            )
            attributes = {"strides": p.stride, "pads": p.padding, "dilations": p.dilation, "group": p.groups}
        else:
            order, operator, domain = (
                "x x_scale x_zero w w_scale w_zero bias y_scale y_zero",
                "QGemm",
                "com.microsoft",
            )
            attributes = {}
        node = helper.make_node(operator, order.split(), ["y"], domain=domain, **attributes)
        numpy_helper = self._onnx.numpy_helper
        graph = helper.make_graph(
            [node], "case", [helper.make_tensor_value_info("x", kinds.INT8, p.x_shape)],
            [helper.make_tensor_value_info("y", kinds.INT8, p.y_shape)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return operator, helper.make_model(graph, opset_imports=opsets, ir_version=8)


class PyTorch:
    """PyTorch on the CPU. Linear layers with int8 activations run as ``torch._int_mm`` (int8 to int32,
    without requantization). All other cases run as conv2d or linear in float32."""

    name = "torch"

    def __init__(self) -> None:
        self._torch = library("torch", self.name)

    def arm(self, case: Case, weights: Weights, x: Array, expected: Expected, device: Device) -> PeerArm:
        if case.op == "linear" and case.scheme != "q8csw":
            return self._integer(x, weights)
        call = self._float(case, weights, x)
        got = call().numpy()
        if weights.y is not None:  # the reference rounds results to int8, but PyTorch returns float32
            steps = np.clip(got / np.float32(weights.y.scale) + weights.y.zero_point, -128, 127) - expected.y
            text = f"float32: at most {float(np.abs(steps).max()):.2g} int8 steps from the reference"
        else:
            size = float(np.abs(expected.y).max()) or 1.0
            text = (
                f"float32: at most {float(np.abs(got - expected.y).max()) / size:.2g} of the largest result"
                " from the reference"
            )
        return PeerArm(call, f"{self._ran()}: {case.op} in float32", text)

    def _ran(self) -> str:
        return f"PyTorch {self._torch.__version__} on the CPU with {self._torch.get_num_threads()} threads"

    def _integer(self, x: Array, weights: Weights) -> PeerArm:
        torch = self._torch
        xt, wt = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(weights.w.T))
        want = x.astype(np.float64) @ weights.w.astype(np.float64).T
        same = np.array_equal(torch._int_mm(xt, wt).numpy(), want)
        text = (
            "its int32 sums agree bit for bit"
            if same
            else "DIFFERS: its int32 sums are not those of the reference"
        )
        ran = f"{self._ran()}: _int_mm, int8 to int32, nothing after it"
        return PeerArm(lambda: torch._int_mm(xt, wt), ran, text)

    def _float(self, case: Case, weights: Weights, x: Array) -> Callable[[], Any]:
        torch, p = self._torch, case.layer
        per_channel = weights.scale.reshape((-1,) + (1,) * (weights.w.ndim - 1))
        w = torch.from_numpy((weights.w * per_channel).astype(np.float32))
        real = (
            x
            if weights.x is None
            else ((x.astype(np.float32) - weights.x.zero_point) * np.float32(weights.x.scale))
        )
        xt = torch.from_numpy(np.ascontiguousarray(real, np.float32))
        scale = 1.0 if weights.x is None else weights.x.scale
        bias = torch.from_numpy(
            (weights.bias * (weights.scale * np.float32(scale) if weights.x else 1)).astype(np.float32)
        )
        if isinstance(p, Conv2dProblem):
            top, left, bottom, right = p.padding
            padded = torch.nn.functional.pad(xt, (left, right, top, bottom))
            return functools.partial(
                torch.nn.functional.conv2d, padded, w, bias, stride=p.stride, dilation=p.dilation,
                groups=p.groups
            )  # fmt: skip
        return functools.partial(torch.nn.functional.linear, xt, w, bias)


class Ncnn:
    """ncnn on vkq's Vulkan device: int8 layers with float32 inputs and outputs. ncnn's fp16 options are
    off."""

    name = "ncnn"

    def __init__(self) -> None:
        self._ncnn = library("ncnn", self.name)

    def arm(self, case: Case, weights: Weights, x: Array, expected: Expected, device: Device) -> PeerArm:
        call, ran, text = ncnn_peer.arm(self._ncnn, case, weights, x, device)
        return PeerArm(call, ran, text)


PEERS: dict[str, Callable[[], Peer]] = {"ort": OnnxRuntime, "torch": PyTorch, "ncnn": Ncnn}


def find_peer(name: str) -> Peer:
    """Return the peer with this name. Raises ArgumentError if the name is unknown, or the peer's library is
    not installed."""
    if name not in PEERS:
        raise ArgumentError(f"--peer is {name!r}; it must be all or one of {', '.join(PEERS)}")
    return PEERS[name]()


def installed_peers() -> tuple[Peer, ...]:
    """Return the peers whose libraries are installed."""
    found = []
    for make in PEERS.values():
        try:
            found.append(make())
        except ArgumentError:
            continue
    return tuple(found)


def library(name: str, peer: str) -> Any:
    """Import and return the package *name*, which the peer *peer* needs. Raises ArgumentError if it is not
    installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ArgumentError(
            f"--peer {peer} needs {name} ({error}); install it: pip install 'vkq[peers]'"
        ) from error
