"""What a step costs, counted; and where the time of a round goes, measured.

Shapes: L lanes, B rows of a batch, C, H, W of an image.
"""

import json
import math
import os
import resource
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fl2fast.clock import Clock
from fl2fast.engine.auto import make_step
from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.round import run_round, warm_up
from fl2fast.engine.world import Federation, World
from fl2fast.errors import UsageError, brief
from fl2fast.evaluate import evaluate
from fl2fast.experiment import Experiment
from fl2fast.machine import environment
from fl2fast.memory import keep_freed_memory
from fl2fast.methods.method import PLAIN, Batch, Learner, Part, Sureness
from fl2fast.models.network import Network
from fl2fast.precision import set_precision
from fl2fast.run_folder import claim_folder
from fl2fast.simulate import build_world, initial_state
from fl2fast.tune import seconds_of

aten = torch.ops.aten
# like views, these touch no element
FREE = (aten._unsafe_view.default, aten.empty.memory_format, aten.new_empty.default)
MOST_STEPS = 1_000_000
MATMUL_SIDE = {"cpu": 2048, "cuda": 8192}  # as large as it takes to reach the device's peak


class Op(NamedTuple):
    """One op that computes: its floating-point operations, and the bytes it reads and writes."""

    flops: int
    bytes: int


class Meter(TorchDispatchMode):
    """Counts what this thread dispatches while it is entered, and the bytes alive meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.num_dispatched = 0  # views included
        self.ops: list[Op] = []
        self.peak_bytes, self._alive = 0, 0
        self._storages: set[int] = set()

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.ops)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace == "prim":  # a question to a tensor, such as for its device
            return out
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.num_dispatched += 1
        if not func.is_view and func not in FREE:
            read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            moved = sum(t.numel() * t.element_size() for t in read + made)
            self.ops.append(Op(_flops(func, args, kwargs, out), moved))
        for tensor in made:
            self._hold(tensor.untyped_storage())
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:
            self._storages.add(key)
            self._alive += size
            self.peak_bytes = max(self.peak_bytes, self._alive)
            weakref.finalize(storage, self._let_go, key, size)

    def _let_go(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self._alive -= size


def _flops(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    if func is aten.convolution_backward.default:
        # torch's formula forgets the groups; each gradient costs what the forward did
        made, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
        places = made.shape[0] * math.prod((x if transposed else made).shape[2:])
        return 2 * places * weight.numel() * sum(wanted[:2])
    formula = flop_registry.get(func.overloadpacket)
    return formula(*args, **kwargs, out_val=out) if formula else 0


class _Metered(Cores):
    """Steps on the calling thread, where alone a meter counts, and only the steps."""

    def __init__(self, network: Network, meter: Meter) -> None:
        super().__init__(network, most=1)
        self.meter = meter

    def fold(self, step: Callable[[Network, Any], object], streams: Sequence[Stream[Any]]) -> None:
        with self.meter:
            super().fold(step, streams)


def plain_network(network: Network) -> Network:
    """The same network in plain torch ops on the host, which fake tensors can follow."""
    execution = network.execution._replace(compiled=False, kernels=frozenset())
    return Network.of(deepcopy(network.source).cpu(), execution, network.weights_P.cpu())


def meter_step(
    network: Network,
    part: Part,
    lanes: int,
    batch: int,
    image_shape: tuple[int, ...],
    sureness: Sureness = "some",
    learner: Learner = PLAIN,
) -> Meter:
    """One step of so many lanes on fake tensors: everything is counted, nothing is computed."""
    meter, own = Meter(), network.weights_P
    learner.init(network, torch.zeros_like(own), own.new_zeros)  # an encoder is not made of fakes
    with FakeTensorMode(allow_non_fake_inputs=True):
        cores = _Metered(network, meter)
        make_step(cores, of_kind(part, sureness), lanes, batch, image_shape, learner)()
    return meter


def of_kind(part: Part, sureness: Sureness) -> Part:
    """The part with batches that are said to have no sure row, some, or only such."""

    def grads(net: Network, params_LP: Tensor, batch: Batch) -> Tensor:
        return part.grads(net, params_LP, batch._replace(sureness=sureness))

    return part._replace(grads=grads)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product, with the threads that torch has now."""
    side = MATMUL_SIDE[device.type]
    a = torch.linspace(-1, 1, side * side, dtype=dtype, device=device).view(side, side)
    best = min(seconds_of(lambda: a @ a, device) for _ in range(4))
    return 2 * side**3 / best


