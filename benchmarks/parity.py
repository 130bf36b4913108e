"""How far each backend is from PIL, op by op, on real images: python -m benchmarks.parity

Images are the first of svhn and cifar10 where FL2FAST_DATA (or --data-dir) holds them, else of
streetdigits. Every image takes every op at a magnitude of its own; `pipeline` is the whole strong
view. docs/augmentation.md is made from the record by python -m benchmarks.readme.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.harness import write_record
from benchmarks.pil import from_pil, pil_cutout, pil_op, pil_strong, pil_weak, to_pil
from fl2fast.data.arrays import read_folder
from fl2fast.data.backends import make_augment, usable
from fl2fast.data.load import default_data_dir, load
from fl2fast.data.views import CROP_PAD, OPS, ViewDraws, draw_views, single_op


def images_of(data_dir: Path, count: int) -> dict[str, np.ndarray]:
    found = {
        name: read_folder(data_dir / name).train_images[:count]
        for name in ("svhn", "cifar10")
        if (data_dir / name).is_dir()
    }
    return found or {"streetdigits": load("streetdigits", data_dir, count, 1, 0).train_images}


def views_of(images: np.ndarray) -> dict[str, tuple[ViewDraws, str, list[np.ndarray]]]:
    """For every row of the table: draws, which view, and what PIL makes of them."""
    N = len(images)
    drawn = draw_views(0, "client view", 1, 0, 0, np.arange(N), view=1)
    nothing = single_op("Identity", np.zeros(N))
    rows: dict[str, tuple[ViewDraws, str, list[np.ndarray]]] = {}
    pictures = [to_pil(image) for image in images]
    u_N = (np.arange(N) + 0.5) / N  # evenly over the range
    for name in OPS:
        made = [from_pil(pil_op(image, name, u)) for image, u in zip(pictures, u_N, strict=True)]
        rows[name] = single_op(name, u_N), "strong", made
    cut = nothing._replace(cutout=drawn.cutout)
    made = [from_pil(pil_cutout(im, *u)) for im, u in zip(pictures, drawn.cutout, strict=True)]
    rows["cutout"] = cut, "strong", made
    made = [from_pil(pil_weak(image, drawn, i)) for i, image in enumerate(images)]
    rows["crop and flip"] = drawn, "weak", made
    made = [from_pil(pil_strong(image, drawn, i)) for i, image in enumerate(images)]
    rows["pipeline"] = drawn, "strong", made
    return rows


def compare(images: np.ndarray) -> list[dict[str, Any]]:
    shape, device = images.shape[1:], torch.device("cpu")
    backends = {
        name: make_augment(name, flip=True, crop=CROP_PAD, shape=shape, device=device)
        for name in usable(shape)
    }
    rows = []
    for name, (draws, view, expected) in views_of(images).items():
        row: dict[str, Any] = {"op": name}
        for backend, augment in backends.items():
            made = augment(torch.from_numpy(np.array(images)), draws, view).numpy()
            gap = np.abs(made.astype(int) - np.stack(expected))
            row[backend] = {
                "largest": int(gap.max()),
                "mean": float(gap.mean()),
                "differing": float((gap > 0).any(axis=1).mean()),  # share of pixels
            }
        rows.append(row)
    return rows


@click.command()
@click.option("--count", default=2000, show_default=True, help="Images of each dataset.")
@click.option("--data-dir", type=click.Path(path_type=Path))
def main(count: int, data_dir: Path | None) -> None:
    rows = []
    for name, images in images_of(data_dir or default_data_dir(), count).items():
        for row in compare(images):
            rows.append({"dataset": name, "count": len(images), **row})
            click.echo(rows[-1])
    click.echo(f"recorded in {write_record('parity', rows)}")


if __name__ == "__main__":
    main()
