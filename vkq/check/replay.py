"""The same work again and again: each result must be the reference's, every time; of float sums, within the
bound and the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from ..numerics.quantize import dequantize, quantize
from ..ops import quantize as ops
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .cases import FLOAT
from .catalogue import check_of
from .compare import layer
from .expected import Expected

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
        want, x = check.expected(data, given), Tensor.from_numpy(given, device)
        for path in paths if check.scheme not in FLOAT else ("auto",):
            call = partial(layer(device, check, data, path), x)
            yield Replay(name, path, times, _wrong(device, call, want, times))
    data = check_of(REPLAYED[0]).data()
    numbers = dequantize(data.x, data.x_q) * np.float32(1.01)
    x = Tensor.from_numpy(numbers, device)
    stored = quantize(numbers, data.x_q)
    call = partial(ops.quantize, x, data.x_q)
    yield Replay("quantize", "all", times, _wrong(device, call, Expected(stored), times))
    q, numbers = Tensor.from_numpy(stored, device), dequantize(stored, data.x_q)
    call = partial(ops.dequantize, q, data.x_q)
    yield Replay("dequantize", "all", times, _wrong(device, call, Expected(numbers), times))


def _wrong(device: Device, call: Callable[[], Tensor], want: Expected, times: int) -> int:
    with device.record() as recording:
        y = call()
    wrong = 0
    for _ in range(times):
        with device.operation() as before:
            before.fill(y.buffer, GARBAGE)
        recording.run()
        got = y.numpy()
        wrong += want.mismatch(got) is not None
        if want.bound is not None:
            want = Expected(got)  # within the bound once, and from then on the same bytes
    return wrong
