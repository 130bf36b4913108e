"""SGD as a pure function on rows of parameters. Shapes: L lanes, P parameters."""

from typing import NamedTuple

from torch import Tensor


class SGD(NamedTuple):
    """As torch.optim.SGD means them; a zero buffer is a first step."""

    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    clip: float = 1.0  # per-lane gradient norm; 0 switches clipping off

    def step(
        self, params_LP: Tensor, buffer_LP: Tensor, grad_LP: Tensor, lr: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """Clip, decay, accumulate, move: the updated (params_LP, buffer_LP)."""
        if self.clip:
            norm_L1 = grad_LP.norm(dim=-1, keepdim=True)
            grad_LP = grad_LP * (self.clip / (norm_L1 + 1e-6)).clamp(max=1.0)
        grad_LP = grad_LP + self.weight_decay * params_LP
        buffer_LP = self.momentum * buffer_LP + grad_LP
        direction_LP = grad_LP + self.momentum * buffer_LP if self.nesterov else buffer_LP
        return params_LP - lr * direction_LP, buffer_LP