def peak_memory(device: torch.device) -> int:
    """Bytes at most: of the whole process, or, on CUDA, of its tensors."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Taken(NamedTuple):
    """A step that some lanes took together."""

    sureness: Sureness
    lanes: int
    width: int


class _FirstSteps(Cores):
    """At most so many steps of every stream, at first all, and a list of them."""

    def __init__(self, cores: Cores) -> None:
        super().__init__(cores.network, cores.count)
        self.steps = sys.maxsize
        self.taken: list[Taken] = []

    def fold(self, step: Callable[[Network, Any], object], streams: Sequence[Stream[Any]]) -> None:
        def noted(network: Network, item: Any) -> None:
            if isinstance(item, Batch):  # the passes of `map` come by here too
                self.taken.append(Taken(item.sureness, *item.y_LB.shape))
            step(network, item)

        first = [Stream(min(s.size, self.steps), islice(s.items, self.steps)) for s in streams]
        super().fold(noted, first)

    def read(self) -> list[Taken]:
        """The steps since the last reading."""
        taken, self.taken = self.taken, []
        return taken


def profile(
    experiment: Experiment,
    out: Path,
    steps: int,
    data_dir: Path | None = None,
    say: Callable[[str], object] = lambda sentence: None,
) -> dict[str, Any]:
    """Warm up, time a round, and trace the clients' first steps of another one."""
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"steps is {brief(steps)}, but it must be from 1 to {MOST_STEPS:,}")
    if experiment.make_method().client is None:
        raise UsageError(
            f"method {experiment.method!r} trains no clients, whose steps are what is profiled: "
            "choose another --method"
        )
    if experiment.device == "cpu":
        keep_freed_memory()
    world = build_world(experiment, data_dir, say)
    cores = _FirstSteps(world.clients)
    world = replace(world, clients=cores)
    claim_folder(out)
    set_precision(world.experiment.precision)
    clock = Clock(world.device)
    federation = warm_up(world, initial_state(world), clock.phase).federation
    make_step(cores, *_client_step(world), world.method.learner)()  # may set something up
    warm_seconds, _ = clock.read(), cores.read()
    federation = run_round(world, federation, clock.phase, tested=True).federation
    with clock.phase("evaluate"):
        evaluate(world, federation.state)
    seconds, timed = clock.read(), cores.read()
    cores.steps = steps
    launches = _trace(world, federation, out / "trace.json.gz")
    found = {
        "config": asdict(world.experiment),
        "environment": environment(world.experiment.device),
        "traced_steps": steps,
        "warm_up_seconds": warm_seconds,
        "round_seconds": seconds,
        **_figures(world, timed, seconds["local_training"]),
        "launches_per_client_step": launches and launches / sum(s.lanes for s in cores.read()),
        "peak_memory_bytes": peak_memory(world.device),
    }
    (out / "profile.json").write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def _client_step(world: World) -> tuple[Part, int, int, tuple[int, ...]]:
    """What makes a step of the clients: the method's part, lanes, rows, the shape of an image."""
    e, client = world.experiment, world.method.client
    assert client is not None, "there are no clients to profile"
    lanes = e.seeds * e.cohort
    return client, min(e.chunk or lanes, lanes), e.batch_size, world.inputs.shape


def _figures(world: World, timed: list[Taken], seconds: float) -> dict[str, Any]:
    """What the timed steps cost, against what the device can do."""
    part, lanes, batch, shape = _client_step(world)
    network, learner = plain_network(world.network), world.method.learner
    kinds: tuple[Sureness, ...] = ("none", "some", "all")
    meters = {kind: meter_step(network, part, lanes, batch, shape, kind, learner) for kind in kinds}
    per_image = {kind: meter.flops / (lanes * batch) for kind, meter in meters.items()}
    flops = sum(per_image[step.sureness] * step.lanes * step.width for step in timed)
    peak = peak_flops(world.device, world.experiment.torch_dtype)
    return {
        "client_steps": sum(step.lanes for step in timed),
        "images": sum(step.lanes * step.width for step in timed),
        "steps_by_sureness": {
            kind: sum(step.lanes for step in timed if step.sureness == kind) for kind in kinds
        },
        "flops_per_client_step": {kind: m.flops / lanes for kind, m in meters.items()},
        "dispatched_per_client_step": meters["some"].num_dispatched / lanes,
        "computing_per_client_step": len(meters["some"].ops) / lanes,
        "flops_per_second": flops / seconds,
        "matmul_flops_per_second": peak,
        "percent_of_matmul": 100.0 * flops / seconds / peak,
    }


def _trace(world: World, federation: Federation, path: Path) -> int | None:
    """Trace the clients' steps of round 2, on every thread; kernel launches, if on a GPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer tells stderr when it starts
    on_gpu = world.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    everywhere = _ExperimentalConfig(profile_all_threads=True)  # else the calling thread alone
    traced = torch_profile(activities=activities, experimental_config=everywhere)

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        with traced if name == "local_training" else nullcontext():
            yield

    run_round(world, federation, phase, tested=False)
    traced.export_chrome_trace(str(path))
    events = traced.events() or []
    return sum("LaunchKernel" in event.name for event in events) if on_gpu else None
