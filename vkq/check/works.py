"""The workloads that `vkq doctor` replays. They are layers of every scheme, operators without weights (casts,
pools, add, softmax, resize, product of two activations), chains of layers that reuse scratch memory, and
problems with many workgroups. A workload has several inputs, and the reference's results for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..device.profiles import preferred
from ..numerics.qparams import QParams
from ..runtime.builder import Builder
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .cases import FLOAT
from .catalogue import Check, check_of
from .compare import Array, layer
from .data import Data
from .expected import Expected
from .weightless import casts, weightless

INPUTS = 3  # number of inputs of each workload. Runs alternate them, so that a stale result is a wrong one.
# Operators with weights, in every scheme. Most sizes are not multiples of a tile, so that tiles extend past
# every edge. Operators without weights are in `vkq.check.weightless`.
REPLAYED = (
    "linear[M=33,K=75,N=37]/seed=1",
    "linear[M=33,K=75,N=37]/seed=2,x=uint8,scheme=q8ta_q8csw,wz=channel",
    "linear[M=1,K=130,N=37]/seed=3",
    "conv2d[N=1,IC=5,H=9,W=11,OC=6,KH=3,KW=3,padding=1]/seed=4,wz=channel",
    "conv2d[N=2,IC=8,H=7,W=7,OC=9,KH=1,KW=1]/seed=5,act=relu",
    "conv2d[N=1,IC=6,H=9,W=7,OC=6,KH=3,KW=3,stride=2,padding=1,groups=6]/seed=6",
    "linear[M=33,K=75,N=37]/seed=8,scheme=dq8ca_q8csw",
    "linear[M=33,K=75,N=37]/seed=12,scheme=q8csw,wz=channel",
    "conv2d[N=1,IC=5,H=9,W=11,OC=18,KH=3,KW=3,padding=1]/seed=13,scheme=q8csw_f16",
    "linear[M=33,K=96,N=37]/seed=10,scheme=q4gsw,wz=channel",
    "linear[M=1,K=160,N=37]/seed=11,scheme=q4gsw",
    "linear[M=5,K=96,N=37]/seed=14,scheme=q8gsw",
    "linear[M=5,K=160,N=37]/seed=15,scheme=q4gsw_f16,wz=channel",
    "linear[M=33,K=96,N=36]/seed=16,scheme=q8gsw_f16",
    "linear[M=3,K=300,N=37]/seed=17,scheme=f32",
    "conv2d[N=1,IC=6,H=9,W=11,OC=18,KH=3,KW=3,padding=1,groups=2]/seed=18,scheme=f16",
    "conv_transpose2d[N=1,IC=6,H=5,W=7,OC=5,KH=3,KW=3,stride=2,padding=1]/seed=9",
    "conv2d[N=1,IC=6,H=9,W=7,OC=9,KH=3,KW=2,padding=0x1x2x1,dilation=2x1,groups=3]/seed=7,scheme=q8ta_q8csw",
    "conv2d[N=1,IC=5,H=9,W=11,OC=18,KH=3,KW=3,padding=1]/seed=19,scheme=f32",
)
# A small network: the result of each layer is the input of the next layer.
NETWORK = (
    "conv2d[N=1,IC=5,H=19,W=17,OC=24,KH=3,KW=3,stride=2,padding=1]/seed=21,act=relu",
    "conv2d[N=1,IC=24,H=10,W=9,OC=24,KH=3,KW=3,padding=1,groups=24]/seed=22",
    "conv2d[N=1,IC=24,H=10,W=9,OC=39,KH=1,KW=1]/seed=23,wz=channel",
    "conv2d[N=1,IC=39,H=10,W=9,OC=21,KH=3,KW=3,padding=1]/seed=24",
    "conv2d[N=1,IC=21,H=10,W=9,OC=13,KH=1,KW=1]/seed=25,scheme=q8ta_q8csw",
)
# Two layers that read the same float input. Each stores the quantized input in scratch memory, at the same
# address. So the second layer overwrites the quantized input of the first.
SHARING = ("linear[M=33,K=75,N=37]/seed=26,float_in", "linear[M=33,K=75,N=41]/seed=27,float_in")
# Problems with many workgroups. Some released drivers compute some of these problems wrongly: on Adreno 840,
# problems with M = 1024 to 1500 (pytorch/executorch#22327); on Adreno, convolutions from 48 to 168, 176, 184
# or 192 channels (pytorch/executorch#21938).
LARGE = (
    "linear[M=1500,K=384,N=384]/seed=31",
    *(
        f"conv2d[N=1,IC=48,H=64,W=64,OC={channels},KH=3,KW=3,padding=1]/seed=32"
        for channels in (176, 168, 184, 192)
    ),
)
TEXTURED = (REPLAYED[0], REPLAYED[2], REPLAYED[5])  # the workloads that also run with uniform texel buffers
# Profile fields with which vkq chooses kernels that read uniform texel buffers.
TEXELS = {"texels": True, "lane_loads": True, "staged": None}


@dataclasses.dataclass(frozen=True)
class Work:
    """A workload. ``call`` is recorded once, on one tensor. Before each run, one of ``inputs`` is written to
    this tensor.

    ``call`` returns one result for each of ``operators``, in order. ``wants``: for each input, the expected
    results. ``large``: whether it has many workgroups.
    """

    name: str
    path: str
    operators: tuple[str, ...]
    inputs: tuple[Array, ...]
    wants: tuple[tuple[Expected, ...], ...]
    call: Callable[[Tensor], list[Tensor]]
    large: bool = False


def works(device: Device, paths: Sequence[str], texels: bool = True) -> Iterator[Work]:
    """Yield all workloads. Those that detect a fault which no other workload detects come first, so that slow
    devices reach them, too. Large workloads come last. *texels*: include kernels that read uniform texel
    buffers, even if vkq would not choose them for this device."""
    if texels:
        for name in TEXTURED:
            for work in _single(device, name, ("auto",)):
                yield dataclasses.replace(work, path="texels", call=partial(_by_texels, work.call))
    for path in paths:
        yield _sharing(device, path)
    for name in REPLAYED:
        yield from _single(device, name, paths)
    yield from _pathless(device)
    for path in paths:
        yield _network(device, path)
        yield _network(device, path, planned=True)
    for path in dict.fromkeys(("auto", *paths)):
        for name in LARGE:
            for work in _single(device, name, (path,)):
                yield dataclasses.replace(work, large=True)


def _turns(check: Check, data: Data) -> list[tuple[Data, Array]]:
    """Return `INPUTS` pairs (operands, input of the layer). The first pair has the x of *data*; the others
    have random permutations of its elements."""
    rng = np.random.default_rng(check.seed)
    xs = [data.x, *(rng.permuted(data.x.reshape(-1)).reshape(data.x.shape) for _ in range(INPUTS - 1))]
    turned = [dataclasses.replace(data, x=x) for x in xs]
    return [(one, check.input(one)) for one in turned]


def _single(device: Device, name: str, paths: Sequence[str]) -> Iterator[Work]:
    check = check_of(name)
    data = check.data()
    turns = _turns(check, data)
    wants = tuple((check.expected(one, given, device),) for one, given in turns)
    for path in paths if check.scheme not in FLOAT else ("auto",):
        made = layer(device, check, data, path)
        yield Work(name, path, (name,), tuple(given for _, given in turns), wants, partial(_alone, made))


def _by_texels(call: Callable[[Tensor], list[Tensor]], x: Tensor) -> list[Tensor]:
    with preferred(TEXELS):
        return call(x)


def _alone(operator: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    return [operator(x)]


def _pathless(device: Device) -> Iterator[Work]:
    """Yield workloads of operators without weights, which do not depend on the path."""
    check = check_of(TEXTURED[0])
    data = check.data()
    xs = [one.x for one, _ in _turns(check, data)]
    for name, given, wants, call in (*casts(data, xs), *weightless(device, INPUTS)):
        answers = tuple((Expected(want),) for want in wants)
        yield Work(name, "all", (name,), tuple(given), answers, partial(_alone, call))


def _network(device: Device, path: str, planned: bool = False) -> Work:
    """Return a workload that runs the layers of `NETWORK` one after the other. With *planned*, they are one
    plan, whose intermediate results share scratch memory."""
    checks = [check_of(name) for name in NETWORK]
    datas: list[Data] = []
    for check in reversed(checks):  # a layer's result needs the parameters of the next layer's input
        data = check.data()
        if datas:
            ratio = np.float32(datas[0].x_q.scale / data.y_q.scale)
            data = dataclasses.replace(data, w_scale=data.w_scale * ratio, y_q=datas[0].x_q)
        datas.insert(0, data)
    turns = _turns(checks[0], datas[0])
    wants = []
    for _, x in turns:
        answers: list[Expected] = []
        for check, data in zip(checks, datas, strict=True):
            answers.append(check.expected(dataclasses.replace(data, x=x), x))
            x = answers[-1].y
        wants.append(tuple(answers[-1:] if planned else answers))
    layers = [layer(device, check, data, path) for check, data in zip(checks, datas, strict=True)]
    name = f"network of {len(NETWORK)} layers" + (", one plan" if planned else "")
    operators, call = ((name,), _planned) if planned else (NETWORK, _chained)
    inputs = tuple(given for _, given in turns)
    return Work(name, path, operators, inputs, tuple(wants), partial(call, layers))


def _chained(layers: Sequence[Any], x: Tensor) -> list[Tensor]:
    results = []
    for one in layers:
        x = one(x)
        results.append(x)
    return results


def _planned(layers: Sequence[Any], x: Tensor) -> list[Tensor]:
    b = Builder(x.device)
    value = b.input(x.spec)
    for one in layers:
        value = one.build(b, value)
    plan = b.plan(value)
    y = Tensor.of(x.device, plan.result)
    x.device.add(plan, [x.buffer], [y.buffer])
    return [y]


def _sharing(device: Device, path: str) -> Work:
    checks = [check_of(name) for name in SHARING]
    datas = [check.data() for check in checks]
    # The two layers quantize the same input with different parameters.
    first = datas[0].x_q
    other = QParams(first.scale * np.float32(1.5), -7, first.dtype)
    ratio = np.float32(datas[1].x_q.scale / other.scale)
    datas[1] = dataclasses.replace(datas[1], x_q=other, w_scale=datas[1].w_scale * ratio)
    inputs = tuple(given for _, given in _turns(checks[0], datas[0]))
    wants = tuple(
        tuple(check.expected(data, given) for check, data in zip(checks, datas, strict=True))
        for given in inputs
    )
    layers = [layer(device, check, data, path) for check, data in zip(checks, datas, strict=True)]
    return Work("two layers that share scratch", path, SHARING, inputs, wants,
                lambda x: [one(x) for one in layers])  # fmt: skip
