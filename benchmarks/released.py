"""One round of (FL)^2 the way its released code spends time: the baseline that fl2fast is timed by.

One client after another, each with a fresh module and a fresh DataLoader whose dataset makes PIL
views one image at a time by torchvision's functions; `torch.optim.SGD`, autograd, torch's default
memory format, dtype and threads. Written from a description of that code's costs, waste included:
an unlabelled image always gets a weak and a strong view, also where one is not looked at, and a
step takes 5F + 3B. Left out, in the baseline's favour: the logger, the seven metrics of a step.

Rows, orders and draws are fl2fast's (keyed, made in advance), so from the same state both train on
the same views in the same batches and arrive at the same model; only the time differs.

Shapes: D images, M rows of a client, B of a batch, C, H, W of an image, Y classes, P parameters.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF
from PIL import Image
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

from benchmarks.pil import pil_cutout, pil_op
from fl2fast.clock import Clock
from fl2fast.data.inputs import Images
from fl2fast.data.plan import select, shuffled_batches
from fl2fast.data.views import OPS, crop_offsets, draw_views
from fl2fast.engine.world import ServerState, World
from fl2fast.experiment import Experiment
from fl2fast.models.network import Stats
from fl2fast.record import named_tensors
from fl2fast.simulate import make_module

EVAL_BATCH = 2048  # of pseudo-labelling and the test
ETA = 0.01  # of ASAM

# Choices that the released code does not have; the defaults of `Experiment` are what it does.
FIXED = """method seeds device perturbation strict batches consistency_rows divergence aggregation
client_momentum sbn_data sbn_order sbn_weight"""

Tree = dict[str, Tensor]
Rows = dict[tuple[int, int], Tensor]  # momentum, by seed and client
Key = tuple[int, int]  # epoch, position


class RoundCost(NamedTuple):
    seconds: dict[str, float]  # by phase, named as fl2fast names them
    num_trained: int  # images that clients trained on, counted once per step
    accuracy: float  # percent, on the test set
    state: ServerState


class Labels(NamedTuple):
    y_M: Tensor
    keep_M: Tensor
    sure_M: Tensor  # of all rows, accepted or not
    tau: float


class Draws(NamedTuple):  # the key of those of a dataset's views
    purpose: str
    round: int
    client: int = 0
    epochs: int = 1


class Views(Dataset):
    """Normalised views of some rows, made when they are asked for by (epoch, position).

    `views` names those of an item, of clean, weak and strong; an item ends with its position.
    """

    def __init__(
        self, world: World, image_DHWC: np.ndarray, row_M: np.ndarray, views: str, draws: Draws
    ) -> None:
        e, (height, width) = world.experiment, image_DHWC.shape[1:3]
        self.image_DHWC, self.row_M, self.views = image_DHWC, row_M, views.split()
        assert isinstance(world.inputs, Images)
        mean, std = world.inputs.mean, world.inputs.std
        self.mean, self.std, self.flip = mean.tolist(), std.tolist(), e.flip
        self.pad = [int(width * e.crop), int(height * e.crop)]
        epoch, row = (index.ravel() for index in np.indices((draws.epochs, len(row_M))))
        place = (e.seed, *draws[:3], epoch, row)
        kinds = [v for v in self.views if v != "clean"]
        self.draws = {v: draw_views(*place, int(v == "strong")) for v in kinds}
        pad, shape = self.pad[::-1], (height, width, e.crop)
        self.corner = {v: crop_offsets(d.crop, *shape) + pad for v, d in self.draws.items()}

    def __getitem__(self, key: Key) -> tuple[Tensor | int, ...]:
        epoch, position = key
        image = Image.fromarray(self.image_DHWC[self.row_M[position]])
        made = [self.make(image, view, epoch * len(self.row_M) + position) for view in self.views]
        tensors = [TF.normalize(TF.to_tensor(own), self.mean, self.std) for own in made]
        return *tensors, position

    def make(self, image: Any, view: str, i: int) -> Any:
        if view == "clean":
            return image
        draws, corner, size = self.draws[view], self.corner[view][i].tolist(), image.size[::-1]
        image = TF.crop(TF.pad(image, self.pad, padding_mode="reflect"), *corner, *size)
        if self.flip and draws.flip[i]:
            image = TF.hflip(image)
        if view == "strong":
            for op, u in zip(draws.op[i].tolist(), draws.magnitude[i].tolist(), strict=True):
                image = pil_op(image, OPS[op], u)
            image = pil_cutout(image, *draws.cutout[i].tolist())
        return image


def in_order(num: int, batch_size: int) -> list[list[Key]]:
    """Batches of the positions 0 to num - 1, the last one short."""
    cuts = range(0, num, batch_size)
    return [[(0, i) for i in range(cut, min(cut + batch_size, num))] for cut in cuts]


def make_model(world: World, tree: Tree, *, track: bool) -> nn.Module:
    """A fresh module with the tree's values, whose norms keep cumulative averages or nothing."""
    model = make_module(world.experiment, world.num_classes, world.experiment.seed)
    for norm in norms(model).values():
        norm.momentum = None
        if not track:
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    model.load_state_dict(tree, strict=False)
    return model.train()


