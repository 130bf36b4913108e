"""Local steps of one learner of every method, plain and slow: modules, autograd, torch.optim.

Each class is written from its paper's equations. It takes ordinary tensors of one learner's live
rows and leaves its result as the columns of a learner's row; nothing here knows of lanes, masks or
padding. From the library it takes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import oracle
import torch
import torch.nn.functional as F
from oracle import Tree
from torch import Tensor, nn
from torch.func import functional_call

CONFIG = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
CLIP = 1.0


class Rows(NamedTuple):
    """One learner's batch."""

    views: tuple[Tensor, ...]
    y: Tensor
    sure: Tensor
    partner: Tensor  # a weak view of another row
    partner_y: Tensor
    share: float
    labelled: Tensor
    labelled_y: Tensor
    round: int


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


class CrossEntropy:
    """Mean cross-entropy of the first view; also the frame of every method with one network."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimiser = oracle.make_sgd(model, CONFIG, None)

    def fill_grads(self, rows: Rows) -> None:
        F.cross_entropy(self.model(rows.views[0]), rows.y).backward()

    def step(self, rows: Rows) -> None:
        self.model.zero_grad()
        self.fill_grads(rows)
        oracle.clipped_step(self.model, self.optimiser, CLIP)

    def row(self) -> Tensor:
        return flat(list(self.model.parameters()))


class Sacr(CrossEntropy):
    def __init__(self, model: nn.Module, rho: float, eta: float) -> None:
        super().__init__(model)
        self.rho, self.eta = rho, eta

    def fill_grads(self, rows: Rows) -> None:
        oracle.client_grads(
            self.model, rows.views[0], rows.y, rows.sure, rho=self.rho, eta=self.eta
        )


class Sam(Sacr):
    """grad L_a(W) + grad L_c(W*), or the right rows' part of L_a at W* instead of at W."""

    def __init__(self, model: nn.Module, rho: float, eta: float, reading: str) -> None:
        super().__init__(model, rho, eta)
        self.reading = reading

    def fill_grads(self, rows: Rows) -> None:
        model, x, y, right = self.model, rows.views[0], rows.y, rows.sure
        F.cross_entropy(model(x)[right], y[right]).backward()
        offsets = oracle.asam_offsets(model, self.rho, self.eta)
        oracle.shift(model, offsets, +1)
        model.zero_grad()
        at_moved = F.cross_entropy(model(x)[right], y[right], reduction="sum")
        (at_moved / (right.sum() if self.reading == "added" else len(y))).backward()
        moved = oracle.grads(model)
        oracle.shift(model, offsets, -1)
        model.zero_grad()
        each = F.cross_entropy(model(x), y, reduction="none")
        (each if self.reading == "added" else each * ~right).mean().backward()
        for name, p in model.named_parameters():
            p.grad += moved[name]


class FixAndMix(CrossEntropy):
    def fill_grads(self, rows: Rows) -> None:
        strong, weak = rows.views
        share = rows.share
        fix = F.cross_entropy(self.model(strong), rows.y)
        mixed = self.model(share * weak + (1 - share) * rows.partner)
        mix = share * F.cross_entropy(mixed, rows.y)
        mix = mix + (1 - share) * F.cross_entropy(mixed, rows.partner_y)
        (fix + mix).backward()


