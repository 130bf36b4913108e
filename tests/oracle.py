"""One communication round of (FL)^2, plain and slow: one client after another, in float64.

Ordinary modules, autograd, `torch.optim.SGD` and boolean indexing, in the order in which the
released code runs: 4F + 3B a step (its unused forward of the weak batch is left out). From the
library it takes the WideResNet's definition, which is an ordinary module, and nothing else.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl2fast.models.wrn import WideResNet

CONFIG: dict[str, Any] = {
    "method": "flfl",
    "model": "wrn",
    "depth": 10,
    "widen": 1,
    "classes": 5,
    "side": 8,
    "clients": 3,
    "batch": 4,
    "epochs": 2,
    "rho": 0.1,
    "eta": 0.01,
    "tau_f": 0.95,
    "lr": 0.03,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "clip": 1.0,
    "aggregate_momentum": 0.5,
    "w_a": 1.0,
    "w_cs": 1.0,
}

Tree = dict[str, Tensor]


@contextmanager
def one_thread() -> Iterator[None]:
    """The tests' arrays are too small to share: on a busy machine threads wait for each other."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num)


# -- the model: batch statistics to train, static ones to be asked ---------------------------------


def make_model(depth: int, widen: int, classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return use_batch_statistics(WideResNet(depth, widen, classes).double())


def norms(model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}


def use_batch_statistics(model: nn.Module) -> nn.Module:
    """Train mode that keeps no statistics."""
    for norm in norms(model).values():
        norm.track_running_stats = False
    return model.train()


def recalibrate(model: nn.Module, batches: Sequence[Tensor]) -> Tree:
    """sBN: cumulative running statistics over the batches; leaves the model in eval mode."""
    for norm in norms(model).values():
        norm.track_running_stats, norm.momentum = True, None
        norm.reset_running_stats()
    model.train()
    with torch.no_grad():
        for x in batches:
            model(x)
    model.eval()
    stats = {}
    for name, norm in norms(model).items():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        stats[f"{name}.mean"], stats[f"{name}.var"] = norm.running_mean, norm.running_var
    return {name: value.clone() for name, value in stats.items()}


def values(model: nn.Module) -> Tree:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def grads(model: nn.Module) -> Tree:
    taken = {}
    for name, p in model.named_parameters():
        assert p.grad is not None
        taken[name] = p.grad.clone()
    return taken


@torch.no_grad()
def load(model: nn.Module, tree: Mapping[str, Tensor]) -> None:
    for name, p in model.named_parameters():
        p.copy_(tree[name])


# -- pseudo-labels ---------------------------------------------------------------------------------


class Labels(NamedTuple):
    tau: Tensor
    tau_c: Tensor
    y: Tensor
    keep: Tensor
    sure: Tensor  # of all rows, accepted or not


def threshold(probs: Tensor, tau_f: float, *, strict: bool = False) -> Labels:
    """CAT on one client's rows [M, Y], a row at a time."""
    num_rows, num_classes = probs.shape
    confidence = torch.stack([p.max() for p in probs])
    y = torch.stack([p.argmax() for p in probs])
    tau = sum(confidence) / num_rows
    mean = torch.stack([sum(probs[:, c]) / num_rows for c in range(num_classes)])
    tau_c = torch.stack([tau * (m / mean.max()) for m in mean])
    keep = [
        bool(m > tau_c[c]) if strict else bool(m >= tau_c[c])
        for m, c in zip(confidence, y, strict=True)
    ]
    sure = [bool(m >= tau_f) for m in confidence]
    return Labels(tau, tau_c, y, torch.tensor(keep), torch.tensor(sure))


# -- one step of a client --------------------------------------------------------------------------


def asam_offsets(model: nn.Module, rho: float, eta: float) -> Tree:
    """rho T^2 g / ||T g|| from the gradients that the model holds."""
    scale = {
        name: p.detach().abs() + eta if "weight" in name else torch.ones_like(p)
        for name, p in model.named_parameters()
    }
    g = grads(model)
    norm = torch.sqrt(sum(((scale[name] * g[name]) ** 2).sum() for name in g)) + 1e-16
    return {name: rho * scale[name] ** 2 * g[name] / norm for name in g}


@torch.no_grad()
def shift(model: nn.Module, offsets: Tree, sign: int) -> None:
    for name, p in model.named_parameters():
        p.add_(offsets[name], alpha=sign)


def client_grads(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    sure: Tensor,
    *,
    rho: float,
    eta: float,
    w_a: float = 1.0,
    w_cs: float = 1.0,
) -> Tree:
    """w_a grad L_a(W) + w_cs grad L_cs(W*) for a batch of accepted rows, left in `.grad` too."""
    with torch.no_grad():
        target = model(x)

    model.zero_grad()
    # With no sure row the loss is 0/0, but its gradient is exactly zero: nothing is selected.
    F.cross_entropy(model(x)[sure], y[sure]).backward()
    offsets = asam_offsets(model, rho, eta)

    shift(model, offsets, +1)
    model.zero_grad()
    moved = model(x)
    kl = F.kl_div(moved.log_softmax(1), target.softmax(1), reduction="none").sum(1)
    (kl[sure].sum() / len(x)).backward()
    consistency = grads(model)
    shift(model, offsets, -1)

    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        p.grad = w_a * p.grad + w_cs * consistency[name]
    return grads(model)


def make_sgd(model: nn.Module, config: Mapping[str, Any], buffer: Tree | None) -> torch.optim.SGD:
    """`buffer` None: an optimiser that has never stepped."""
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=config["lr"],
        momentum=config["momentum"],
        nesterov=config["nesterov"],
        weight_decay=config["weight_decay"],
    )
    for name, p in model.named_parameters():
        if buffer is not None:
            optimiser.state[p]["momentum_buffer"] = buffer[name].clone()
    return optimiser


