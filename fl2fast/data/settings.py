"""What the (FL)^2 pipeline fixes per dataset: one row each. Folders use CIFAR-10's row."""

from typing import NamedTuple


class Settings(NamedTuple):
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # ImageNet's: the released code's for CIFAR-10
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    flip: bool = True
    pretrain: int | None = 10  # server calls before round 1; None: about 2,048 iterations
    model: str = "wrn-28-2"
    rho: float = 0.1
    labels: int = 40


CIFAR10 = Settings()

# The released code flips SVHN's digits too, and pretrains them for FreeMatch's 2,048 iterations.
# CIFAR-100's pretraining is undefined there; 10 calls are an assumption. Fashion-MNIST's row is not
# published beyond its model: it takes CIFAR-10's.
SETTINGS: dict[str, Settings] = {
    "streetdigits": CIFAR10._replace(labels=60),
    "cifar10": CIFAR10,
    "svhn": Settings(mean=(0.4380, 0.4440, 0.4730), std=(0.1751, 0.1771, 0.1744), pretrain=None),
    "cifar100": Settings(
        mean=(129.3 / 255, 124.1 / 255, 112.4 / 255),
        std=(68.2 / 255, 65.4 / 255, 70.4 / 255),
        model="wrn-28-8",
        rho=1.0,
        labels=100,
    ),
    "fashion-mnist": CIFAR10,
}


def pretrain_calls(settings: Settings, num_labels: int, server_epochs: int) -> int:
    """Server-training calls before round 1, as the released code counts them."""
    if settings.pretrain is not None:
        return settings.pretrain
    return 2048 // max(1, (num_labels // 10) * server_epochs)
