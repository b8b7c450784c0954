"""Sizes of a linear layer: every shape check, the derived sizes, op and byte counts, and a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from vkq.errors import ArgumentError
from vkq.problem.options import Pair, check_sizes, shape_of


@dataclass(frozen=True)
class LinearProblem:
    """Sizes of ``y = x @ weight.T``: x (*lead, K), weight (N, K), y (*lead, N), with M the product of
    ``lead``.

    - m, n, k: rows (batch x tokens), output features, reduction length; each 0 or more. With K = 0, y is the
      bias.
    - lead: the leading dims of x and y; None: (m,). It is () for a single vector x (K,).

    Raises ArgumentError for a negative size, or a ``lead`` whose product is not m.

    >>> p = LinearProblem.of((2, 5, 64), (32, 64))
    >>> p.m, p.y_shape, p.name
    (10, (2, 5, 32), 'linear[M=10,K=64,N=32]')
    """

    m: int
    n: int
    k: int
    lead: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        lead = (self.m,) if self.lead is None else tuple(self.lead)
        check_sizes("linear", {"M": self.m, "N": self.n, "K": self.k}, least=0)
        check_sizes("linear", {f"leading dim {axis}": size for axis, size in enumerate(lead)}, least=0)
        if prod(lead) != self.m:
            raise ArgumentError(
                f"linear: the leading dims are {lead} but M={self.m}; M must be their product."
            )
        object.__setattr__(self, "lead", lead)

    @classmethod
    def of(cls, x_shape: Sequence[int], weight_shape: Sequence[int]) -> LinearProblem:
        """Return the problem of x (..., K) and weight (N, K). Raise ArgumentError if they do not fit."""
        x, w = shape_of(x_shape), shape_of(weight_shape)
        if len(w) != 2:
            raise ArgumentError(f"linear: weight has {len(w)} axes (shape {w}); it must have 2: (N, K).")
        if not x:
            raise ArgumentError("linear: x has no axes (shape ()); its last axis must be K.")
        if x[-1] != w[1]:
            raise ArgumentError(
                f"linear: x has K={x[-1]} (shape {x}) but weight has K={w[1]} (shape {w}); their last axes"
                " must be equal."
            )
        return cls(prod(x[:-1]), w[0], w[1], x[:-1])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """(*lead, K)"""
        return (*(self.lead or ()), self.k)

    @property
    def weight_shape(self) -> Pair:
        """(N, K)"""
        return (self.n, self.k)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """(*lead, N)"""
        return (*(self.lead or ()), self.n)

    @property
    def gemm_m(self) -> int:
        """M, the rows of the matrix product."""
        return self.m

    @property
    def gemm_n(self) -> int:
        """N, the columns of the matrix product."""
        return self.n

    @property
    def gemm_k(self) -> int:
        """K, the reduction length."""
        return self.k

    @property
    def macs(self) -> int:
        """Multiply-accumulates: M*N*K (two operations each)."""
        return self.m * self.n * self.k

    def bytes(self, x_itemsize: int = 1, w_itemsize: int = 1, y_itemsize: int = 1) -> int:
        """Return the bytes of x, weight and y together: the minimum memory traffic of one call. Item sizes
        are in bytes."""
        return self.m * self.k * x_itemsize + self.n * self.k * w_itemsize + self.m * self.n * y_itemsize

    @property
    def name(self) -> str:
        """``linear[M=1,K=64,N=32]``: test id, benchmark row and filter. It omits the leading dims."""
        return f"linear[M={self.m},K={self.k},N={self.n}]"
