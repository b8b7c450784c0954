"""Select rows of a table by ids on the device, and combine them with other rows (add, sub or mul), in one
dispatch."""

from __future__ import annotations

from ..kernels.weights import ceil4
from ..layout.extent import MATRIX, Spec
from ..numerics.elementwise import BinaryOp, swaps
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .elementwise import formula, numbers_of, repeats


def combined_rows(
    b: Builder, x: Value, ids: Value, z: Value, op: BinaryOp, xq: QParams, zq: QParams, yq: QParams,
    activation: Activation = None, second: bool = False,
) -> Value | None:  # fmt: skip
    """Add ``op(np.take(x, ids, 0), z)`` to a plan, for a matrix x of 8-bit numbers and int32 *ids* (see
    `take.gathered`). *second*: the rows of x are the second operand. Return None if the kernel does not
    support the operands. It requires, among others:

    - z has the result's shape, or broadcasts to it along leading axes only, with whole blocks of four
      rows;
    - all arrays are in kPackedInt8_4H4W."""
    shape = (*ids.spec.shape, x.spec.shape[-1])
    y = Spec(shape, yq.dtype, None, yq)
    if len(x.spec.shape) != 2 or len(z.spec.shape) > len(shape) or not y.size or not x.spec.size:
        return None
    if {x.spec.layout, y.layout, z.spec.layout} != {MATRIX} or not xq.dtype == zq.dtype == yq.dtype:
        return None
    rows = Spec((*(1,) * (len(shape) - len(z.spec.shape)), *z.spec.shape), z.spec.dtype, MATRIX)
    shapes = (z.spec.shape, shape) if second else (shape, z.spec.shape)
    if not repeats(rows, y) or (op != "sub" and swaps(*shapes)):
        return None
    numbers, table, push = formula(b, op, *((zq, xq) if second else (xq, zq)), yq, activation)
    width, count = ceil4(shape[-1]), ids.spec.size
    push |= {
        **numbers_of(b, numbers, yq.dtype), "count": ceil4(count) * width, "width": width, "rows": count,
        "period": z.spec.nbytes // 16, "axis": x.spec.shape[0],
    }  # fmt: skip
    variant = catalog().find("gather_binary_q8__vector", op=numbers.variant)
    constants: dict[str, Constant] = {"SECOND": second, "SURE": numbers.sure(b.device.soft_float)}
    program = b.device.program(variant, constants)
    made = b.new(y)
    b.dispatch(program, [x, ids, z, b.constant(table), made], push)
    return made
