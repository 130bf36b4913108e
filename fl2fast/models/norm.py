"""Batch norm whose row mask and statistics are explicit inputs.

Shapes: L lanes, B rows, C channels. A learner on its own holds weight [C], row [B] and mean [C];
a grouped module holds all lanes at once: weight [L, C], row [L, B], mean [L, C], and its input's
channels are lane after lane, so that batch norm over L*C channels *is* per-lane batch norm.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from fl2fast.errors import UsageError
from fl2fast.kernels.masked_norm import masked_norm
from fl2fast.kernels.norm_relu import norm_relu


class Norm(nn.Module):
    """Given `mean` and `var` it uses them; else the batch's own, over the live rows of `row`.

    The buffers are filled by `functional_call`, never stored: nothing is tracked while a client
    trains (static batch norm), and the perturbed pass of SACR cannot touch a statistic. Given
    `seen_mean` and `seen_var` it writes what it saw there, as recalibration asks.
    """

    weight: Tensor
    bias: Tensor
    row: Tensor | None
    mean: Tensor | None
    var: Tensor | None
    seen_mean: Tensor | None
    seen_var: Tensor | None
    kernel: bool = False  # batch statistics are made by kernels.norm_relu,
    relu: bool = False  # which then applies the ReLU that follows as well

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        for name in ("row", "mean", "var", "seen_mean", "seen_var"):
            self.register_buffer(name, None)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.reshape(-1), self.bias.reshape(-1)
        if self.mean is not None and self.var is not None:
            mean, var = self.mean.reshape(-1), self.var.reshape(-1)
            return F.batch_norm(x, mean, var, weight, bias, training=False, eps=self.eps)
        if self.kernel:
            lane = (self.weight.shape[0], -1)
            return norm_relu(x, self.row, weight.view(lane), bias.view(lane), self.eps, self.relu)
        alone = x.shape[0] * x.shape[2] * x.shape[3] == 1  # native batch norm refuses one value
        if self.row is None and not alone:
            # momentum 1: the native kernel's running statistics are this batch's own
            return F.batch_norm(
                x, self.seen_mean, self.seen_var, weight, bias, True, momentum=1.0, eps=self.eps
            )
        num_lanes = self.weight.shape[0] if self.weight.dim() == 2 else 1
        row = x.new_ones(num_lanes, 1) if self.row is None else self.row
        row_LB = row.reshape(num_lanes, x.shape[0])
        x_BLCHW = x.unflatten(1, (num_lanes, -1))
        lane = (num_lanes, -1)
        wide = x_BLCHW.to(weight.dtype)  # sums in half precision would be worthless
        out = masked_norm(wide, row_LB.T, weight.view(lane), bias.view(lane), self.eps)
        return out.flatten(1, 2).to(x.dtype)


def with_explicit_norms(module: nn.Module) -> nn.Module:
    """Swap every BatchNorm2d in `module`, which is changed in place, for a `Norm`."""
    swapped: dict[nn.Module, Norm] = {}  # a layer used under two names stays one layer
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:
            raise UsageError(
                f"the model's layer {name!r} is dropout with p={child.p}, whose draws cannot be "
                "keyed; remove it or set p=0"
            )
        if isinstance(child, nn.modules.batchnorm._NormBase):
            if not (type(child) is nn.BatchNorm2d and child.affine):
                raise UsageError(
                    f"the model's layer {name!r} is a {type(child).__name__}; of the layers that "
                    "keep running statistics only BatchNorm2d with affine=True is supported: use "
                    "that or GroupNorm"
                )
            parent, _, leaf = name.rpartition(".")
            swapped.setdefault(child, Norm(child))
            setattr(module.get_submodule(parent), leaf, swapped[child])
    return module
