"""The execution of a plan on tensors, for calls of operators."""

from __future__ import annotations

from collections.abc import Sequence

from ..arguments import shown
from ..errors import ArgumentError, DTypeError
from .plan import Plan
from .tensor import Tensor


def run(plan: Plan, inputs: Sequence[Tensor], out: Tensor | None = None, op: str = "out") -> Tensor:
    """Run a plan on inputs that match it. Return the result, which is in *out* if given.

    Raises ArgumentError if *out* does not match the plan's result.
    """
    device, buffers = inputs[0].device, [x.buffer for x in inputs]
    if out is not None:
        _check_out(plan, inputs, out, op)
        y = out
    elif plan.outputs[0] < len(inputs):  # the result is an input with another spec: run nothing
        return Tensor.of(device, plan.result, buffers[plan.outputs[0]])
    else:
        y = Tensor.of(device, plan.result)
    if plan.steps:
        device.add(plan, buffers, (y.buffer,))
    if plan.outputs[0] < len(inputs):  # copy the input, with another spec, into *out*
        with device.operation() as recording:
            recording.copy(buffers[plan.outputs[0]], y.buffer, y.nbytes)
    return y


def _check_out(plan: Plan, inputs: Sequence[Tensor], out: Tensor, op: str) -> None:
    if not isinstance(out, Tensor):
        raise DTypeError(f"{op}: out is {shown(out)} ({type(out).__name__}); it must be a Tensor or None")
    if out.device is not inputs[0].device:
        raise ArgumentError(
            f"{op}: out is on {out.device!r} and x on {inputs[0].device!r}; they must be the same"
        )
    if out.spec != plan.result:
        raise ArgumentError(
            f"{op}: out is {out.spec!r} with {out.qparams}, the result {plan.result!r} with "
            f"{plan.result.qparams}; they must be equal"
        )
    if any(out.buffer is x.buffer for x in inputs):
        raise ArgumentError(
            f"{op}: out is an input of the operation, which would be overwritten; give another tensor"
        )
