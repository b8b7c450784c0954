"""The list of cases that `vkq check`, `vkq bench` and the tests share: listed problems, each with the reason
why it is in the list, and random problems from a seed.

A case is written as the name of its problem (see `vkq.problem.names.parse`). This name is also the id of
its test and the filter of a benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import ArgumentError
from ..problem.conv2d import Conv2dProblem
from ..problem.linear import LinearProblem
from ..problem.mover import Mover
from ..problem.names import Problem, parse
from ..problem.transposed import TransposedConv2dProblem

Use = Literal["correctness", "performance"]
# Schemes with weights in groups, for linear layers only, with the number of bits of a weight. Those of
# GROUPED_HALF have float16 x and results, the others float32.
GROUPED_HALF = {"q4gsw_f16": 4, "q8gsw_f16": 8}
GROUPED = {"q4gsw": 4, "q8gsw": 8} | GROUPED_HALF
FLOAT_WEIGHTS = {"f32": "float32", "f16": "float16"}  # schemes with float weights, and the weight's dtype
# Schemes with 8-bit weights and float activations, and the dtype in which x and weight are multiplied.
CHANNELS = {"q8csw": "float32", "q8csw_f16": "float16"}
Q8TO = ("q8ta_q8csw_q8to",)  # schemes with 8-bit results
Q8TA = (*Q8TO, "q8ta_q8csw")  # schemes with 8-bit activations and static quantization parameters
DQ8CA = ("dq8ca_q8csw",)  # schemes that quantize each row of x dynamically, for linear layers only
SCHEMES = (*Q8TA, *DQ8CA, *CHANNELS, *GROUPED, *FLOAT_WEIGHTS)
# Schemes with float sums. They do not depend on the path, and their results are compared within a bound.
FLOAT = (*CHANNELS, *GROUPED, *FLOAT_WEIGHTS)
SCALES = ("channel", "tensor")


@dataclass(frozen=True)
class Case:
    """A problem to verify or to time, and the options that decide its arithmetic.

    - scheme: the quantization scheme
    - scale: "channel" for a weight scale per channel, "tensor" for one weight scale
    - method: the name of the layer's method; None leaves the choice to the layer
    - reason: why the case is listed
    - times: how many layers of the listed network are this problem
    - use: the purpose of the case
    """

    problem: Problem | Mover
    scheme: str = SCHEMES[0]
    scale: str = SCALES[0]
    method: str | None = None
    reason: str = ""
    times: int = 1
    use: Use = "correctness"

    @property
    def name(self) -> str:
        """The problem's name."""
        return self.problem.name

    @property
    def op(self) -> str:
        """The operator (``linear``, ``conv2d``, ...): the text before the bracket of the name."""
        return self.name.partition("[")[0]

    @property
    def layer(self) -> Problem:
        """The problem, which must be a layer's. Raises ArgumentError for an operator that only moves data."""
        if isinstance(self.problem, Mover):
            raise ArgumentError(f"{self.name} has no weight; it must be a linear layer or a convolution")
        return self.problem

    @property
    def options(self) -> tuple[str, ...]:
        """The options with which `vkq bench` runs this case; options with their default value are left
        out."""
        given = [
            ("--scheme", self.scheme, SCHEMES[0]),
            ("--scale", self.scale, SCALES[0]),
            ("--method", self.method, None),
        ]
        return tuple(
            word for option, value, default in given if value != default and value for word in (option, value)
        )

    @property
    def bytes(self) -> int:
        """The number of bytes of x, weight and y in the scheme's dtypes. Each array is counted once. The
        scales and zero points of weights in groups are not counted."""
        p, number = self.problem, 2 if self.scheme in GROUPED_HALF else 4
        x = 1 if self.scheme in Q8TA else number
        spared = p.bytes(0, 1, 0) * (8 - GROUPED.get(self.scheme, 8)) // 8
        weight = np.dtype(FLOAT_WEIGHTS.get(self.scheme, "int8")).itemsize
        return p.bytes(x, weight, 1 if self.scheme in Q8TO else number) - spared

    @property
    def operations(self) -> int:
        """The number of operations, two for each multiply-add."""
        return 2 * self.problem.macs