def buffers(model: nn.Module, optimiser: torch.optim.SGD) -> Tree:
    return {
        name: optimiser.state[p]["momentum_buffer"].clone() for name, p in model.named_parameters()
    }


def clipped_step(model: nn.Module, optimiser: torch.optim.SGD, clip: float) -> None:
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()


# -- a recorded round ------------------------------------------------------------------------------


def _images(gen: torch.Generator, colours: Tensor, y: Tensor, side: int) -> Tensor:
    """Noise in the colour of the class; a random strength, so that some are hard to tell."""
    strength = torch.rand(len(y), 1, 1, 1, generator=gen)
    noise = torch.randn(len(y), 3, side, side, generator=gen)
    return strength * colours[y][:, :, None, None] + 0.5 * noise


def _distort(gen: torch.Generator, x: Tensor) -> Tensor:
    """A strong view: dimmed, shifted, and with a hole."""
    x = x * (0.5 + torch.rand(len(x), 1, 1, 1, generator=gen))
    x = x + 0.3 * torch.randn(x.shape, generator=gen)
    x[:, :, 1:3, 2:5] = 0.0
    return x


def _noise(gen: torch.Generator, like: Tree) -> Tree:
    return {
        name: 0.01 * torch.randn(t.shape, generator=gen, dtype=t.dtype) for name, t in like.items()
    }


def _epochs(gen: torch.Generator, rows: Tensor, epochs: int, batch: int) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from rows[torch.randperm(len(rows), generator=gen)].split(batch)


