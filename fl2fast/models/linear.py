"""A linear classifier, for inputs that are features already."""

from torch import Tensor, nn


class LinearClassifier(nn.Module):
    """One linear layer on the flattened input."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(num_inputs, num_classes)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))