def norms(model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}


def make_sgd(model: nn.Module, buffers: Tree | None, **settings: Any) -> SGD:
    """An optimiser that goes on with the given momentum; None: it has never stepped."""
    optimiser = SGD(model.parameters(), **settings)
    for name, p in model.named_parameters():
        if buffers is not None:
            optimiser.state[p]["momentum_buffer"] = buffers[name].clone()
    return optimiser


def momentum(model: nn.Module, optimiser: SGD) -> Tree:
    return {name: optimiser.state[p]["momentum_buffer"] for name, p in model.named_parameters()}


def threshold(probs_MY: Tensor, sure: float) -> Labels:
    """CAT: accept a row whose confidence reaches the client's threshold for its class."""
    confidence_M, y_M = probs_MY.max(1)
    tau, mean_Y = confidence_M.mean(), probs_MY.mean(0)
    tau_Y = tau * (mean_Y / mean_Y.max())
    return Labels(y_M, confidence_M >= tau_Y[y_M], confidence_M >= sure, float(tau))


@torch.no_grad()
def climb(model: nn.Module, rho: float) -> list[Tensor]:
    """Move W to W* = W + eps, eps = rho T^2 g / ||T g|| (ASAM); returns eps, to come back by."""
    scaled, offsets = [], []
    for name, p in model.named_parameters():
        assert p.grad is not None
        scale = p.abs() + ETA if "weight" in name else torch.ones_like(p)
        scaled.append(scale * p.grad)
        offsets.append(scale * scaled[-1])
    norm = torch.stack([g.norm() for g in scaled]).norm() + 1e-16
    for p, offset in zip(model.parameters(), offsets, strict=True):
        p.add_(offset.mul_(rho / norm))
    return offsets


def client_grads(
    model: nn.Module, weak: Tensor, strong: Tensor, y_B: Tensor, sure_B: Tensor, rho: float
) -> None:
    """grad L_a(W) + grad L_cs(W*) on accepted rows, left in `.grad`: 5F + 3B, whatever the rows.

    Forwards 2, 3 and 5 compute the same logits, nothing reads forward 1, and where no row is sure
    the last pair alone would do; fl2fast does not pay for those.
    """
    model.zero_grad()
    with torch.no_grad():
        model(weak)  # forward 1
        target_BY = model(strong).softmax(1)  # forward 2: what the moved model should say

    # forward 3, backward 1: L_p. Without a sure row it is 0/0, but its gradient is exactly zero.
    F.cross_entropy(model(strong)[sure_B], y_B[sure_B]).backward()
    offsets = climb(model, rho)
    model.zero_grad()

    moved_BY = model(strong).log_softmax(1)  # forward 4, at W*
    kl_B = F.kl_div(moved_BY, target_BY, reduction="none").sum(1)
    params = list(model.parameters())
    consistency = torch.autograd.grad((kl_B * sure_B).mean(), params)  # backward 2: L_cs
    with torch.no_grad():
        for p, offset in zip(params, offsets, strict=True):
            p.sub_(offset)

    F.cross_entropy(model(strong), y_B).backward()  # forward 5, backward 3: L_a
    for p, g in zip(params, consistency, strict=True):
        assert p.grad is not None
        p.grad += g