def record_round(
    path: Path,
    *,
    seed: int = 0,
    sizes: Sequence[int] = (19, 14, 7),
    fresh: Sequence[int] = (1,),
    pretrain: int = 15,
    **changes: Any,
) -> None:
    """Run one round and write everything it used and made to `path`, a TRACE.npz.

    `changes` are entries of the config. `sizes` are the clients' numbers of images, `fresh` the
    clients that have never trained, `pretrain` the steps that make global0 confident.
    """
    config = CONFIG | {"clients": len(sizes)} | changes
    assert config.keys() == CONFIG.keys()
    assert config["clients"] == len(sizes)
    classes, side, clip = config["classes"], config["side"], config["clip"]
    arrays: dict[str, np.ndarray] = {}

    def put(name: str, value: Tensor | Tree) -> None:
        if isinstance(value, dict):
            for leaf, tensor in value.items():
                put(f"{name}/{leaf}", tensor)
        else:
            arrays[name] = value.numpy().copy()

    gen = torch.Generator().manual_seed(seed)
    colours = 2.0 * torch.randn(classes, 3, generator=gen)

    def draw(num: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (num,), generator=gen)
        return _images(gen, colours, y, side), y

    model = make_model(config["depth"], config["widen"], classes, seed)
    warm_up = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(pretrain):
        x, y = draw(16)
        warm_up.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        clipped_step(model, warm_up, 1.0)

    global0 = values(model)
    aggregate_momentum, server_momentum = _noise(gen, global0), _noise(gen, global0)
    put("global0", global0)
    put("aggregate_momentum0", aggregate_momentum)
    put("server_momentum0", server_momentum)

    sbn_batches = [draw(num)[0] for num in (5, 5, 12, 7)]
    for i, x in enumerate(sbn_batches):
        put(f"sbn_batch{i}", x)
    put("sbn0", recalibrate(model, [x.double() for x in sbn_batches]))

    weak = [draw(size)[0] for size in sizes]
    with torch.no_grad():
        probs = [model(x.double()).softmax(1) for x in weak]
    labels = [threshold(p, config["tau_f"]) for p in probs]

    use_batch_statistics(model)
    step_options = {key: config[key] for key in ("rho", "eta", "w_a", "w_cs")}
    trained = []
    for c, (x_client, own) in enumerate(zip(weak, labels, strict=True)):
        put(f"client{c}", {"weak": x_client, "probs": probs[c], **own._asdict()})
        momentum0 = None if c in fresh else _noise(gen, global0)
        if momentum0 is not None:
            put(f"client{c}/momentum0", momentum0)
        load(model, global0)
        optimiser = make_sgd(model, config, momentum0)
        accepted = torch.nonzero(own.keep)[:, 0]
        num_steps = 0
        for rows in _epochs(gen, accepted, config["epochs"], config["batch"]):
            strong = _distort(gen, x_client[rows])
            put(f"client{c}/step{num_steps}", {"rows": rows, "strong": strong})
            total = client_grads(
                model, strong.double(), own.y[rows], own.sure[rows], **step_options
            )
            if num_steps == 0:
                put(f"client{c}/step0/grads", total)
            clipped_step(model, optimiser, clip)
            num_steps += 1
        put(f"client{c}/steps", torch.tensor(num_steps))
        put(f"client{c}/params1", values(model))
        put(f"client{c}/momentum1", buffers(model, optimiser))
        trained.append(values(model))

    beta = torch.stack([1 - own.tau for own in labels])
    beta = beta / beta.sum()
    put("beta", beta)
    load(model, global0)
    averaging = torch.optim.SGD(model.parameters(), lr=1.0, momentum=config["aggregate_momentum"])
    for name, p in model.named_parameters():
        averaging.state[p]["momentum_buffer"] = aggregate_momentum[name].clone()
        mean = sum(b * tree[name] for b, tree in zip(beta, trained, strict=True))
        p.grad = p.detach() - mean
    averaging.step()
    put("aggregated", values(model))
    put("aggregate_momentum1", buffers(model, averaging))

    optimiser = make_sgd(model, config, server_momentum)
    for t in range(3):
        x, y = draw(5 if t < 2 else 3)
        put(f"server/step{t}", {"x": x, "y": y})
        model.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        clipped_step(model, optimiser, clip)
    put("global1", values(model))
    put("server_momentum1", buffers(model, optimiser))

    put("sbn1", recalibrate(model, [x.double() for x in sbn_batches]))
    x, _ = draw(9)
    put("test/x", x)
    with torch.no_grad():
        put("test/logits", model(x.double()))
    np.savez(path, config=np.array(json.dumps(config)), **arrays)  # type: ignore[arg-type]