class Decomposed:
    """FedMatch's sigma and psi; `helpers` are other clients' psi, or none."""

    def __init__(
        self, model: nn.Module, psi: Tree, trains: str, lambdas: Mapping[str, float], **given: Any
    ) -> None:
        self.model, self.lambdas = model, lambdas
        self.sigma = dict(model.named_parameters())
        self.psi = {n: t.clone().requires_grad_(t.dim() > 1) for n, t in psi.items()}
        self.helpers: list[Tree] = given.get("helpers", [])
        self.confidence: float = given.get("confidence", 0.0)
        of_psi = [t for t in self.psi.values() if t.requires_grad]
        self.moved = list(self.sigma.values()) if trains == "sigma" else of_psi
        self.loss: Callable[[Rows], Tensor] = getattr(self, f"loss_of_{trains}")
        self.optimiser = torch.optim.SGD(self.moved, **CONFIG)

    def answer(self, x: Tensor, psi: Tree) -> Tensor:
        return functional_call(self.model, {n: s + psi[n] for n, s in self.sigma.items()}, (x,))

    def loss_of_sigma(self, rows: Rows) -> Tensor:
        return self.lambdas["s"] * F.cross_entropy(self.answer(rows.views[0], self.psi), rows.y)

    def loss_of_psi(self, rows: Rows) -> Tensor:
        strong, clean = rows.views
        local = self.answer(clean, self.psi)
        sure = local.softmax(1).max(1).values >= self.confidence
        loss = torch.zeros((), dtype=clean.dtype)
        for name, psi in self.psi.items():
            if psi.requires_grad:
                apart = (self.sigma[name].detach() - psi) ** 2
                loss = (
                    loss + self.lambdas["l1"] * psi.abs().sum() + self.lambdas["l2"] * apart.sum()
                )
        if not sure.any():
            return loss
        others = [self.answer(clean, psi).detach() for psi in self.helpers]
        for other in others:
            kl = F.kl_div(local[sure].log_softmax(1), other[sure].softmax(1), reduction="batchmean")
            loss = loss + self.lambdas["i"] / len(others) * kl
        votes = [answer.argmax(1).tolist() for answer in (local, *others)]
        winners = []
        for row in zip(*votes, strict=True):
            most = max(row.count(c) for c in row)
            winners.append(min(c for c in row if row.count(c) == most))
        y = torch.tensor(winners)
        towards = F.cross_entropy(self.answer(strong, self.psi)[sure], y[sure])
        return loss + self.lambdas["a"] * towards

    def step(self, rows: Rows) -> None:
        self.optimiser.zero_grad()
        self.loss(rows).backward(inputs=self.moved)
        nn.utils.clip_grad_norm_(self.moved, CLIP)
        self.optimiser.step()

    def row(self) -> Tensor:
        helpers = [t for psi in self.helpers for t in psi.values()]
        return flat([*self.sigma.values(), *self.psi.values(), *helpers])


class Head(nn.Module):
    """Linear, norm over the batch, ReLU, linear."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden, track_running_stats=False)
        self.second = nn.Linear(hidden, features)

    def forward(self, f: Tensor) -> Tensor:
        return self.second(F.relu(self.norm(self.first(f))))


def features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last linear layer is given."""
    seen = []
    layer = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(x)
    hook.remove()
    return seen[0]


def follow(slow: nn.Module, fast: nn.Module, ema: float) -> None:
    with torch.no_grad():
        for s, f in zip(slow.parameters(), fast.parameters(), strict=True):
            s.copy_(ema * s + (1 - ema) * f)


class Contrast:
    """FedCon's client."""

    def __init__(
        self, model: nn.Module, copy: nn.Module, head: Head, slow: nn.Module, ema: float
    ) -> None:
        self.model, self.copy, self.head, self.slow, self.ema = model, copy, head, slow, ema
        self.moved = [p for n, p in model.named_parameters() if not n.startswith("head.")]
        self.moved += list(head.parameters())
        self.optimiser = torch.optim.SGD(self.moved, **CONFIG)

    def step(self, rows: Rows) -> None:
        x1, x2 = rows.views
        with torch.no_grad():
            t1, t2 = features(self.slow, x1), features(self.slow, x2)
        h1, h2 = (self.head(features(self.model, x)) for x in (x1, x2))
        pairs = ((h1, t2), (h2, t1))
        loss = sum(-0.5 * F.cosine_similarity(h, t, dim=1).mean() for h, t in pairs)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.moved, CLIP)
        self.optimiser.step()
        follow(self.slow, self.model, self.ema)

    def row(self) -> Tensor:
        parts = (self.model, self.copy, self.head, self.slow)
        return flat([p for part in parts for p in part.parameters()])