_CORRECTNESS = """
    linear[M=1,K=64,N=32]
    linear[M=1,K=128,N=64]
    linear[M=4,K=128,N=64]
    linear[M=4,K=256,N=128]
    linear[M=32,K=64,N=32]
    linear[M=32,K=128,N=64]
    conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3]
    conv2d[N=1,IC=3,H=64,W=64,OC=32,KH=1,KW=1]
    conv2d[N=1,IC=3,H=64,W=64,OC=32,KH=3,KW=3,stride=2,padding=1]
    conv2d[N=1,IC=3,H=64,W=64,OC=32,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=8,H=8,W=8,OC=8,KH=3,KW=3,padding=1,groups=8]
    conv2d[N=1,IC=16,H=8,W=8,OC=1,KH=1,KW=1]
    conv2d[N=1,IC=16,H=8,W=8,OC=2,KH=1,KW=1]
    conv2d[N=1,IC=16,H=57,W=33,OC=16,KH=3,KW=3,padding=1,groups=16]
    conv2d[N=1,IC=16,H=32,W=32,OC=32,KH=3,KW=3,padding=2,dilation=2]
    conv2d[N=1,IC=32,H=55,W=55,OC=1,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=32,H=77,W=77,OC=16,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=32,H=64,W=64,OC=32,KH=5,KW=5,padding=2,groups=32]
    conv2d[N=1,IC=32,H=8,W=8,OC=64,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=32,H=16,W=16,OC=64,KH=3,KW=3,padding=3,dilation=3]
    conv2d[N=1,IC=32,H=16,W=16,OC=64,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=32,H=64,W=64,OC=64,KH=3,KW=3,padding=1,groups=2]
    conv2d[N=1,IC=32,H=64,W=64,OC=64,KH=3,KW=3,stride=2,padding=1]
    conv2d[N=1,IC=64,H=32,W=32,OC=64,KH=3,KW=3,stride=2,padding=1,groups=64]
    conv2d[N=1,IC=64,H=32,W=32,OC=64,KH=3,KW=3,stride=2,padding=2,groups=64]
    conv2d[N=1,IC=80,H=16,W=16,OC=80,KH=3,KW=3,padding=1,groups=80]
    conv2d[N=1,IC=96,H=64,W=64,OC=96,KH=5,KW=5,stride=2,padding=2,groups=4]
    conv2d[N=1,IC=96,H=64,W=64,OC=96,KH=5,KW=5,stride=2,padding=2,groups=96]
    conv2d[N=1,IC=96,H=81,W=81,OC=96,KH=3,KW=3,stride=2,padding=1,groups=3]
"""

_PERFORMANCE = """
    linear[M=1,K=512,N=512]
    linear[M=1,K=512,N=9059]
    linear[M=256,K=2048,N=2048]
    linear[M=1024,K=2048,N=2048]
    conv2d[N=1,IC=32,H=128,W=128,OC=32,KH=3,KW=3,padding=2,groups=32]
    conv2d[N=1,IC=32,H=128,W=128,OC=64,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=48,H=256,W=256,OC=22,KH=1,KW=1]
    conv2d[N=1,IC=64,H=128,W=128,OC=64,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=64,H=128,W=128,OC=128,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=96,H=128,W=128,OC=96,KH=3,KW=3,stride=2,padding=1,groups=3]
    conv2d[N=1,IC=128,H=128,W=128,OC=128,KH=5,KW=5,stride=2,padding=2,groups=4]
    conv2d[N=1,IC=128,H=128,W=128,OC=128,KH=1,KW=1]
    conv2d[N=1,IC=128,H=256,W=256,OC=128,KH=5,KW=5,stride=2,padding=2,groups=4]
    conv2d[N=1,IC=128,H=128,W=128,OC=256,KH=1,KW=1,padding=1,groups=8]
    conv2d[N=1,IC=288,H=16,W=16,OC=288,KH=3,KW=3,padding=1,groups=288]
    conv2d[N=1,IC=480,H=8,W=8,OC=160,KH=1,KW=1]
    conv2d[N=1,IC=512,H=7,W=7,OC=512,KH=3,KW=3,padding=1]
    conv2d[N=1,IC=576,H=128,W=128,OC=64,KH=1,KW=1]
    conv2d[N=1,IC=1024,H=128,W=128,OC=128,KH=1,KW=1]
    conv2d[N=1,IC=1024,H=14,W=14,OC=2048,KH=1,KW=1,stride=2]
"""

_LISTS: dict[Use, str] = {"correctness": _CORRECTNESS, "performance": _PERFORMANCE}
KNOWN = [
    Case(parse(name), reason="a shape of ExecuTorch's public Vulkan operator tests", use=use)
    for use, names in _LISTS.items()
    for name in names.split()
]

