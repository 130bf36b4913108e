"""Every way to run a step gives the plain one's result, and a compiled one is compiled once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fl2fast
from fl2fast.data.plan import lane_counts, widths
from fl2fast.engine import local
from fl2fast.engine.local import Step, local_step
from fl2fast.errors import UsageError
from fl2fast.methods import flfl
from fl2fast.methods.method import Batch, Part
from fl2fast.models.execution import KERNELS, Execution
from fl2fast.models.fuse import with_fused_relus
from fl2fast.models.network import Network
from fl2fast.models.norm import with_explicit_norms
from fl2fast.optim import SGD
from fl2fast.precision import check_precision, cpu_has_bf16
from fl2fast.simulate import RoundReport
from tests.test_federation import BASE, assert_same
from tests.tiny_model import Tiny

TINY = f"{Path(__file__).with_name('tiny_model.py')}:Tiny"


@pytest.fixture
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything of torch.compile but the generation of code, which takes a minute here."""
    monkeypatch.setattr(local, "BACKEND", "aot_eager")
    local._compiled.cache_clear()
    torch.compiler.reset()
    yield
    local._compiled.cache_clear()
    torch.compiler.reset()


def run(dataset: str, **changes: Any) -> list[RoundReport]:
    made = fl2fast.experiment(**BASE | {"dataset": dataset, "rounds": 2} | changes)
    return list(fl2fast.simulate(fl2fast.build_world(made)))


@pytest.fixture(scope="module")
def truth(small_digits: str) -> list[RoundReport]:
    return run(small_digits, lowering="loop", chunk=1)


@pytest.mark.parametrize(
    "changes",
    [
        *({"kernels": kernel} for kernel in KERNELS),
        {"kernels": ",".join(KERNELS)},
        {"backward": "shared"},
        {"kernels": "norm", "backward": "separate", "seeds": 2},
        {"lowering": "cores", "kernels": "asam,sgd"},
    ],
    ids=str,
)
def test_options_change_no_result(
    small_digits: str, truth: list[RoundReport], changes: dict[str, Any]
) -> None:
    """On a CPU the kernels' operations are their plain definitions, so this tests the wiring."""
    assert_same(run(small_digits, **{"lowering": "grouped"} | changes), truth)


def test_norms_take_over_the_relu_that_follows() -> None:
    fused = with_fused_relus(with_explicit_norms(Tiny(3)))
    assert isinstance(fused, torch.fx.GraphModule)
    assert fused.bn.relu is True
    assert "relu" not in fused.code


