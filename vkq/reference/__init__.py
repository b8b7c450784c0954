"""The NumPy oracle: every path on every device must return its results, bit for bit.

Only `vkq check`, `vkq bench` and the tests import it. The oracle and the launchers share multipliers,
bounds, tables and element-wise arithmetic (`vkq.numerics`). An error there would affect both, so the tests
also compare `vkq.numerics` with ONNX Runtime.
"""

from vkq.reference.dynamic import linear_dynamic
from vkq.reference.floats import conv2d_q8csw, conv_transpose2d_q8csw, linear_q8csw
from vkq.reference.grouped import linear_grouped
from vkq.reference.layers import conv2d, conv2d_acc, linear, linear_acc
from vkq.reference.operators import avg_pool2d, global_avg_pool, lookup, max_pool2d
from vkq.reference.resize import resize
from vkq.reference.softmax import softmax
from vkq.reference.transposed import conv_transpose2d

__all__ = [
    "avg_pool2d",
    "conv2d",
    "conv2d_acc",
    "conv2d_q8csw",
    "conv_transpose2d",
    "conv_transpose2d_q8csw",
    "global_avg_pool",
    "linear",
    "linear_acc",
    "linear_dynamic",
    "linear_grouped",
    "linear_q8csw",
    "lookup",
    "max_pool2d",
    "resize",
    "softmax",
]