class CalmServer(CrossEntropy):
    """FedCon's server: two views, a slow copy that each must agree with; columns [model | copy]."""

    def __init__(self, model: nn.Module, copy: nn.Module, ema: float) -> None:
        super().__init__(model)
        self.copy, self.ema = copy, ema

    def step(self, rows: Rows) -> None:
        super().step(rows)
        follow(self.copy, self.model, self.ema)

    def fill_grads(self, rows: Rows) -> None:
        x1, x2 = rows.views
        z1, z2 = self.model(x1), self.model(x2)
        with torch.no_grad():
            s1, s2 = self.copy(x1), self.copy(x2)
        ramp = math.exp(-5 * (1 - min(rows.round, 100) / 100) ** 2)
        ce = F.cross_entropy(z1, rows.y) + F.cross_entropy(z2, rows.y)
        kl = sum(
            F.kl_div(z.log_softmax(1), s.softmax(1), reduction="batchmean")
            for z, s in ((z1, s2), (z2, s1))
        )
        (ce / 2 + ramp / 2 * kl).backward()

    def row(self) -> Tensor:
        return flat([*self.model.parameters(), *self.copy.parameters()])


class Central:
    """FreeMatch; with `sure`, FixMatch. Labelled, weak and strong rows pass together."""

    def __init__(self, model: nn.Module, classes: int, sure: float | None, **given: Any) -> None:
        self.model, self.average, self.sure = model, deepcopy(model), sure
        self.ema, self.weights_ema = given["ema"], given["weights_ema"]
        self.lambda_f, self.clip_time = given["lambda_f"], given["clip_time"]
        self.t = torch.tensor(1 / classes, dtype=torch.float64)
        self.q = torch.full((classes,), 1 / classes, dtype=torch.float64)
        self.g = self.q.clone()
        groups = [
            {
                "params": [p for p in model.parameters() if (p.dim() > 1) == matrix],
                "weight_decay": d,
            }
            for matrix, d in ((True, given["decay"]), (False, 0.0))
        ]
        self.optimiser = torch.optim.SGD(groups, **CONFIG | {"weight_decay": 0.0})

    def step(self, rows: Rows) -> None:
        strong_x, weak_x = rows.views
        num_known, num = len(rows.labelled), len(weak_x)
        logits = self.model(torch.cat((rows.labelled, weak_x, strong_x)))
        known, weak, strong = logits.split((num_known, num, num))
        probs = weak.detach().softmax(1)
        confidence, y = probs.max(1)
        classes = len(self.q)
        if self.sure is None:
            counts = torch.bincount(y, minlength=classes).double() / num
            self.t = self.ema * self.t + (1 - self.ema) * confidence.mean()
            self.q = self.ema * self.q + (1 - self.ema) * probs.mean(0)
            self.g = self.ema * self.g + (1 - self.ema) * counts
            self.t = self.t.clamp(max=0.95) if self.clip_time else self.t
            keep = confidence >= (self.t * self.q / self.q.max())[y]
        else:
            keep = confidence >= self.sure
        loss = F.cross_entropy(known, rows.labelled_y)
        loss = loss + (F.cross_entropy(strong, y, reduction="none") * keep).mean()
        if self.sure is None and keep.any():
            loss = loss + self.lambda_f * self.fairness(strong[keep])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        follow(self.average, self.model, self.weights_ema)

    def fairness(self, strong: Tensor) -> Tensor:
        probs = strong.softmax(1)
        histogram = torch.bincount(probs.argmax(1), minlength=len(self.q)).double() / len(probs)

        def shares(mean: Tensor, counts: Tensor) -> Tensor:
            ratio = torch.stack(
                [m / c if c > 0 else 0 * m for m, c in zip(mean, counts, strict=True)]
            )
            return ratio / ratio.sum()

        a, b = shares(self.q, self.g), shares(probs.mean(0), histogram)
        return (a * (b + 1e-12).log()).sum()

    def row(self) -> Tensor:
        state = [] if self.sure is not None else [self.t, self.q, self.g]
        return flat([*self.model.parameters(), *self.average.parameters(), *state])
