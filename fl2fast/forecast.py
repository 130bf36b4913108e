"""What a run will cost, before it runs: operations, memory and time.

Operations and memory are counted on fake tensors. Seconds here come from timing the run's own steps
for a moment; seconds on other devices are a roofline (see `fl2fast.roofline`).

Shapes: B rows of a batch, C, H, W of an image, P parameters.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fl2fast.data.backends import choose, make_augment
from fl2fast.data.views import draw_views
from fl2fast.engine.auto import make_step
from fl2fast.engine.batches import AUGMENT_ROWS, block_rows
from fl2fast.engine.label import infer_rows
from fl2fast.errors import UsageError
from fl2fast.execute import batch_rows
from fl2fast.experiment import Experiment
from fl2fast.machine import device_name
from fl2fast.memory import keep_freed_memory
from fl2fast.methods.method import Method, Part, Sureness
from fl2fast.models.network import Network, Stats
from fl2fast.outline import Outline, make_outline, stacked
from fl2fast.profile import Meter, meter_step, of_kind, plain_network
from fl2fast.roofline import EFFICIENCY, Gpu, find_gpus, seconds_on
from fl2fast.tune import interleave

TRIAL_ROWS = 512  # of a timed recalibration pass
INFER_ROWS = 1024  # of a counted pass with static statistics: a GPU's, see engine.label
REPEATS = 5
MOST_GIB = 1_000_000
INDEX = 8  # bytes of a label


class Call(NamedTuple):
    """What phases are made of: a call as it is counted, and as it is timed here."""

    meter: Meter
    rows: int  # of the counted call
    run: Callable[[], object]
    timed_rows: int


class Work(NamedTuple):
    """A phase: so many rows, so many times in a run."""

    call: str
    rows: int
    times: int
    views: tuple[str, ...] = ()  # that are made of every row


def views_of(part: Part) -> tuple[str, ...]:
    """Every view of a row that a step holds; a partner's is weak."""
    return (*part.views, "weak") if part.mix is not None else part.views


def make_works(outline: Outline) -> dict[str, Work]:
    """The phases of a round that is tested, and the pretraining before the first."""
    e, sizes, method = outline.experiment, outline.sizes, outline.experiment.make_method()
    client = method.client
    cohort_rows = e.seeds * e.cohort * outline.client_rows
    server_rows = e.seeds * e.labels * e.server_epochs
    unlabelled = sizes.train - e.labels if e.sbn_data == "all" else e.cohort * outline.client_rows
    tested = -(-e.rounds // e.eval_every)
    predicts = client is not None and client.predicts
    works = {}
    if method.server is not None:
        views = views_of(method.server)
        works["pretrain"] = Work("server step", server_rows, e.pretrain, views)
        works["fine_tune"] = Work("server step", server_rows, e.rounds, views)
    if predicts:
        works["pseudo_label"] = Work("inference", cohort_rows, e.rounds, ("weak",))
    if client is not None:
        rows = e.epochs * cohort_rows
        works["local_training"] = Work("client step", rows, e.rounds, views_of(client))
    elif method.central is not None:
        rows = e.epochs * e.seeds * sizes.train
        works["local_training"] = Work("client step", rows, e.rounds, views_of(method.central))
    rows = e.seeds * (e.labels + unlabelled)
    works["recalibrate"] = Work("moments", rows, 1 + (e.rounds if predicts else tested))
    works["evaluate"] = Work("inference", e.seeds * sizes.test, tested)
    return works


def make_calls(outline: Outline, assume: Sureness) -> dict[str, Call]:
    """Steps and passes, counted as a GPU would run them: all lanes of a wave stacked."""
    e, shape = outline.experiment, outline.sizes.image_shape
    plain, plain_server = (
        plain_network(
            Network.of(n.source, n.execution._replace(lowering=stacked(e)), n.weights_P)
            if n.execution.alone
            else n
        )
        for n in (outline.clients.network, outline.server.network)
    )
    method = e.make_method()
    learner, part, server = method.learner, method.main, method.server or method.main
    seeds = min(e.chunk or e.seeds, e.seeds)
    wave = min(e.chunk or outline.lanes, outline.lanes) if method.client else seeds
    trial = outline.trial_lanes if method.client else seeds
    rows, server_rows = batch_rows(e, part), batch_rows(e, server)
    assumed = of_kind(part, assume)
    return {
        "client step": Call(
            meter_step(plain, part, wave, rows, shape, assume, learner),
            wave * rows,
            make_step(outline.clients, assumed, trial, rows, shape, learner),
            trial * rows,
        ),
        "server step": Call(
            meter_step(plain_server, server, seeds, server_rows, shape, learner=learner),
            seeds * server_rows,
            make_step(outline.server, server, seeds, server_rows, shape, learner),
            seeds * server_rows,
        ),
        "inference": _passes(outline, plain, INFER_ROWS, infer_rows(_device(outline)), _infer),
        "moments": _passes(outline, plain, e.sbn_unlabelled_batch, TRIAL_ROWS, Network.moments),
    }


def _infer(network: Network, params_P: Tensor, x_BCHW: Tensor) -> Tensor:
    width = network.norms.width
    return network.infer(
        params_P, Stats(params_P.new_zeros(width), params_P.new_ones(width)), x_BCHW
    )


def _passes(
    outline: Outline,
    plain: Network,
    rows: int,
    timed_rows: int,
    ask: Callable[[Network, Tensor, Tensor], object],
) -> Call:
    """A forward of the global model; timed on every core at once."""
    shape, cores = outline.sizes.image_shape, outline.clients

    def one(network: Network, num: int) -> object:
        own = network.weights_P
        return ask(network, torch.zeros_like(own), own.new_zeros(num, *shape))

    meter = Meter()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), meter:
        one(plain, rows)
    run = torch.no_grad()(lambda: cores.map(one, [timed_rows] * cores.count))
    return Call(meter, rows, run, timed_rows * cores.count)


