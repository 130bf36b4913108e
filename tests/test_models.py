"""Names, shapes and lowerings of models; a user's own module."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fl2fast
from fl2fast.errors import UsageError
from fl2fast.models import find_model
from fl2fast.models.layout import Layout
from fl2fast.models.lowering import LOWERINGS, check_lowering
from fl2fast.models.network import Network


@pytest.mark.parametrize(
    ("name", "classes", "num"),
    [("wrn-28-2", 10, 1_467_610), ("wrn-28-8", 100, 23_401_012), ("wrn-10-1", 10, 77_850)],
)
def test_parameter_counts(name: str, classes: int, num: int) -> None:
    with torch.device("meta"):
        module = find_model(name)(classes)
    assert sum(p.numel() for p in module.parameters()) == num


@pytest.mark.parametrize(
    "name", ["wrn-27-2", "wrn-4-2", "wrn-28-0", "wrn-28", "vgg", "nofile.py:f"]
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="model"):
        find_model(name)


def test_split_and_join_are_inverse() -> None:
    layout = Layout.of(dict(find_model("cnn")(10).named_parameters()))
    flat = torch.arange(2 * layout.width, dtype=torch.float64).view(2, -1)
    assert torch.equal(layout.join(layout.split(flat)), flat)


class Mixed(nn.Module):
    """Biases, a depthwise convolution, max pooling, two linear layers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, stride=2)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(8 * 9, 12, bias=False)
        self.head = nn.Linear(12, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.tanh(self.depthwise(self.bn(self.stem(x)).relu())))
        return self.head(self.hidden(x.flatten(1)).relu())


def random_lanes(module: nn.Module, num_lanes: int) -> torch.Tensor:
    layout = Layout.of(dict(module.named_parameters()))
    draws = torch.Generator().manual_seed(3)
    return torch.randn(num_lanes, layout.width, generator=draws, dtype=torch.float64) * 0.3


@pytest.mark.parametrize("lowering", ["vmap", "grouped", "cores"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", [Mixed, find_model("cnn"), find_model("wrn-10-1")])
def test_lowerings_equal_loop(make, lowering: str, masked: bool) -> None:
    """Forward and both pulls of a pullback, with full batches and with dead rows."""
    side = 14 if make is Mixed else 16
    draws = torch.Generator().manual_seed(1)
    params_LP = random_lanes(make(5), 3)
    x = torch.randn(3, 4, 3, side, side, generator=draws, dtype=torch.float64)
    row = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool() if masked else None
    cotangent = torch.randn(3, 4, 5, generator=draws, dtype=torch.float64)
    cotangent = cotangent if row is None else cotangent * row[..., None]
    results = []
    for name in ("loop", lowering):
        net = Network.of(make(5).double(), name, torch.zeros((), dtype=torch.float64))
        logits, pull = net.pullback(params_LP, x, row)
        live = logits if row is None else logits * row[..., None]
        results.append((live, pull(cotangent), pull(cotangent.square())))
    for ours, truth in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-10)


class Shuffling(nn.Module):
    """A reshape over channels that no layer shows."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).flip(1).mean((2, 3)))


def test_a_module_that_grouped_would_change_is_refused() -> None:
    check_lowering(Shuffling(3), "vmap", (3, 8, 8))
    with pytest.raises(UsageError, match="use --lowering vmap or loop"):
        check_lowering(Shuffling(3), "grouped", (3, 8, 8))


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (nn.GroupNorm(2, 4), "grouped"),
        (nn.Dropout(0.5), "dropout"),
        (nn.BatchNorm2d(4, affine=False), "BatchNorm2d"),
        (nn.SyncBatchNorm(4), "SyncBatchNorm"),
    ],
)
def test_layers_without_a_form_are_named(layer: nn.Module, word: str) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), layer)
    with pytest.raises(UsageError, match=word):
        LOWERINGS["grouped"](module)


FACTORIES = """
import torch
from torch import nn

def good(num_classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=4), nn.GroupNorm(2, 4), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))

def wrong_shape(num_classes):
    return nn.Flatten()

def not_a_module(num_classes):
    return 3

def no_argument():
    return nn.Flatten()

class Counting(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(1024, num_classes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += self.head.weight.sum()
        return self.head(x.flatten(1))
"""


@pytest.fixture
def factories(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FACTORIES)
    return path


def test_a_users_module_trains_on_grey_images(factories: Path, grey_folder: Path) -> None:
    settings = {"dataset": str(grey_folder), "labels": 9, "clients": 3, "cohort": 2, "rounds": 1}
    made = fl2fast.experiment(model=f"{factories}:good", lowering="vmap", epochs=1, **settings)
    world = fl2fast.build_world(made)
    assert world.inputs.shape == (1, 32, 32)
    (report,) = fl2fast.simulate(world)
    assert report.metrics[0]["test_accuracy"] is not None


@pytest.mark.parametrize(
    "name", ["wrong_shape", "not_a_module", "absent", "no_argument", "Counting"]
)
def test_bad_factories_are_refused(factories: Path, grey_folder: Path, name: str) -> None:
    def build() -> None:
        settings = {"dataset": str(grey_folder), "labels": 9, "clients": 3, "cohort": 2}
        made = fl2fast.experiment(model=f"{factories}:{name}", lowering="loop", **settings)
        fl2fast.build_world(made)

    with pytest.raises(UsageError, match="model"):
        build()


class Shared(nn.Module):
    """One norm layer under two names."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.bn1 = self.bn2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_norm_under_two_names_uses_batch_statistics_under_both(lowering: str) -> None:
    module = Shared(3).double()
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 9, 9, generator=draws, dtype=torch.float64) * 3 + 1
    expected = module.train()(x).detach()
    params = Layout.of(dict(module.named_parameters())).join(dict(module.named_parameters()))
    net = Network.of(module, lowering, torch.zeros((), dtype=torch.float64))
    actual = net.forward(params.detach()[None], x[None], None)[0]
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_one_row_of_one_pixel_is_legal(lowering: str) -> None:
    """Native batch norm refuses a single value; its deviation from itself is zero."""
    net = Network.of(find_model("cnn")(3).double(), lowering, torch.zeros((), dtype=torch.float64))
    params = random_lanes(find_model("cnn")(3), 2)
    x = torch.ones(2, 1, 3, 8, 8, dtype=torch.float64)
    logits, pull = net.pullback(params, x, None)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(pull(torch.ones_like(logits))).all()
