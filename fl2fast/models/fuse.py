"""Find the norms whose output goes into a ReLU and nowhere else, and let them do both.

A traced copy of the module takes its place; a forward that cannot be traced stays as it is.
"""

import torch
import torch.nn.functional as F
from torch import fx, nn

from fl2fast.models.norm import Norm

_RELUS = (F.relu, torch.relu)


class LayerTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers, and whatever decides by shapes, stay whole."""
        return not any(True for _ in m.children())


def with_fused_relus(module: nn.Module) -> nn.Module:
    try:
        graph = LayerTracer().trace(module)
    except Exception:  # the user's own forward, which fails in ways of its own
        return module
    for node in list(graph.nodes):
        layer = module.get_submodule(node.target) if node.op == "call_module" else None
        if not isinstance(layer, Norm) or len(node.users) != 1:
            continue
        (user,) = node.users
        if (user.op == "call_function" and user.target in _RELUS) or (
            user.op == "call_module" and type(module.get_submodule(user.target)) is nn.ReLU
        ):
            layer.relu = True
            user.replace_all_uses_with(node)
            graph.erase_node(user)
    return fx.GraphModule(module, graph)