_TRANSPOSED = {
    "conv_transpose2d[N=1,IC=32,H=8,W=8,OC=16,KH=3,KW=3,stride=2,padding=1,output_padding=1]": "doubles 8x8",
    "conv_transpose2d[N=1,IC=64,H=4,W=4,OC=32,KH=3,KW=3,stride=2,padding=1,output_padding=1]": "doubles 4x4",
    "conv_transpose2d[N=1,IC=64,H=8,W=8,OC=32,KH=3,KW=3,stride=2,padding=1,output_padding=1,groups=2]": (
        "doubles 8x8 in two groups"
    ),
    "conv_transpose2d[N=1,IC=128,H=32,W=32,OC=64,KH=3,KW=3,stride=2,padding=1,output_padding=1]": "larger",
    "conv_transpose2d[N=1,IC=256,H=16,W=16,OC=128,KH=4,KW=4,stride=2,padding=1]": "no output padding: 4x4",
    "conv_transpose2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]": "the smallest",
}

_ODD = {
    "linear[M=1,K=1,N=1]": "the smallest",
    "linear[M=9,K=9,N=9]": "just above a tile of 8",
    "linear[M=1,K=10,N=10]": "one row",
    "linear[M=10,K=1,N=10]": "K = 1",
    "linear[M=10,K=10,N=1]": "one column",
    "linear[M=457,K=512,N=330]": "unaligned and large",
    "linear[M=130,K=20,N=12]": "M > K",
    "linear[M=3,K=0,N=5]": "K = 0: the bias alone",
    "linear[M=0,K=8,N=4]": "no rows",
    "linear[M=2,K=8,N=0]": "no columns",
    "linear[M=2,K=5000,N=3]": "accumulators above 2**24",
    "linear[M=33,K=1021,N=9]": "K just within what float lanes sum exactly",
    "linear[M=5,K=1025,N=70]": "K just above what float lanes sum exactly",
    "linear[M=70,K=2051,N=7]": "twice above what float lanes sum exactly",
    "linear[M=1,K=160,N=37]": "one row, K in groups of 32",
    "linear[M=35,K=192,N=33]": "just above a tile of 32, K in groups of 64",
    "linear[M=6,K=224,N=35]": "K in groups of 16, half of a step or of a chunk of 4 bits",
    **{
        f"linear[M={5 + k % 4},K={k},N={n}]": f"K % 4 = {k % 4}, N % 4 = {n % 4}"
        for k in (28, 29, 30, 31)
        for n in (16, 17, 18, 19)
    },
    "conv2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]": "the smallest",
    "conv2d[N=1,IC=1,H=9,W=9,OC=9,KH=3,KW=3,padding=1]": "IC = 1",
    "conv2d[N=1,IC=3,H=13,W=11,OC=5,KH=7,KW=7,stride=2,padding=3]": "IC = 3, OC % 4 = 1: a first layer",
    "conv2d[N=2,IC=7,H=5,W=6,OC=6,KH=3,KW=3,padding=1,groups=1]": "IC % 4 = 3, OC % 4 = 2",
    "conv2d[N=1,IC=6,H=7,W=9,OC=6,KH=3,KW=3,padding=1,groups=6]": "depthwise, channels % 4 = 2",
    "conv2d[N=1,IC=4,H=6,W=6,OC=8,KH=3,KW=3,groups=4]": "depthwise with multiplier 2",
    "conv2d[N=1,IC=3,H=5,W=5,OC=3,KH=3,KW=3,padding=1,groups=3]": "3 groups of one channel",
    "conv2d[N=1,IC=9,H=5,W=5,OC=6,KH=3,KW=3,padding=1,groups=3]": "groups that straddle a word of 4 channels",
    "conv2d[N=1,IC=2,H=2,W=3,OC=4,KH=5,KW=5,padding=2]": "kernel larger than the image",
    "conv2d[N=1,IC=2,H=5,W=5,OC=4,KH=3,KW=3,padding=4,dilation=4]": "dilation * (k - 1) > input",
    "conv2d[N=1,IC=4,H=8,W=8,OC=4,KH=3,KW=3,padding=0x1x2x3]": "asymmetric padding",
    "conv2d[N=1,IC=4,H=8,W=8,OC=4,KH=1,KW=1,padding=3]": "outputs whose window has only padding",
    "conv2d[N=1,IC=4,H=9,W=10,OC=4,KH=2,KW=2,stride=3]": "stride > kernel: pixels never read",
    "conv2d[N=1,IC=4,H=8,W=9,OC=4,KH=3,KW=2,stride=2x1,padding=1x0,dilation=1x2]": (
        "height and width differ in all"
    ),
    "conv2d[N=1,IC=5,H=1,W=17,OC=4,KH=1,KW=3,padding=0x1]": "an image of one row",
    "conv2d[N=1,IC=5,H=17,W=1,OC=4,KH=3,KW=1,padding=1x0]": "an image of one column",
    "conv2d[N=3,IC=5,H=6,W=7,OC=6,KH=3,KW=3,padding=1]": "batch 3",
    "conv2d[N=0,IC=4,H=6,W=6,OC=4,KH=3,KW=3]": "empty batch",
    "conv2d[N=1,IC=4,H=6,W=6,OC=0,KH=3,KW=3]": "no output channel",
    "conv2d[N=1,IC=0,H=6,W=6,OC=4,KH=3,KW=3]": "no input channel: the bias alone",
}

