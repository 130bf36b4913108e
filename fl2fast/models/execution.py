"""How a network is run. Every choice computes the same function, but for `precision`."""

from typing import NamedTuple

KERNELS = ("asam", "sgd", "norm", "conv")  # what kernels/ can do instead of plain torch
PRECISIONS = ("fp32", "tf32", "bf16")


class Execution(NamedTuple):
    lowering: str = "grouped"
    compiled: bool = False  # the local step goes through torch.compile
    shared_backward: bool = False  # cotangents of one forward are pulled back together
    kernels: frozenset[str] = frozenset()
    precision: str = "fp32"

    @property
    def alone(self) -> bool:
        """Learners step one by one, each at its own pace; not in waves."""
        return self.lowering == "cores"

    @property
    def possible(self) -> bool:
        """A compiled step serves one thread; these kernels take one cotangent at a time."""
        one_cotangent = self.kernels & {"norm", "conv"}
        return not (self.compiled and self.alone) and not (self.shared_backward and one_cotangent)
