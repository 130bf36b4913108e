"""A classifier without its last step: the features that its last linear layer would see."""

from copy import deepcopy

from torch import Tensor, nn

from fl2fast.errors import UsageError


class Passthrough(nn.Module):
    """In a linear layer's place: holds its parameters, so that no column moves, and uses none."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return x


def classifier_name(module: nn.Module) -> str:
    """The last linear layer, which makes logits of features."""
    names = [name for name, child in module.named_modules() if type(child) is nn.Linear]
    if not names:
        raise UsageError(
            "the model has no Linear layer whose input could be its features: choose a model that "
            "ends in one, or another method"
        )
    return names[-1]


def num_features(encoder: nn.Module) -> int:
    (place,) = (child for child in encoder.modules() if isinstance(child, Passthrough))
    return place.weight.shape[1]


def without_classifier(module: nn.Module) -> nn.Module:
    module = deepcopy(module)
    name = classifier_name(module)
    parent, _, leaf = name.rpartition(".")
    linear = module.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    setattr(module.get_submodule(parent), leaf, Passthrough(linear))
    return module
