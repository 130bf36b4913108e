"""A learner is one row of a matrix.

The parameters of L learners are one tensor `params_LP`; `Layout` knows which columns are which
named tensor. Norms, clipping, perturbation, momentum and aggregation are then plain expressions on
matrices, per lane by construction, and a client's optimiser state is one row to keep.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "Layout":
        return Layout(tuple(tensors), tuple(t.shape for t in tensors.values()))

    @property
    def width(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """[..., P] -> views {name: [..., *shape]}; its gradient is a single concatenation."""
        columns = flat.split([shape.numel() for shape in self.shapes], dim=-1)
        return {
            name: column.unflatten(-1, shape)
            for name, shape, column in zip(self.names, self.shapes, columns, strict=True)
        }

    def split_lanes(self, params_LP: Tensor) -> dict[str, Tensor]:
        """`split` into tensors that are contiguous, lane after lane, by a single copy of each."""
        if torch.compiler.is_compiling():  # which arranges copies itself, and cannot trace these
            return self.split(params_LP)
        columns = _Columns.apply(params_LP, [shape.numel() for shape in self.shapes])
        return {
            name: column.unflatten(-1, shape)
            for name, shape, column in zip(self.names, self.shapes, columns, strict=True)  # type: ignore[arg-type]
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """{name: [..., *shape]} -> [..., P], the inverse of `split`."""
        columns = [
            tensors[name].flatten(tensors[name].dim() - len(shape))
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        return torch.cat(columns, dim=-1)

    def mask(self, word: str, like: Tensor) -> Tensor:
        """1 in the columns of every tensor whose name contains `word`, else 0: [P]."""
        return torch.cat(
            [
                like.new_full((shape.numel(),), float(word in name))
                for name, shape in zip(self.names, self.shapes, strict=True)
            ]
        )

    def matrices(self, like: Tensor) -> Tensor:
        """True in the columns of every tensor of two axes or more: [P]."""
        return torch.cat(
            [
                torch.full((shape.numel(),), len(shape) > 1, device=like.device)
                for shape in self.shapes
            ]
        )


class _Columns(torch.autograd.Function):
    """[L, P] -> contiguous [L, n] of every n in `widths`, in one launch each way."""

    @staticmethod
    def forward(params_LP: Tensor, widths: list[int]) -> tuple[Tensor, ...]:  # type: ignore[override]
        given = params_LP.split(widths, dim=1)
        copies = [params_LP.new_empty(column.shape) for column in given]
        torch._foreach_copy_(copies, given)
        return tuple(copies)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return torch.cat(grads, dim=1), None
