"""What the papers' pipelines fix per dataset: one row each. Folders use CIFAR-10's row.

`flfl` is the released (FL)^2 code, `semifl` SemiFL's own: they normalise differently, and SemiFL
does not flip SVHN's digits. Fashion-MNIST's (FL)^2 row is not published beyond its model: it takes
CIFAR-10's.
"""

from typing import NamedTuple


class Constants(NamedTuple):
    """How pixels become numbers, and whether mirror images are views."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True


class Settings(NamedTuple):
    flfl: Constants
    semifl: Constants
    labels: int = 40
    model: str = "wrn-28-2"
    rho: float = 0.1
    pretrain: int | None = 10  # server calls before round 1; None: about 2,048 iterations


def _of_255(*values: float) -> tuple[float, ...]:
    return tuple(value / 255 for value in values)


_IMAGENET = Constants((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # the code's for CIFAR-10

CIFAR10 = Settings(
    flfl=_IMAGENET,
    semifl=Constants((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
)

SETTINGS: dict[str, Settings] = {
    "streetdigits": CIFAR10._replace(labels=60),
    "cifar10": CIFAR10,
    # The released code pretrains SVHN for FreeMatch's 2,048 iterations.
    "svhn": Settings(
        flfl=Constants((0.4380, 0.4440, 0.4730), (0.1751, 0.1771, 0.1744)),
        semifl=Constants((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), flip=False),
        pretrain=None,
    ),
    # CIFAR-100's pretraining is undefined in the released code; 10 calls are an assumption.
    "cifar100": Settings(
        flfl=Constants(_of_255(129.3, 124.1, 112.4), _of_255(68.2, 65.4, 70.4)),
        semifl=Constants((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        labels=100,
        model="wrn-28-8",
        rho=1.0,
    ),
    "fashion-mnist": Settings(flfl=_IMAGENET, semifl=Constants((0.2860,), (0.3530,))),
    # Features come as they are. What the paper publishes ends with encoder, head and labels.
    "agnews": Settings(
        flfl=Constants((0.0,), (1.0,)),
        semifl=Constants((0.0,), (1.0,)),
        labels=20,
        model="linear",
    ),
}

TEXTS = ("agnews",)  # of these a model sees an encoder's features


def pretrain_calls(settings: Settings, num_labels: int, server_epochs: int) -> int:
    """Server-training calls before round 1, as the released code counts them."""
    if settings.pretrain is not None:
        return settings.pretrain
    return 2048 // max(1, (num_labels // 10) * server_epochs)
