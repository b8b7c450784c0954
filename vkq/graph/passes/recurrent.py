"""Rewrites LSTM, GRU and RNN. One product multiplies the inputs of all time steps by the input weights. Then
each step is a product of the state and the recurrent weights, and a chain that computes the gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .words import FLOATS, Words

MOST_STEPS = 512  # maximum number of time steps; each of them adds several nodes to the plan
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip
# For each activation: the defaults of its parameters
PARAMETERS: dict[str, dict[str, float]] = {
    "Sigmoid": {}, "Tanh": {}, "Relu": {}, "Softsign": {}, "Softplus": {}, "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0}, "Elu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}  # fmt: skip
Activation = tuple[str, dict[str, Any]]  # an operator and its attributes
# A function that computes one time step. Arguments: the product of the step's input and the input weights;
# the state. Result: the next state.
Step = Callable[[str, list[str]], list[str]]


def recurrent(w: Words) -> bool:
    a, op = w.attributes, w.node.attributes["op"]
    x, steps = w.node.inputs[0], w.spec(0).shape[1 if a.get("layout", 0) else 0]
    directions = {"bidirectional": 2}.get(a.get("direction", "forward"), 1)
    names = a.get("activations") or ACTIVATIONS[op] * directions
    known = all(name in PARAMETERS for name in names) and w.spec(0).dtype in FLOATS
    if not known or not 0 < steps <= MOST_STEPS or 0 in w.spec(0).shape:
        return False
    x = w.emit("Transpose", [x], perm=(1, 0, 2)) if a.get("layout", 0) else x
    lengths = _lengths(w, steps)
    lines, states = [], []
    functions, each = _activations(w, names), len(names) // directions
    for d in range(directions):
        backwards = d == 1 or a.get("direction") == "reverse"
        made = _Direction(w, x, d, directions, functions[d * each : (d + 1) * each], backwards, lengths)
        line, state = made.run()
        lines.append(line)
        states.append(state)
    _results(w, lines, states)
    return True


def _activations(w: Words, names: Sequence[str]) -> list[Activation]:
    """Return the activations with their parameters. ``activation_alpha`` and ``activation_beta`` list the
    parameters of those activations that have such a parameter, in their order."""
    given = {name: list(w.attributes.get(f"activation_{name}") or ()) for name in ("alpha", "beta")}
    return [
        (op, {name: given[name].pop(0) if given[name] else value for name, value in PARAMETERS[op].items()})
        for op in names
    ]


def _lengths(w: Words, steps: int) -> str:
    """Return the name of the lengths of the sequences, as int32 of shape (batch, 1); "" if all sequences are
    known to have the full number of time steps."""
    known = w.given(4)
    if not w.node.input(4) or (known is not None and bool((known == steps).all())):
        return ""
    return w.reshape(w.node.inputs[4], (*w.spec(4).shape, 1))


class _Direction:
    """The computation of one direction, forwards or backwards in time."""

    def __init__(
        self, w: Words, x: str, d: int, count: int, activations: Sequence[Activation], backwards: bool,
        lengths: str,
    ):  # fmt: skip
        self.w, self.x, self.d, self.activations, self.backwards = w, x, d, activations, backwards
        self.op, self.lengths = w.node.attributes["op"], lengths
        self.steps, self.batch, self.inner = w.of(x).shape
        self.hidden = w.spec(2).shape[2]
        self.count = count

    def _own(self, index: int, shape: Sequence[int]) -> str:
        """Emit nodes that reshape this direction's part of input *index* to *shape*. Return the result's
        name."""
        w, name = self.w, self.w.node.inputs[index]
        return w.reshape(w.part(name, 0, self.d, self.d + 1) if self.count > 1 else name, shape)

    def _state(self, index: int) -> str:
        w = self.w
        if not w.node.input(index):
            return w.constant(np.zeros((self.batch, self.hidden)), w.of(self.x).dtype)
        name, shape = w.node.inputs[index], (self.batch, self.hidden)
        if not w.attributes.get("layout", 0):
            return self._own(index, shape)
        return w.reshape(w.part(name, 1, self.d, self.d + 1), shape)

    def run(self) -> tuple[str, list[str]]:
        """Emit the nodes of all time steps. Return (the name of the array (steps, 1, batch, hidden) with all
        hidden states, the names of the values of the last state)."""
        w, gates = self.w, GATES[self.op] * self.hidden
        weight = w.emit("Transpose", [self._own(1, (gates, self.inner))], perm=(1, 0))
        self.r = w.emit("Transpose", [self._own(2, (gates, self.hidden))], perm=(1, 0))
        products = w.emit("MatMul", [self.x, weight])
        self.bias = ""
        if w.node.input(3):
            both = self._own(3, (2, gates))
            one, two = (w.reshape(w.part(both, 0, i, i + 1), (gates,)) for i in range(2))
            products = w.emit("Add", [products, one])
            self.bias = two
        self.seen = [""] * 3  # the weights with which the gates i, o and f see the cell (peepholes)
        if w.node.input(7):
            both = self._own(7, (3, self.hidden))
            self.seen = [w.reshape(w.part(both, 0, i, i + 1), (self.hidden,)) for i in range(3)]
        state = [self._state(5)] + ([self._state(6)] if self.op == "LSTM" else [])
        if self.lengths:  # as in ONNX Runtime, an empty sequence ends in zeros
            state = [self._where(0, value, w.number(0.0, value)) for value in state]
        step: Step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.op]
        line: dict[int, str] = {}
        for t in range(self.steps)[:: -1 if self.backwards else 1]:
            one = w.reshape(w.part(products, 0, t, t + 1), (self.batch, gates))
            shown, state = self._within(t, step(one, state), state)
            line[t] = w.reshape(shown, (1, 1, self.batch, self.hidden))
        parts = [line[t] for t in range(self.steps)]
        return (w.emit("Concat", parts, axis=0) if len(parts) > 1 else parts[0]), state

    def _within(self, t: int, new: list[str], old: list[str]) -> tuple[str, list[str]]:
        """Return (the hidden state to show for step t, the state after it). Beyond the end of a sequence, the
        state does not change, and zeros are shown."""
        if not self.lengths:
            return new[0], new
        shown = self._where(t, new[0], self.w.number(0.0, new[0]))
        return shown, [self._where(t, *pair) for pair in zip(new, old, strict=True)]

    def _where(self, t: int, inside: str, beyond: str) -> str:
        """Emit a choice: *inside* for the sequences that have a step t, *beyond* for the others."""
        flags = self.w.emit("Greater", [self.lengths, self.w.number(t, self.lengths)])
        return self.w.emit("Where", [flags, inside, beyond])

    def _product(self, h: str) -> str:
        y = self.w.emit("MatMul", [h, self.r])
        return self.w.emit("Add", [y, self.bias]) if self.bias else y

    def _gate(self, value: str, i: int) -> str:
        return self.w.part(value, 1, i * self.hidden, (i + 1) * self.hidden)

    def _activated(self, index: int, value: str, clips: bool = True) -> str:
        """Emit activation number *index* of a value, which ``clip`` bounds if *clips*. Return the result's
        name."""
        (op, parameters), clip = self.activations[index], self.w.attributes.get("clip", 0)
        if clip and clips:
            value = self.w.emit("Clip", [value, *(self.w.number(v, value) for v in (-clip, clip))])
        return self.w.emit(op, [value], **parameters)

    def _peeped(self, value: str, i: int, cell: str) -> str:
        return (
            self.w.emit("Add", [value, self.w.emit("Mul", [self.seen[i], cell])]) if self.seen[i] else value
        )

    def _rnn(self, x: str, state: list[str]) -> list[str]:
        total = self.w.emit("Add", [x, self._product(state[0])])
        return [self._activated(0, total)]

    def _lstm(self, x: str, state: list[str]) -> list[str]:
        emit, old = self.w.emit, state[1]
        total = emit("Add", [x, self._product(state[0])])
        i = self._activated(0, self._peeped(self._gate(total, 0), 0, old))
        if self.w.attributes.get("input_forget", 0):
            forget = emit("Sub", [self.w.number(1.0, i), i])
        else:
            forget = self._activated(0, self._peeped(self._gate(total, 2), 2, old))
        new = emit("Mul", [i, self._activated(1, self._gate(total, 3))])
        cell = emit("Add", [emit("Mul", [forget, old]), new])
        o = self._activated(0, self._peeped(self._gate(total, 1), 1, cell))
        # ONNX Runtime does not clip the cell
        return [emit("Mul", [o, self._activated(2, cell, clips=False)]), cell]

    def _gru(self, x: str, state: list[str]) -> list[str]:
        emit, (h,) = self.w.emit, state
        if self.w.attributes.get("linear_before_reset", 0):
            y = self._product(h)
            z, r = (self._activated(0, emit("Add", [self._gate(x, n), self._gate(y, n)])) for n in range(2))
            inner = emit("Mul", [r, self._gate(y, 2)])
        else:
            cut = 2 * self.hidden
            y = emit("MatMul", [h, self.w.part(self.r, 1, 0, cut)])
            y = emit("Add", [y, self.w.part(self.bias, 0, 0, cut)]) if self.bias else y
            z, r = (self._activated(0, emit("Add", [self._gate(x, n), self._gate(y, n)])) for n in range(2))
            inner = emit("MatMul", [emit("Mul", [r, h]), self.w.part(self.r, 1, cut, cut + self.hidden)])
            last = self.w.part(self.bias, 0, cut, cut + self.hidden) if self.bias else ""
            inner = emit("Add", [inner, last]) if last else inner
        new = self._activated(1, emit("Add", [self._gate(x, 2), inner]))
        rest = emit("Sub", [self.w.number(1.0, z), z])
        return [emit("Add", [emit("Mul", [rest, new]), emit("Mul", [z, h])])]


def _results(w: Words, lines: list[str], states: list[list[str]]) -> None:
    """Emit the results: Y with the hidden states of all time steps, and the last states. With ``layout`` 1
    the batch is the first axis."""
    first = bool(w.attributes.get("layout", 0))
    values = [w.emit("Concat", lines, axis=1) if len(lines) > 1 else lines[0]]
    for i in range(len(states[0])):
        batch, hidden = w.of(states[0][i]).shape
        each = [w.reshape(state[i], (1, batch, hidden)) for state in states]
        values.append(w.emit("Concat", each, axis=0) if len(each) > 1 else each[0])
    for i, value in enumerate(values):
        if i < len(w.node.outputs) and w.node.outputs[i]:
            perm = (2, 0, 1, 3) if i == 0 else (1, 0, 2)
            w.result(w.emit("Transpose", [value], perm=perm) if first else value, i)
