"""Tests of operators that only move data, as the benchmark runs them: in both layouts, byte for byte."""

import numpy as np
import pytest

import vkq
from vkq import ArgumentError
from vkq.bench import movers
from vkq.bench.cases import expand
from vkq.problem.mover import BYTES, LAYOUTS, WINDOWS, Mover, mover

# first, sizes that are not multiples of a vector; second, fewer channels and pixels than a vector has
SIZES = [(2, 37, 5, 7), (3, 3, 2, 1)]


def of(op: str, size: tuple[int, int, int, int], block: int) -> Mover:
    n, c, h, w = size
    return Mover(op, n, c, *((1, 1) if op == "softmax" else (h, w)), block, 3, 2 if op in WINDOWS else 1)


@pytest.mark.parametrize("block", LAYOUTS)
@pytest.mark.parametrize("op", BYTES)
def test_every_operator_in_both_layouts(device: vkq.Device, op: str, block: int) -> None:
    for size in SIZES:
        p = of(op, size, block)
        x, run = movers.activations(p), movers.MoverLayer(p, device)
        tensor = run.tensor(x)
        y = run(tensor)
        np.testing.assert_array_equal(y.numpy(), movers.expected(p, x), strict=True)
        variants = run.explain(x.shape).variants
        # kernels for matrix units write one layout, whatever the layout of their input
        if any("coopmat" in variant for variant in variants):
            continue
        assert op in ("repack", "dequantize", "softmax") or y.layout == LAYOUTS[block]
        # concat runs two kernels, every other operator one: nothing is repacked
        assert len(variants) == (2 if op == "concat" else 1)


def test_names_and_bytes() -> None:
    for op in BYTES:
        p = of(op, (2, 5, 4, 3), 4)
        assert mover(p.name) == p
        assert p.bytes() > 0
    assert [p.name for p in expand("gate[N=1,C=2,H=3,W=4,block=4,16]")] == [
        "gate[N=1,C=2,H=3,W=4,block=4]", "gate[N=1,C=2,H=3,W=4,block=16]",
    ]  # fmt: skip
    assert mover("add[N=1,C=2,H=3,W=4]").bytes() == 3 * 24
    assert mover("quantize[N=1,C=2,H=3,W=4]").bytes() == 5 * 24
    assert mover("gate[N=1,C=2,H=3,W=4]").bytes() == 2 * 24 + 2
    assert mover("max_pool2d[N=1,C=2,H=4,W=4,stride=2]").bytes() == 32 + 8
    assert mover("global_avg_pool2d[N=1,C=2,H=4,W=4]").bytes() == 32 + 2


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("add[N=1,C=2,H=3,W=4,block=8]", "block 16 or 4"),
        ("add[N=0,C=2,H=3,W=4]", "1 or more"),
        ("add[N=1,C=2,H=3,W=4,K=3]", "unknown: K"),
        ("max_pool2d[N=1,C=2,H=3,W=4,K=3x3]", "one number"),
        ("softmax[N=1,C=2,H=3,W=4]", "H and W must be 1"),
    ],
)
def test_refusals(name: str, rule: str) -> None:
    with pytest.raises(ArgumentError, match=rule):
        mover(name)
