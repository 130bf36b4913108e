"""Ways to run L learners of one architecture; all compute the same function.

Shapes: L lanes, B rows, C channels, H x W pixels, Y classes, P parameters, F features.
A lowering takes a plain module and returns apply(params_LP, x_LBCHW, buffers) -> logits_LBY, where
`buffers` holds per-lane values for the buffers of the module's `Norm` layers.

  loop     one learner after another: the truth
  vmap     torch.func.vmap over learners: any module that vmap can trace
  grouped  activations stay [B, L*C, H, W] from input to output: a convolution becomes one grouped
           convolution, batch norm runs its native kernel over L*C channels
  cores    one learner a thread, channels last (see engine.cores): a learner steps alone, so that
           its activations stay in a core's cache and no batch is padded
"""

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fl2fast.errors import UsageError
from fl2fast.kernels.lane_conv import lane_conv
from fl2fast.models.encoder import Passthrough
from fl2fast.models.execution import Execution
from fl2fast.models.fuse import with_fused_relus
from fl2fast.models.layout import Layout
from fl2fast.models.norm import Norm, with_explicit_norms

Buffers = Mapping[str, Tensor]
Apply = Callable[[Tensor, Tensor, Buffers], Tensor]


def loop(module: nn.Module) -> Apply:
    module, layout = _single(module)

    def apply(params_LP: Tensor, x_LBCHW: Tensor, buffers: Buffers) -> Tensor:
        lanes = []
        for lane, x_BCHW in enumerate(x_LBCHW):
            own = {name: value[lane] for name, value in buffers.items()}
            lanes.append(functional_call(module, layout.split(params_LP[lane]) | own, (x_BCHW,)))
        return torch.stack(lanes)

    return apply


def cores(module: nn.Module) -> Apply:
    plain = loop(module)

    def apply(params_LP: Tensor, x_LBCHW: Tensor, buffers: Buffers) -> Tensor:
        x_BCHW = x_LBCHW.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return plain(params_LP, x_BCHW.unflatten(0, x_LBCHW.shape[:2]), buffers)

    return apply


def vmap(module: nn.Module) -> Apply:
    module, layout = _single(module)

    def one(params_P: Tensor, x_BCHW: Tensor, own: Buffers) -> Tensor:
        return functional_call(module, layout.split(params_P) | dict(own), (x_BCHW,))

    return torch.func.vmap(one)


def grouped(module: nn.Module, kernels: Collection[str] = ()) -> Apply:
    module, layout = _single(module)
    module = _with_grouped_layers(module, kernels)

    def apply(params_LP: Tensor, x_LBCHW: Tensor, buffers: Buffers) -> Tensor:
        num_lanes = x_LBCHW.shape[0]
        x = x_LBCHW.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)  # one copy
        x = x.contiguous(memory_format=torch.channels_last)  # another for a single lane only
        logits = functional_call(module, layout.split_lanes(params_LP) | dict(buffers), (x,))
        return logits.unflatten(1, (num_lanes, -1)).transpose(0, 1)

    return apply


def _single(module: nn.Module) -> tuple[nn.Module, Layout]:
    """A copy of one learner with explicit norms, and the layout of its parameters."""
    layout = Layout.of(dict(module.named_parameters()))
    return with_explicit_norms(deepcopy(module)), layout


LOWERINGS: dict[str, Callable[[nn.Module], Apply]] = {
    "loop": loop,
    "vmap": vmap,
    "grouped": grouped,
    "cores": cores,
}


def lower(module: nn.Module, execution: Execution) -> Apply:
    if execution.lowering == "grouped":
        return grouped(module, execution.kernels)
    return LOWERINGS[execution.lowering](module)


def check_lowering(module: nn.Module, name: str, image_shape: tuple[int, ...]) -> None:
    """Refuse a module that a faster lowering would compute differently from `loop`.

    A forward may do what no layer shows, such as a reshape over channels; only running it tells.
    """
    module = deepcopy(module).double()
    num_params = sum(p.numel() for p in module.parameters())
    params_LP = torch.linspace(-0.5, 0.5, 2 * num_params, dtype=torch.float64).view(2, -1).sin()
    numel = 2 * 4 * torch.Size(image_shape).numel()
    x_LBCHW = torch.linspace(0, 50, numel, dtype=torch.float64).sin().view(2, 4, *image_shape)
    try:
        expected, actual = (
            torch.func.vjp(lambda p, apply=apply: apply(p, x_LBCHW, {}), params_LP)[0]
            for apply in (loop(module), LOWERINGS[name](module))
        )
        same = actual.shape == expected.shape and torch.allclose(actual, expected, atol=1e-9)
        reason = "gives other outputs than one learner at a time"
    except UsageError:
        raise
    except Exception as error:  # the user's own forward: whatever it raises is the news
        same, reason = False, f"fails ({(str(error) or repr(error)).splitlines()[0]})"
    if not same:
        others = {"grouped": "use --lowering vmap or loop", "vmap": "use --lowering loop"}
        remedy = others.get(name, "its forward must not change its own state")
        raise UsageError(f"the model under --lowering {name} {reason}: {remedy}")


class _GroupedConv2d(nn.Module):
    """weight [L, out, in, h, w]: every lane convolves its own block of channels."""

    def __init__(self, conv: nn.Conv2d, *, kernel: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.conv = conv.weight, conv.bias, [conv]  # a list: not a child
        shape = (conv.kernel_size, conv.padding, conv.dilation, conv.groups)
        known = shape in (((3, 3), (1, 1), (1, 1), 1), ((1, 1), (0, 0), (1, 1), 1))
        self.kernel = kernel and known and conv.bias is None and conv.stride in ((1, 1), (2, 2))

    def forward(self, x: Tensor) -> Tensor:
        (conv,) = self.conv
        weight, bias = self.weight, self.bias
        if self.kernel:
            return lane_conv(x, weight, conv.stride[0], int(conv.padding[0]))
        return F.conv2d(
            x,
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            conv.stride,
            conv.padding,
            conv.dilation,
            groups=weight.shape[0] * conv.groups,
        )


class _GroupedLinear(nn.Module):
    """weight [L, out, in]: every lane multiplies its own block of features, as one bmm."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        x_LBF = x.unflatten(1, (self.weight.shape[0], -1)).transpose(0, 1)
        if self.bias is None:
            out_LBF = torch.bmm(x_LBF, self.weight.mT)
        else:
            out_LBF = torch.baddbmm(self.bias[:, None], x_LBF, self.weight.mT)
        return out_LBF.transpose(0, 1).flatten(1)


def _with_grouped_layers(module: nn.Module, kernels: Collection[str]) -> nn.Module:
    for name, child in list(module.named_modules()):
        parent, _, leaf = name.rpartition(".")
        if type(child) is nn.Conv2d and child.padding_mode == "zeros":
            conv = _GroupedConv2d(child, kernel="conv" in kernels)
            setattr(module.get_submodule(parent), leaf, conv)
        elif type(child) is nn.Linear:
            setattr(module.get_submodule(parent), leaf, _GroupedLinear(child))
        elif isinstance(child, Norm):
            child.kernel = "norm" in kernels
        elif type(child) is not Passthrough and any(True for _ in child.parameters(recurse=False)):
            raise UsageError(
                f"the grouped lowering has no form for the model's layer {name!r} "
                f"({type(child).__name__}); it knows Conv2d, Linear and BatchNorm2d: use "
                "--lowering vmap"
            )
    return with_fused_relus(module) if "norm" in kernels else module
