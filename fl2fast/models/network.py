"""One architecture, ready to run: many learners at once to train, one at a time to be asked.

Shapes: L lanes, B rows, C channels, H x W pixels, Y classes, P parameters, Q norm channels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from fl2fast.models.encoder import classifier_name, num_features, without_classifier
from fl2fast.models.execution import Execution
from fl2fast.models.fold import Folded
from fl2fast.models.layout import Layout
from fl2fast.models.lowering import Apply, lower
from fl2fast.models.norm import Norm, with_explicit_norms


class Stats(NamedTuple):
    """The static batch-norm statistics of one learner, all layers side by side."""

    mean_Q: Tensor
    var_Q: Tensor


@dataclass(frozen=True)
class Network:
    layout: Layout  # which of the P columns is which parameter
    norms: Layout  # which of the Q columns is which norm layer
    weights_P: Tensor  # 1 where a parameter is a weight, 0 where it is a bias
    execution: Execution
    apply: Apply
    module: nn.Module  # explicit norms, one learner
    folded: Folded  # the same with fixed statistics
    source: nn.Module  # as it was given

    @staticmethod
    def of(module: nn.Module, execution: Execution | str, like: Tensor) -> "Network":
        """`like` gives dtype and device; the module's own parameter values are not used.

        A mere name is a lowering with nothing else chosen.
        """
        if isinstance(execution, str):
            execution = Execution(execution)
        layout = Layout.of(dict(module.named_parameters()))
        single = with_explicit_norms(deepcopy(module))
        norms = {name: m.weight for name, m in single.named_modules() if isinstance(m, Norm)}
        return Network(
            layout,
            Layout.of(norms),
            layout.mask("weight", like),
            execution,
            lower(module, execution),
            single,
            Folded.of(single),
            module,
        )

    def twin(self) -> "Network":
        """The same network for another thread: a module serves one call at a time."""
        return Network.of(self.source, self.execution, self.weights_P)

    @cached_property
    def encoder(self) -> "Network":
        """The same columns, and features in place of logits; the classifier's are not used."""
        return Network.of(without_classifier(self.source), self.execution, self.weights_P)

    @cached_property
    def classifier(self) -> str:
        """The linear layer that makes logits of features."""
        return classifier_name(self.source)

    @property
    def num_classes(self) -> int:
        return self.layout.shapes[self.layout.names.index(f"{self.classifier}.weight")][0]

    @property
    def num_features(self) -> int:
        """That the encoder makes.

        A learner asks for it before any step: a step that is traced cannot make the encoder, since
        modules cannot be copied there.
        """
        return num_features(self.encoder.source)

    def forward(self, params_LP: Tensor, x_LBCHW: Tensor, row_LB: Tensor | None) -> Tensor:
        """logits_LBY with batch statistics over the live rows (None: all are live)."""
        rows = {} if row_LB is None else {f"{name}.row": row_LB for name in self.norms.names}
        with self._precision():
            return self.apply(params_LP, x_LBCHW, rows).to(params_LP.dtype)

    def pullback(
        self, params_LP: Tensor, x_LBCHW: Tensor, row_LB: Tensor | None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """`forward`'s logits and the map from a cotangent of them to grad_LP; call it at will."""
        value = vjp(lambda params: self.forward(params, x_LBCHW, row_LB), params_LP)
        logits_LBY, pull = value[0], value[1]
        return logits_LBY, lambda cotangent_LBY: pull(cotangent_LBY)[0]

    def pull_each(
        self, pull: Callable[[Tensor], Tensor], cotangents: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The pullbacks of several cotangents of one forward."""
        if self.execution.shared_backward:
            return torch.func.vmap(pull)(torch.stack(list(cotangents))).unbind()
        return [pull(cotangent) for cotangent in cotangents]

    def infer(self, params_P: Tensor, stats: Stats, x_BCHW: Tensor) -> Tensor:
        """logits_BY of one learner with static statistics."""
        given = self.layout.split(params_P)
        given |= {f"{name}.mean": mean for name, mean in self.norms.split(stats.mean_Q).items()}
        given |= {f"{name}.var": var for name, var in self.norms.split(stats.var_Q).items()}
        return self._one(self.folded.module, self.folded.parameters(given), x_BCHW)

    def moments(self, params_P: Tensor, x_BCHW: Tensor) -> Stats:
        """Mean and unbiased variance that each norm layer sees when this batch passes through."""
        seen = Stats(params_P.new_zeros(self.norms.width), params_P.new_ones(self.norms.width))
        tracked = {f"{name}.seen_mean": t for name, t in self.norms.split(seen.mean_Q).items()}
        tracked |= {f"{name}.seen_var": t for name, t in self.norms.split(seen.var_Q).items()}
        self._one(self.module, self.layout.split(params_P) | tracked, x_BCHW)
        return seen

    def _one(self, module: nn.Module, given: dict[str, Tensor], x_BCHW: Tensor) -> Tensor:
        x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        with self._precision():
            return functional_call(module, given, (x_BCHW,)).to(self.weights_P.dtype)

    def _precision(self) -> AbstractContextManager[object]:
        """Convolutions and products in bfloat16 if so chosen; parameters keep their precision."""
        if self.execution.precision != "bf16":
            return nullcontext()
        # no cache: the same parameters mean other values in every forward
        return torch.autocast(self.weights_P.device.type, torch.bfloat16, cache_enabled=False)
