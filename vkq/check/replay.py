"""The same work again and again: each result must be the reference's, every time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.quantize import dequantize, quantize
from ..ops import quantize as ops
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .catalogue import check_of
from .compare import layer

TIMES = 200
GARBAGE = 0xA5A5A5A5  # what a result's memory holds before each run, so that a run that writes nothing shows
# Every kind of operator, with ragged sizes: tiles are cut at every edge.
REPLAYED = (
    "linear[M=33,K=75,N=37]/seed=1",
    "linear[M=33,K=75,N=37]/seed=2,x=uint8,scheme=q8ta_q8csw,wz=channel",
    "linear[M=1,K=130,N=37]/seed=3",
    "conv2d[N=1,IC=5,H=9,W=11,OC=6,KH=3,KW=3,padding=1]/seed=4,wz=channel",
    "conv2d[N=2,IC=8,H=7,W=7,OC=9,KH=1,KW=1]/seed=5,act=relu",
    "conv2d[N=1,IC=6,H=9,W=7,OC=6,KH=3,KW=3,stride=2,padding=1,groups=6]/seed=6",
    "linear[M=33,K=75,N=37]/seed=8,scheme=dq8ca_q8csw",
    "conv_transpose2d[N=1,IC=6,H=5,W=7,OC=5,KH=3,KW=3,stride=2,padding=1]/seed=9",
    "conv2d[N=1,IC=6,H=9,W=7,OC=9,KH=3,KW=2,padding=0x1x2x1,dilation=2x1,groups=3]/seed=7,scheme=q8ta_q8csw",
)


@dataclasses.dataclass(frozen=True)
class Replay:
    """An operator on a path, run *times* times; ``wrong`` counts the runs of which any byte differed from the
    reference."""

    case: str
    path: str
    times: int
    wrong: int


def replays(device: Device, paths: Sequence[str], times: int = TIMES) -> Iterator[Replay]:
    """Every operator of the list on every path, then quantize and dequantize."""
    for name in REPLAYED:
        check = check_of(name)
        data = check.data()
        given = check.input(data)
        want, x = check.expected(data, given).y, Tensor.from_numpy(given, device)
        for path in paths:
            call = partial(layer(device, check, data, path), x)
            yield Replay(name, path, times, _wrong(device, call, want, times))
    data = check_of(REPLAYED[0]).data()
    numbers = dequantize(data.x, data.x_q) * np.float32(1.01)
    x = Tensor.from_numpy(numbers, device)
    want = quantize(numbers, data.x_q)
    yield Replay("quantize", "all", times, _wrong(device, partial(ops.quantize, x, data.x_q), want, times))
    q = Tensor.from_numpy(want, device)
    yield Replay(
        "dequantize",
        "all",
        times,
        _wrong(device, partial(ops.dequantize, q, data.x_q), dequantize(want, data.x_q), times),
    )


def _wrong(device: Device, call: Callable[[], Tensor], want: npt.NDArray[Any], times: int) -> int:
    with device.record() as recording:
        y = call()
    wrong = 0
    for _ in range(times):
        with device.operation() as before:
            before.fill(y.buffer, GARBAGE)
        recording.run()
        wrong += y.numpy().tobytes() != want.tobytes()
    return wrong
