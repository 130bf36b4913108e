"""Pictures of a dataset as training sees it: its views, and every op at five magnitudes.

Shapes: R rows of the picture, N images, C = 3 channels, H rows and W columns of an image.
"""

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from fl2fast.data.augment import strong, weak
from fl2fast.data.views import OPS, draw_views, op_values, single_op
from fl2fast.errors import UsageError

MAGNITUDES = (0.0, 0.25, 0.5, 0.75, 1 - 2.0**-32)  # of [0, 1), from one end to the other
SUFFIXES = (".png", ".pdf", ".svg")


def draw_gallery(
    image_NCHW: np.ndarray, path: Path, *, flip: bool, seed: int, names: list[str]
) -> tuple[Path, Path]:
    """Original, weak and strong view of every image; beside it, PATH-ops: the ops on the first."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{str(path)!r} is no picture: end it in {', '.join(SUFFIXES)}")
    images = torch.from_numpy(np.ascontiguousarray(image_NCHW))
    rows = np.arange(len(images))
    draws = [draw_views(seed, "client view", 0, 0, 0, rows, view=view) for view in (0, 1)]
    views = [images, weak(images, draws[0], flip=flip), strong(images, draws[1], flip=flip)]
    _draw_grid(torch.stack(views).numpy(), path, ["original", "weak", "strong"], names)

    grid, titles = [], []
    for name in OPS:
        value = op_values(np.full(5, OPS.index(name)), np.array(MAGNITUDES))
        low, high = value[[0, -1]]
        drawn = name not in ("AutoContrast", "Equalize", "Identity")
        titles.append(f"{name}\n{low:g} to {high:.3g}" if drawn else name)
        grid.append(strong(images[:1].expand(5, -1, -1, -1), single_op(name, np.array(MAGNITUDES))))
    ops_path = path.with_stem(f"{path.stem}-ops")
    columns = ["lowest", "", "middle", "", "highest"]
    _draw_grid(torch.stack(grid).numpy(), ops_path, titles, columns)
    return path, ops_path


def _draw_grid(image_RNCHW: np.ndarray, path: Path, titles: list[str], names: list[str]) -> None:
    R, N = image_RNCHW.shape[:2]
    figure = Figure(figsize=(1.1 + 0.8 * N, 0.4 + 0.8 * R))
    axes = figure.subplots(R, N, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    for r, row in enumerate(axes):
        for n, axis in enumerate(row):
            axis.imshow(image_RNCHW[r, n].transpose(1, 2, 0))
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        row[0].set_ylabel(titles[r], rotation=0, ha="right", va="center", fontsize=8)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, fontsize=8)
    scratch = path.with_name(f".{path.name}.part")
    try:
        figure.savefig(scratch, dpi=110, bbox_inches="tight", format=path.suffix[1:])
        scratch.rename(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise UsageError(
            f"cannot write {str(path)!r} ({error.strerror}): choose another --out"
        ) from error
