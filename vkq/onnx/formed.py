"""Rewrites operators in terms of other operators, once the shapes of their inputs are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import ModelError
from ..graph.graph import Array, Node, Spec
from .attention import multi_head_attention
from .functions import Body
from .gathered import gather_block_quantized
from .grouped import group_query_attention
from .int8_caches import append_cache
from .onnx_attention import onnx_attention
from .projected import projected_attention, quantized_attention
from .rewriting import Rewriting
from .rotary import microsoft_rotary, onnx_rotary

APPEND = ("vkq", "AppendCache")  # replaces a Concat of past and new tokens (`vkq.onnx.adapted`)
RULES: dict[tuple[str, str], Callable[[Rewriting], bool]] = {
    APPEND: append_cache,
    ("", "Attention"): onnx_attention,
    ("", "RotaryEmbedding"): onnx_rotary,
    ("com.microsoft", "Attention"): projected_attention,
    ("com.microsoft", "GatherBlockQuantized"): gather_block_quantized,
    ("com.microsoft", "GroupQueryAttention"): group_query_attention,
    ("com.microsoft", "MultiHeadAttention"): multi_head_attention,
    ("com.microsoft", "QAttention"): quantized_attention,
    ("com.microsoft", "RotaryEmbedding"): microsoft_rotary,
}


def written(node: Node, specs: Sequence[Spec | None], arrays: Sequence[Array | None]) -> Body | None:
    """Return the nodes and constants that replace *node*, a ``foreign`` node (`unknown_operators`), or None
    if no rule supports the operator with these attributes and inputs. Raises OpenShape if the shapes of the
    results depend on values that are known only at run time."""
    a = node.attributes
    rule = RULES.get((a["domain"], a["op"]))
    plain = Node(a["op"], node.inputs, node.outputs, a["attributes"], node.source)
    w = Rewriting(plain, specs, arrays, a.get("int8_cache", False))
    if rule is None or not rule(w):
        if w.int8_cache:
            raise ModelError(f"{node}: kv_cache='int8' does not support this form; leave kv_cache out")
        return None
    return w.reading.nodes, w.reading.constants