def _device(outline: Outline) -> torch.device:
    return outline.clients.network.weights_P.device


def count_flops(works: Mapping[str, Work], calls: Mapping[str, Call]) -> dict[str, int]:
    """Floating-point operations of each phase."""
    return {
        name: calls[work.call].meter.flops * work.rows // calls[work.call].rows
        for name, work in works.items()
    }


def _widths(outline: Outline, method: Method) -> tuple[int, int]:
    """Columns of a learner's row, and those that a client keeps of it between rounds."""
    network = plain_network(outline.clients.network)
    params_P = torch.zeros_like(network.weights_P)
    row_P = method.learner.init(network, params_P, params_P.new_zeros)
    if method.client is None or method.client.memory is None:
        return len(row_P), 0
    probe = params_P.new_zeros(outline.sizes.image_shape)
    return len(row_P), method.client.memory.keep(network, row_P[None], probe).shape[-1]


def count_memory(outline: Outline, assume: Sureness, calls: Mapping[str, Call]) -> dict[str, int]:
    """Bytes by part. Steps and passes are of different moments: the larger one counts."""
    e, sizes, cores = outline.experiment, outline.sizes, outline.clients
    image = torch.Size(sizes.image_shape).numel()
    method = e.make_method()
    row, kept = (width * e.torch_dtype.itemsize for width in _widths(outline, method))
    lanes, plain = _at_once(outline), plain_network(cores.network)
    alone = plain.execution.alone
    rows, at_once = batch_rows(e, method.main), 1 if alone else lanes
    own = meter_step(plain, method.main, at_once, rows, sizes.image_shape, assume, method.learner)
    held = min(AUGMENT_ROWS, e.epochs * outline.client_rows) * (2 * lanes - 1)  # see engine.cores
    views = held if alone else 2 * block_rows(e)  # the next block is made before the last one goes
    persist = method.client is not None and e.client_momentum == "persist"
    views *= len(views_of(method.main))
    return {
        "data": (sizes.train + sizes.test) * (image + INDEX),
        "global models": 3 * e.seeds * row,
        "client momenta": e.seeds * e.clients * row if persist else 0,
        "client memories": e.seeds * e.clients * kept,
        "cohort": 4 * outline.lanes * row,
        "views": views * image * e.torch_dtype.itemsize,
        "step of one lane": own.peak_bytes // (1 if alone else lanes),
        "step": own.peak_bytes * (lanes if alone else 1),
        "pass": calls["moments"].meter.peak_bytes * cores.count,
    }


def _at_once(outline: Outline) -> int:
    """Lanes that are in a step at the same time."""
    if outline.clients.network.execution.alone:
        return min(outline.clients.count, outline.lanes)
    return min(outline.experiment.chunk or outline.lanes, outline.lanes)


def peak(memory: Mapping[str, int]) -> int:
    """Bytes at most."""
    return fixed(memory) + max(memory["views"] + memory["step"], memory["pass"])


def fixed(memory: Mapping[str, int]) -> int:
    held = ("data", "global models", "client momenta", "client memories", "cohort")
    return sum(memory[part] for part in held)