class Released:
    """The baseline on a world's data, with `workers` processes for every pass over a DataLoader.

    The released code starts four; the default is none, which was faster on two shared cores.
    """

    def __init__(self, world: World, workers: int = 0) -> None:
        for name in FIXED.split():
            if (value := getattr(world.experiment, name)) != getattr(Experiment, name):
                raise ValueError(f"the released code knows no {name} = {value}")
        self.world, self.workers, self.split = world, workers, world.splits[0]
        self.layout = world.network.layout
        assert isinstance(world.inputs, Images)
        self.train_DHWC, self.test_DHWC = (
            np.ascontiguousarray(images[:, 0] if images.shape[1] == 1 else images.movedim(1, 3))
            for images in (world.inputs.images, world.inputs.test_images)
        )

    def run_round(self, state: ServerState, rows: Rows, round: int) -> RoundCost:
        """Clients, aggregation, server, statistics, test; `rows` gets the clients' momentum."""
        e, clock = self.world.experiment, Clock(torch.device("cpu"))
        start, trained, labels = named_tensors(self.world, state), [], []
        buffers, pooled = (self.layout.split(row_1P[0]) for row_1P in state[1:3])
        for client in map(int, select([e.seed], e.clients, e.cohort, round)[0]):
            with clock.phase("pseudo_label"):
                labels.append(self.pseudo_label(start, client, round))
            with clock.phase("local_training"):
                trained.append(self.train_client(start, rows, labels[-1], client, round))
        with clock.phase("aggregate"):
            params, pooled = self.aggregate(start, pooled, trained, labels)
        with clock.phase("fine_tune"):
            params, buffers = self.fine_tune(params, buffers, round)
        with clock.phase("recalibrate"):
            model = self.recalibrate(params, round)
        with clock.phase("evaluate"):
            accuracy = self.evaluate(model.eval())
        learnt = (self.layout.join(tree)[None] for tree in (params, buffers, pooled))
        made = ServerState._make((*learnt, (self.stats_of(model),)))
        num_trained = e.epochs * sum(int(own.keep_M.sum()) for own in labels)
        return RoundCost(clock.read(), num_trained, accuracy, made)

    @torch.no_grad()
    def pseudo_label(self, start: Tree, client: int, round: int) -> Labels:
        """One weak view of every row, asked of the global model with its static statistics."""
        model, row_M = make_model(self.world, start, track=True).eval(), self.split.clients[client]
        draws = Draws("pseudo-label view", round, client)
        views = Views(self.world, self.train_DHWC, row_M, "weak strong", draws)
        batches = self.load(views, in_order(len(row_M), EVAL_BATCH))
        probs_MY = torch.cat([model(weak_BCHW).softmax(1) for weak_BCHW, *_ in batches])
        return threshold(probs_MY, self.world.experiment.sure)

    def train_client(
        self,
        start: Tree,
        rows: Rows,
        labels: Labels,
        client: int,
        round: int,
    ) -> Tree:
        """The client's model after its epochs over the accepted rows; its momentum is stored."""
        e, model = self.world.experiment, make_model(self.world, start, track=False)
        if not labels.keep_M.any():
            return model.state_dict()  # it still votes
        buffer_P = rows.get((e.seed, client))
        buffers = None if buffer_P is None else self.layout.split(buffer_P)
        optimiser = make_sgd(model, buffers, **self.settings(round))
        draws = Draws("client view", round, client, e.epochs)
        views = Views(self.world, self.train_DHWC, self.split.clients[client], "weak strong", draws)
        for epoch in self.epochs(labels.keep_M.numpy(), "client shuffle", draws, e.batch_size):
            for weak, strong, position_B in self.load(views, epoch):
                y_B, sure_B = labels.y_M[position_B], labels.sure_M[position_B]
                client_grads(model, weak, strong, y_B, sure_B, e.rho)
                self.step(model, optimiser)
        rows[e.seed, client] = self.layout.join(momentum(model, optimiser))
        return model.state_dict()

    def aggregate(
        self, start: Tree, buffers: Tree, trained: list[Tree], labels: list[Labels]
    ) -> tuple[Tree, Tree]:
        """LSAA: SGD with momentum on W - sum_k beta_k W_k, beta_k ~ 1 - tau_k."""
        model = make_model(self.world, start, track=False)
        decay, total = self.world.experiment.aggregate_momentum, sum(1 - own.tau for own in labels)
        optimiser = make_sgd(model, buffers, lr=1.0, momentum=decay)
        for name, p in model.named_parameters():
            p.grad = p.detach().clone()
            for tree, own in zip(trained, labels, strict=True):
                p.grad.sub_(tree[name], alpha=(1 - own.tau) / total)
        optimiser.step()
        return model.state_dict(), momentum(model, optimiser)

    def fine_tune(self, params: Tree, buffers: Tree, round: int) -> tuple[Tree, Tree]:
        """Cross-entropy on weak views of the server's labelled rows."""
        e, row_M = self.world.experiment, self.split.labelled
        model = make_model(self.world, params, track=False)
        optimiser = make_sgd(model, buffers, **self.settings(round))
        draws = Draws("server view", round, epochs=e.server_epochs)
        views = Views(self.world, self.train_DHWC, row_M, "weak", draws)
        y_M, every_M = self.world.truth[torch.from_numpy(row_M)], np.full(len(row_M), True)
        for epoch in self.epochs(every_M, "server shuffle", draws, e.server_batch_size):
            for weak_BCHW, position_B in self.load(views, epoch):
                model.zero_grad()
                F.cross_entropy(model(weak_BCHW), y_M[position_B]).backward()
                self.step(model, optimiser)
        return model.state_dict(), momentum(model, optimiser)

    @torch.no_grad()
    def recalibrate(self, params: Tree, round: int) -> nn.Module:
        """sBN: a fresh model's cumulative averages over all labelled, then unlabelled images."""
        e, model = self.world.experiment, make_model(self.world, params, track=True)
        for row_M, names, batch_size in (
            (self.split.labelled, "clean", e.sbn_labelled_batch),
            (self.split.unlabelled, "clean strong", e.sbn_unlabelled_batch),
        ):
            views = Views(self.world, self.train_DHWC, row_M, names, Draws("client view", round))
            for clean_BCHW, *_ in self.load(views, in_order(len(row_M), batch_size)):
                model(clean_BCHW)
        return model

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Percent of the test images that the model gets right."""
        y_D, right = self.world.test_labels, 0
        views = Views(self.world, self.test_DHWC, np.arange(len(y_D)), "clean", Draws("", 0))
        for clean_BCHW, position_B in self.load(views, in_order(len(y_D), EVAL_BATCH)):
            right += int((model(clean_BCHW).argmax(1) == y_D[position_B]).sum())
        return 100.0 * right / len(y_D)

    def stats_of(self, model: nn.Module) -> Stats:
        """A model's running statistics, as fl2fast keeps them."""
        named, join = dict(model.named_buffers()), self.world.network.norms.join
        kinds = "running_mean", "running_var"
        return Stats(*(join({n: named[f"{n}.{kind}"] for n in norms(model)}) for kind in kinds))

    def settings(self, round: int) -> dict[str, Any]:
        """Of the SGD of clients and server."""
        e = self.world.experiment
        settings = {"momentum": e.momentum, "weight_decay": e.weight_decay, "nesterov": True}
        return {"lr": e.learning_rate(round), **settings}

    def step(self, model: nn.Module, optimiser: SGD) -> None:
        if self.world.experiment.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.world.experiment.clip)
        optimiser.step()

    def load(self, views: Views, batches: list[list[Key]]) -> DataLoader:
        return DataLoader(views, batch_sampler=batches, num_workers=self.workers)

    def epochs(
        self, keep_M: np.ndarray, purpose: str, draws: Draws, batch_size: int
    ) -> Iterator[list[list[Key]]]:
        """Each epoch's shuffled batches of the kept rows, the last one short."""
        place = np.array([self.world.experiment.seed]), np.array([draws.client])
        sizes = {"round": draws.round, "epochs": draws.epochs, "batch_size": batch_size}
        (steps,) = shuffled_batches(keep_M[None], *place, purpose=purpose, **sizes)
        for e in range(draws.epochs):
            yield [[(e, i) for i in own.position_B.tolist()] for own in steps if own.epoch == e]