def test_a_norm_that_is_read_twice_keeps_its_relu_apart() -> None:
    class Twice(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            normed = self.bn(self.conv(x))
            return self.head((F.relu(normed) + normed).mean((-2, -1)))

    fused = with_fused_relus(with_explicit_norms(Twice(3)))
    assert fused.bn.relu is False
    assert "relu" in fused.code  # type: ignore[operator]


VIEWS = torch.linspace(-1, 1, 2 * 2 * 3 * 8 * 8, dtype=torch.float64).view(2, 2, 3, 8, 8)


def batch_of(lanes: int, width: int, full: bool, sureness: str) -> Batch:
    shape = (lanes, width)
    sure = torch.full(shape, sureness == "all")
    sure[:, 0] = sureness != "none"
    return Batch(
        lane_L=torch.arange(lanes) % 2,
        view_LBCHW=torch.zeros(*shape, 3, 16, 16, dtype=torch.float64),
        y_LB=torch.zeros(shape, dtype=torch.int64),
        row_LB=None if full else torch.ones(shape, dtype=torch.bool),
        keep_LB=torch.ones(shape, dtype=torch.bool),
        sure_LB=sure,
        sureness=sureness,  # type: ignore[arg-type]
        round=torch.tensor(1),
    )


@pytest.mark.usefixtures("eager_backend")
def test_rounds_never_recompile(small_digits: str) -> None:
    """Once each kind of wave has been seen, no client, round or learning rate is news."""
    settings = {"model": TINY, "cohort": 2, "batch_size": 2, "server_batch_size": 2, "rounds": 3}
    settings |= {"lowering": "grouped", "epochs": 1, "pretrain": 1, "compile": "on"}
    world = fl2fast.build_world(fl2fast.experiment(**BASE | {"dataset": small_digits} | settings))
    client, e = world.method.client, world.experiment
    assert client is not None
    params = torch.ones(2, world.network.layout.width, dtype=torch.float64)

    def step(network: Network, part: Part, batch: Batch) -> None:
        sgd, lr = local.make_sgd(e), params.new_tensor(0.1)
        own = Step.of(part, network, params[0])
        local_step(network, own, sgd, lr, params.clone(), params.clone(), batch)

    for lanes in lane_counts(2):
        for width in widths(2):
            for sureness in ("none", "some", "all"):
                if not (width == 1 and sureness == "some"):
                    batch = batch_of(lanes, width, width == 2, sureness)
                    step(world.network, client, batch)
    assert world.method.server is not None
    step(world.server.network, world.method.server, batch_of(1, 2, True, "none"))
    with torch.compiler.set_stance("fail_on_recompile"):
        reports = list(fl2fast.simulate(world))
    plain = run(small_digits, **settings | {"compile": "off"})
    assert_same(reports, plain)


def test_a_compiled_step_equals_the_plain_one() -> None:
    """Through the code generator, one kind of wave."""
    client = flfl().client
    assert client is not None
    moved = []
    for compiled in (False, True):
        execution = Execution("grouped", compiled=compiled)
        network = Network.of(Tiny(3).double(), execution, torch.zeros((), dtype=torch.float64))
        params = torch.linspace(-1, 1, 2 * network.layout.width, dtype=torch.float64).view(2, -1)
        batch = batch_of(2, 2, True, "some")._replace(view_LBCHW=VIEWS)
        rate = params.new_tensor(0.1)
        step = Step.of(client, network, params[0])
        local_step(network, step, SGD(), rate, params, torch.zeros_like(params), batch)
        moved.append(params)
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lowering": "cores", "compile": "on"}, "--lowering cores"),
        ({"kernels": "asam,flash"}, "'flash'"),
        ({"kernels": "norm", "backward": "shared"}, "one cotangent at a time"),
        ({"precision": "tf32"}, "needs a GPU"),
        ({"precision": "bf16", "dtype": "float64"}, "float32"),
        ({"precision": "fp8"}, "fp8"),
        ({"compile": "yes"}, "yes"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    small = {"train_size": 100, "test_size": 20, "labels": 10, "clients": 2, "cohort": 2}
    with pytest.raises(UsageError, match=words):
        fl2fast.build_world(fl2fast.experiment(**small | changes))


def test_bf16_is_probed_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trap kills the probe, not us."""
    monkeypatch.setattr("fl2fast.precision._PROBE", "import os; os.kill(os.getpid(), 4)")
    cpu_has_bf16.cache_clear()
    with pytest.raises(UsageError, match="kills the process"):
        check_precision("bf16", "float32", torch.device("cpu"))
    cpu_has_bf16.cache_clear()


@pytest.mark.parametrize("lowering", ["loop", "vmap", "grouped", "cores"])
def test_bf16_stays_near_fp32(lowering: str) -> None:
    if not cpu_has_bf16():
        pytest.skip("no bfloat16 on this CPU")
    client = flfl().client
    assert client is not None
    grads = {}
    for precision in ("fp32", "bf16"):
        execution = Execution(lowering, precision=precision)
        network = Network.of(Tiny(3), execution, torch.zeros(()))
        params = torch.linspace(-1, 1, 2 * network.layout.width).view(2, -1)
        for masked in (False, True):
            row = torch.tensor([[True, True], [True, False]]) if masked else None
            batch = batch_of(2, 2, True, "some")._replace(view_LBCHW=VIEWS.float(), row_LB=row)
            grads[precision, masked] = client.grads(network, params, batch)
    for masked in (False, True):
        exact, rounded = grads["fp32", masked], grads["bf16", masked]
        assert rounded.dtype == torch.float32
        assert 0 < (rounded - exact).norm() / exact.norm() < 0.1