ODD = [Case(parse(name), reason=reason) for name, reason in _ODD.items()]
TRANSPOSED = [Case(parse(name), reason=reason) for name, reason in _TRANSPOSED.items()]

CASES = KNOWN + ODD


def random_linear(rng: np.random.Generator) -> LinearProblem:
    """Return a small random linear problem. Most have an x of shape (M, K); one in 16 has the shape (K,), and
    one in 16 the shape (2, M, K)."""
    m, k, n = (int(size) for size in rng.integers(1, (20, 150, 40)))
    leads = {0: (), 1: (2, m)}
    lead = leads.get(int(rng.integers(16)), (m,))
    return LinearProblem.of((*lead, k), (n, k))


def random_conv2d(rng: np.random.Generator) -> Conv2dProblem:
    """Return a small convolution with random batch, groups, kernel, stride, dilation and asymmetric
    padding."""
    groups = int(rng.choice([1, 1, 1, 2, 3, 5]))
    n, icg, ocg = (int(size) for size in rng.integers(1, (4, 7, 7)))
    h, w = (int(size) for size in rng.integers(1, 13, 2))
    kh, kw = (int(size) for size in rng.choice([1, 2, 3, 3, 4, 5], 2))
    stride, dilation = rng.integers(1, 4, 2).tolist(), rng.choice([1, 1, 2, 3], 2).tolist()
    top, left, bottom, right = rng.integers(0, 4, 4).tolist()
    # Increase the padding until there is at least one output pixel.
    bottom += max(0, dilation[0] * (kh - 1) + 1 - h - top - bottom)
    right += max(0, dilation[1] * (kw - 1) + 1 - w - left - right)
    x_shape, w_shape = (n, icg * groups, h, w), (ocg * groups, icg, kh, kw)
    return Conv2dProblem.of(x_shape, w_shape, stride, (top, left, bottom, right), dilation, groups)


def long_linear(rng: np.random.Generator) -> LinearProblem:
    """Return a random linear problem with a K of 4,096 to 1,048,576. Some drivers end the loop over a large K
    too early."""
    k = int(2 ** rng.uniform(12, 20))
    m, n = (int(rng.integers(1, 2 + min(20, (1 << 21) // k))) for _ in range(2))
    return LinearProblem.of((m, k), (n, k))


def large_conv2d(rng: np.random.Generator) -> Conv2dProblem:
    """Return a random convolution with few results, and a kernel of up to 67,000 taps or up to 8,000 input
    channels per group."""
    groups, n, oc = int(rng.choice([1, 2, 4])), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    taps, line = 2 ** rng.uniform(2, 16), rng.uniform(0, 1)
    kernel = [max(1, round(taps**part)) for part in (line, 1 - line)]
    icg = max(1, int(min(8000, 2 ** rng.uniform(10, 16) / taps)))
    h, w = (size + int(rng.integers(0, 3)) for size in kernel)
    shapes = (n, icg * groups, h, w), (oc * groups, icg, *kernel)
    return Conv2dProblem.of(*shapes, 1, rng.integers(0, 2, 4).tolist(), 1, groups)


def random_transposed(rng: np.random.Generator) -> TransposedConv2dProblem:
    """Return a small transposed convolution with random batch, groups, kernel, stride, dilation and
    padding."""
    groups = int(rng.choice([1, 1, 2, 3]))
    n, icg, ocg = (int(v) for v in rng.integers(1, (3, 7, 7)))
    h, w = (int(v) for v in rng.integers(1, 8, 2))
    kh, kw = (int(v) for v in rng.integers(1, 6, 2))
    stride, dilation = rng.integers(1, 4, 2).tolist(), rng.choice([1, 1, 2, 3], 2).tolist()
    extra = [int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True)]
    room = [
        (size - 1) * s + d * (k - 1) + e
        for size, s, d, k, e in zip((h, w), stride, dilation, (kh, kw), extra, strict=True)
    ]
    padding = [int(rng.integers(0, min(4, r // 2 + 1))) for r in room + room]
    weight = (icg * groups, ocg, kh, kw)
    return TransposedConv2dProblem.of(
        (n, icg * groups, h, w), weight, stride, padding, extra, dilation, groups
    )
