"""Batch norm with fixed statistics right after a convolution is part of that convolution.

Shapes: O output channels. s = weight / sqrt(var + eps) scales the convolution's weights, and its
bias becomes bias + (b - mean) s, b being the one it had. The same function, up to rounding.
"""

from copy import deepcopy
from typing import NamedTuple

from torch import Tensor, fx, nn

from fl2fast.models.fuse import LayerTracer
from fl2fast.models.norm import Norm


class Folded(NamedTuple):
    """A module without the norms that could be folded, and which convolution took which."""

    module: nn.Module
    pairs: tuple[tuple[str, str, float], ...]  # convolution, norm, eps

    @staticmethod
    def of(module: nn.Module) -> "Folded":
        """`module` has explicit norms; one whose forward cannot be traced stays as it is."""
        module = deepcopy(module)
        try:
            graph = LayerTracer().trace(module)
        except Exception:  # the user's own forward, which fails in ways of its own
            return Folded(module, ())
        called = [node.target for node in graph.nodes if node.op == "call_module"]
        pairs = []
        for node in list(graph.nodes):
            before = node.args[0] if node.op == "call_module" and len(node.args) == 1 else None
            if not isinstance(before, fx.Node) or before.op != "call_module":
                continue
            norm, conv = (module.get_submodule(n.target) for n in (node, before))  # type: ignore[arg-type]
            once = called.count(node.target) == called.count(before.target) == 1
            only = once and len(before.users) == 1
            if isinstance(norm, Norm) and type(conv) is nn.Conv2d and only:
                if conv.bias is None:
                    conv.bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels))
                pairs.append((str(before.target), str(node.target), norm.eps))
                node.replace_all_uses_with(before)
                graph.erase_node(node)
        return Folded(fx.GraphModule(module, graph), tuple(pairs))

    def parameters(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The folded module's, from those of the whole one and the norms' `mean` and `var`."""
        given = dict(given)
        for conv, norm, eps in self.pairs:
            weight, bias, mean, var = (
                given.pop(f"{norm}.{name}") for name in ("weight", "bias", "mean", "var")
            )
            scale_O = weight * (var + eps).rsqrt()
            before_O = given.get(f"{conv}.bias", 0.0)
            given[f"{conv}.bias"] = bias + (before_O - mean) * scale_O
            given[f"{conv}.weight"] = given[f"{conv}.weight"] * scale_O[:, None, None, None]
        return given