def largest_chunk(memory: Mapping[str, int], lanes: int, available: int) -> int:
    """Lanes whose steps fit together; 0: not even one, or no pass of the global model."""
    left = available - fixed(memory)
    fit = (left - memory["views"]) // memory["step of one lane"]
    return max(min(fit, lanes), 0) if left >= memory["pass"] else 0


def available_memory(device: torch.device) -> int:
    """Bytes that are free now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = Path("/proc/meminfo")
    if info.is_file():
        fields = dict(line.split(":") for line in info.read_text().splitlines())
        return 1024 * int(fields["MemAvailable"].split()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def time_here(
    outline: Outline, works: Mapping[str, Work], calls: Mapping[str, Call]
) -> dict[str, float]:
    """Seconds of each phase on this device, from a few calls."""
    e, device, shape = outline.experiment, _device(outline), outline.sizes.image_shape
    num = block_rows(e)
    strong, backend = e.strong_views, e.augment
    if backend == "auto":
        backend = choose(shape, num, device, strong).choice
    kind = {"flip": e.flip, "crop": e.crop, "strong": strong}
    augment = make_augment(backend, **kind, shape=shape, device=device)
    ramp = torch.from_numpy(np.resize(np.arange(251, dtype=np.uint8), (num, *shape))).to(device)

    def views(view: str) -> object:
        draws = draw_views(0, "client view", 0, 0, 0, np.arange(num), view=int(view == "strong"))
        return augment(ramp, draws, view)

    runs = {name: calls[name].run for name in {work.call for work in works.values()}}
    runs |= {view: partial(views, view) for view in ("weak", "strong")}
    took = {  # each by itself: a phase does not change its number of threads from call to call
        name: median(interleave({name: run}, REPEATS, device)[name]) for name, run in runs.items()
    }
    return {
        name: work.rows * took[work.call] / calls[work.call].timed_rows
        + work.rows * sum(took[view] for view in work.views if view != "clean") / num
        for name, work in works.items()
    }


def roofline(
    gpu: Gpu, precision: str, works: Mapping[str, Work], calls: Mapping[str, Call]
) -> dict[str, float]:
    """Seconds of each phase; without the views, which are made beside the steps."""
    took = {name: seconds_on(gpu, precision, call.meter.ops) for name, call in calls.items()}
    return {n: w.rows * took[w.call] / calls[w.call].rows for n, w in works.items()}


def totals(seconds: Mapping[str, float], works: Mapping[str, Work]) -> dict[str, float]:
    """Of one tested round, and of the whole run."""
    return {
        "round": sum(value for name, value in seconds.items() if name != "pretrain"),
        "run": sum(value * works[name].times for name, value in seconds.items()),
    }


def forecast(
    experiment: Experiment,
    *,
    assume: Sureness = "some",
    gpus: Sequence[str] = (),
    memory_gib: float | None = None,
    here: bool = True,
    say: Callable[[str], object] = lambda sentence: None,
) -> dict[str, Any]:
    """Operations, memory and seconds of a run; every accepted row of every client is assumed."""
    rows = find_gpus(gpus)
    if memory_gib is not None and not 0 < memory_gib <= MOST_GIB:
        raise UsageError(
            f"memory is {memory_gib} GiB, but it must be above 0 and at most {MOST_GIB:,}"
        )
    if experiment.device == "cpu":
        keep_freed_memory()  # as a run does
    outline = make_outline(experiment, here=here, say=say)
    works, calls = make_works(outline), make_calls(outline, assume)
    flops, memory = count_flops(works, calls), count_memory(outline, assume, calls)
    device = _device(outline)
    free = available_memory(device) if memory_gib is None else int(memory_gib * 2**30)
    precisions = ("fp32", "tf32", "bf16") if experiment.dtype == "float32" else ("float64",)
    seconds = time_here(outline, works, calls) if here else None
    return {
        "experiment": asdict(outline.experiment),
        "assumptions": {"sure_rows": assume, "accepted_rows": "all", "efficiency": EFFICIENCY},
        "flops": flops | totals(flops, works),
        "memory": memory | {"peak": peak(memory), "available": free},
        "largest_chunk": largest_chunk(memory, outline.lanes, free),
        "here": seconds and {"device": device_name(device), **seconds, **totals(seconds, works)},
        "roofline": {
            name: {
                precision: totals(roofline(gpu, precision, works, calls), works)
                for precision in precisions
                if getattr(gpu, precision)
            }
            for name, gpu in rows.items()
        },
    }
