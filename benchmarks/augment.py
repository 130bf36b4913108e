"""Strong views per second: PIL on every core against the backends: python -m benchmarks.augment

A view is crop, flip, three ops, cutout and normalisation to float32. PIL's processes get their
draws for nothing and keep their results to themselves; the backends make their draws, and their
views are ready to train on.
"""

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median

import click
import numpy as np
import torch

from benchmarks.harness import write_record
from benchmarks.pil import from_pil, pil_strong
from fl2fast.data import streetdigits
from fl2fast.data.augment import normalise
from fl2fast.data.backends import make_augment, usable
from fl2fast.data.settings import CIFAR10
from fl2fast.data.views import CROP_PAD, ViewDraws, draw_views
from fl2fast.memory import keep_freed_memory
from fl2fast.tune import interleave

SIZES = (320, 2048)
_work: dict[int, tuple[np.ndarray, ViewDraws]] = {}  # what a PIL process needs, by batch size


def draws_of(size: int) -> ViewDraws:
    return draw_views(0, "client view", 1, 0, 0, np.arange(size), view=1)


def start_pil(images: np.ndarray) -> None:
    torch.set_num_threads(1)
    for size in SIZES:
        _work[size] = images[:size], draws_of(size)


def pil_share(task: tuple[int, int, int]) -> float:
    """Normalised views of some images of a batch; the sum only shows that they were made."""
    size, first, last = task
    images, draws = _work[size]
    mean, std = (np.array(v, dtype=np.float32)[:, None, None] for v in CIFAR10.flfl[:2])
    views = [
        (from_pil(pil_strong(images[i], draws, i)) / np.float32(255) - mean) / std
        for i in range(first, last)
    ]
    return float(np.stack(views)[0, 0, 0, 0])


def backend_call(backend: str, images: torch.Tensor) -> Callable[[], torch.Tensor]:
    mean, std = torch.tensor(CIFAR10.flfl.mean), torch.tensor(CIFAR10.flfl.std)
    _, C, H, W = images.shape
    views = make_augment(backend, flip=True, crop=CROP_PAD, shape=(C, H, W), device=images.device)
    return lambda: normalise(views(images, draws_of(len(images)), "strong"), mean, std)


@click.command()
@click.option("--repeats", default=9, show_default=True)
def main(repeats: int) -> None:
    cores, rows = os.cpu_count() or 1, []
    images = streetdigits.draw(max(SIZES), 0, "train")[0]
    keep_freed_memory()
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    with context.Pool(cores, start_pil, (images,)) as pool:
        for size in SIZES:
            batch = torch.from_numpy(images[:size])
            edges = np.linspace(0, size, 4 * cores + 1).astype(int).tolist()
            shares = [(size, first, last) for first, last in pairwise(edges)]
            calls: dict[str, Callable[[], object]] = {
                "pil": partial(pool.map, pil_share, shares, chunksize=1)
            }
            calls |= {name: backend_call(name, batch) for name in usable(images.shape[1:])}
            seconds = interleave(calls, repeats, batch.device)
            rates = {name: size / median(values) for name, values in seconds.items()}
            ratios = {name: rate / rates["pil"] for name, rate in rates.items()}
            rows.append({"batch": size, "rates": rates, "vs_pil": ratios})
            cells = "  ".join(f"{n} {rates[n]:>8,.0f} ({ratios[n]:.1f}x)" for n in rates)
            click.echo(f"{size:>5} images: {cells}  images/s")
    click.echo(f"recorded in {write_record('augment', rows, repeats=repeats, processes=cores)}")


if __name__ == "__main__":
    main()
