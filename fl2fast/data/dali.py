"""The DALI backend: the views of the torch backend, bit for bit, made by NVIDIA DALI.

`views` does the host's part; DALI draws nothing and runs nothing ahead of a call. One pipeline
crops and flips; there a sample of DALI is an image. Another applies the ops: in each slot images
are gathered by the family of the op they drew, so that no op runs on an image that does not need
it. There a sample is many images, as DALI spends more time on a sample than on a small image.
Arithmetic is in integers, or in floats whose every rounding is PIL's; DALI's own enhancements
round otherwise.

Shapes: N images, n images of one family, C channels (3, or 1 for grey), H rows, W columns,
P = H*W pixels, Q = n*C planes, K = 32 blocks of L = 8 grey levels.
"""

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from fl2fast.data import views
from fl2fast.data.views import GEOMETRIC, OPS, OPS_PER_VIEW, Augment, Shape, ViewDraws
from fl2fast.errors import UsageError

LARGEST_SIDE = 108  # above, float32 does not hold every coordinate: see `_float_maps`
PIXELS_PER_RUN = 1 << 21  # bounds the memory of Equalize: 800 bytes for each pixel it takes
IMAGES_PER_SAMPLE = 64  # on the CPU, where a sample is the work of one thread

# Modules of DALI, loaded with the first backend: importing them takes most of a second.
pipeline: Any
fn: Any
math: Any
types: Any


def is_installed() -> bool:
    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def make_augment(*, flip: bool, crop: float, shape: Shape, device: torch.device) -> Augment:
    """Views of images of one shape (C, H, W) on one device."""
    if not is_installed():
        needs = "needs NVIDIA DALI: pip install 'fl2fast[dali]', or use --augment torch"
        raise UsageError(f"augmentation backend 'dali' {needs}")
    if max(shape[1:]) > LARGEST_SIDE:
        limit = f"takes images of at most {LARGEST_SIDE} pixels a side, not {max(shape[1:])}"
        raise UsageError(f"augmentation backend 'dali' {limit}: use --augment torch")
    global pipeline, fn, math, types
    names = (f"nvidia.dali.{name}" for name in ("pipeline", "fn", "math", "types"))
    try:
        pipeline, fn, math, types = map(import_module, names)
        made = _Pipelines(flip, crop, shape, device)
        blank = torch.zeros(1, *shape, dtype=torch.uint8, device=device)
        made(blank, views.single_op("Identity", np.zeros(1)), "strong")  # builds and proves it
    except (ImportError, OSError, RuntimeError) as error:  # a driver or library that does not fit
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        fails = f"does not run here ({reason[0]})"
        raise UsageError(f"augmentation backend 'dali' {fails}: use --augment torch") from error
    return made


class _Pipelines:
    """The two pipelines, each built when it first runs."""

    def __init__(self, flip: bool, crop: float, shape: Shape, device: torch.device) -> None:
        self._flip, self._crop, self._shape, self._device = flip, crop, shape, device
        self._images_per_run = PIXELS_PER_RUN // (shape[1] * shape[2])
        self._built: dict[Callable[..., Any], Any] = {}
        self._lock = Lock()  # a pipeline serves one call at a time
        finalize(self, self._built.clear)  # a pipeline must not outlive the modules of DALI

    def __call__(self, image_NCHW: Tensor, draws: ViewDraws, view: str) -> Tensor:
        make = self._strong if view == "strong" else self._weak
        parts = _slices(len(image_NCHW), self._images_per_run)
        with self._lock:
            made = [make(image_NCHW[part].contiguous(), draws.rows(part)) for part in parts]
        return made[0] if len(made) == 1 else torch.cat(made or [image_NCHW])

    def _weak(self, image_NCHW: Tensor, draws: ViewDraws) -> Tensor:
        offset_N2 = views.crop_offsets(draws.crop, *self._shape[1:], self._crop)
        fed = {"offset": offset_N2, "mirrored": draws.flip & self._flip}
        fed = {name: argument.astype(np.int32) for name, argument in fed.items()}
        return self._run(_weak_graph, image_NCHW, fed | {"image": _pixels(image_NCHW)})

    def _strong(self, image_NCHW: Tensor, draws: ViewDraws) -> Tensor:
        pixels = _pixels(self._weak(image_NCHW, draws))
        parts = _slices(len(pixels), IMAGES_PER_SAMPLE if image_NCHW.is_cpu else len(pixels))
        samples = [_strong_sample(pixels[part], draws.rows(part), self._shape) for part in parts]
        fed = {name: [sample[name] for sample in samples] for name in samples[0]}
        return self._run(_strong_graph, image_NCHW, fed)

    def _run(self, graph: Callable[..., Any], image_NCHW: Tensor, fed: dict[str, Any]) -> Tensor:
        """Feed, run, return; on CUDA all of it is queued, and nothing waits for the device.

        There DALI copies the images on the current stream. Shared memory it would read on a stream
        of its own, which does not wait for the current one.
        """
        on_cuda = self._device.type == "cuda"
        with torch.cuda.device(self._device) if on_cuda else nullcontext():
            if graph not in self._built:
                self._built[graph] = pipeline.pipeline_def(graph)(
                    shape=self._shape,
                    device="gpu" if on_cuda else "cpu",
                    batch_size=self._images_per_run,
                    num_threads=torch.get_num_threads(),
                    device_id=torch.cuda.current_device() if on_cuda else None,
                    prefetch_queue_depth=1,
                )
            stream = torch.cuda.current_stream() if on_cuda else None
            (output,) = self._built[graph].run(stream, **fed)
            return torch.from_dlpack(output.as_reshaped_tensor(list(image_NCHW.shape)))


def _slices(N: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, N, size)]


def _pixels(image_NCHW: Tensor) -> Any:
    """On the CPU an array: fed a tensor, DALI asks torch for a stream of CUDA."""
    return image_NCHW if image_NCHW.is_cuda else image_NCHW.numpy()


def _strong_sample(pixels: Any, draws: ViewDraws, shape: Shape) -> dict[str, Any]:
    """Images, which of them each family takes in each slot and its numbers, and the cutout.

    DALI takes no empty sequence: a family that no image drew gets the first one, for nothing.
    """
    C, H, W = shape
    fed: dict[str, Any] = {"image": pixels}
    place_N = np.arange(len(draws.op), dtype=np.int32)  # where each image's view is now
    value_N3 = views.op_values(draws.op, draws.magnitude)
    for slot, (op_N, value_N) in enumerate(zip(draws.op.T, value_N3.T, strict=True)):
        number_N, next_place_N, start = views.op_numbers(op_N, value_N), place_N.copy(), 0
        for family, name in enumerate(_FAMILIES):
            drawn_n = (_FAMILY_OF[op_N] == family).nonzero()[0]
            taken_n = drawn_n if len(drawn_n) else np.array([0])
            fed[f"{name} rows {slot}"] = place_N[taken_n]
            next_place_N[drawn_n] = start + np.arange(len(drawn_n))
            start += len(taken_n)
            if name == "geometric":
                matrix_n23 = views.affine_matrices(op_N[taken_n], value_N[taken_n], H, W)
                fed[f"{name} numbers {slot}"] = _float_maps(matrix_n23).repeat(C, axis=0)
            elif name not in _WITHOUT_NUMBERS:
                fed[f"{name} numbers {slot}"] = number_N[taken_n, None, None, None]
        place_N = next_place_N
    row_NH, column_NW = views.cutout_masks(draws.cutout, H, W)
    cut = {"row": row_NH[:, None, :, None], "column": column_NW[:, None, None]}
    return fed | cut | {"place": place_N}


def _float_maps(matrix_n23: np.ndarray) -> np.ndarray:
    """The maps of `views.affine_matrices` in float32, for pixels whose centres are at 0.5.

    DALI rounds a source coordinate down as well. Terms and partial sums are multiples of 2**-17
    and below 2**7, hence exact; the added 2**-17 keeps them off the edges of pixels. In images of
    up to `LARGEST_SIDE`, turned by up to 30 degrees, greater sums are of sources outside.
    """
    doubled_n23 = 2 * matrix_n23.astype(np.int64)
    doubled_n23[:, :, 2] += 1 - matrix_n23[:, :, :2].sum(2)
    return (doubled_n23 * 2.0**-17).astype(np.float32)


# --- Graphs, and ops: (uint8 image_nCHW, float32 number_n111, shape) -> uint8 image_nCHW ----------


def _weak_graph(shape: Shape, device: str) -> Any:
    image = _input("image", types.UINT8, device, layout="CHW")
    window = {"start": _input("offset", types.INT32, ndim=1), "shape": shape[1:], "axes": (1, 2)}
    image = fn.slice(image, **window, out_of_bounds_policy="reflect_101")
    return fn.flip(image, horizontal=_input("mirrored", types.INT32, ndim=0))


def _strong_graph(shape: Shape, device: str) -> Any:
    image = _input("image", types.UINT8, device, layout="FCHW")
    for slot in range(OPS_PER_VIEW):
        made = []
        for name, op in _FAMILIES.items():
            rows = _input(f"{name} rows {slot}", types.INT32, ndim=1)
            given = [fn.sequence_rearrange(image, new_order=rows)]
            if name not in _WITHOUT_NUMBERS:
                ndim = 3 if name == "geometric" else 4
                given.append(_input(f"{name} numbers {slot}", types.FLOAT, ndim=ndim))
            made.append(op(*given, shape))
        image = fn.cat(*made, axis=0)
    image = fn.sequence_rearrange(image, new_order=_input("place", types.INT32, ndim=1))
    row, column = (_input(name, types.UINT8, ndim=4) for name in ("row", "column"))
    grey = np.dot(views.CUTOUT_RGB, views.LUMA) + 0x8000 >> 16
    fill_C = np.array(views.CUTOUT_RGB if shape[0] == 3 else [grey], dtype=np.uint8)
    return image ^ (image ^ _constant(image, fill_C[None, :, None, None])) & row & column


def _input(name: str, dtype: Any, device: str = "cpu", **form: Any) -> Any:
    """What is fed by a name; DALI reads images on the CPU where they are, and copies the rest."""
    shared = name == "image" and device == "cpu"
    return fn.external_source(name=name, dtype=dtype, device=device, no_copy=shared, **form)


def _constant(like: Any, value: np.ndarray) -> Any:
    return types.Constant(value, device=like.device)


def _sum(data: Any, axes: list[int]) -> Any:
    return fn.reductions.sum(data, axes=axes, keep_dims=True)


def _bytes(value: Any) -> Any:
    return fn.cast(math.floor(value), dtype=types.UINT8)  # the cast alone rounds to the nearest


def _move(image: Any, matrix_Q23: Any, shape: Shape) -> Any:
    _, H, W = shape
    plane, matrix = fn.reshape(image, shape=(-1, H, W, 1), layout="FHWC"), fn.per_frame(matrix_Q23)
    moved = fn.warp_affine(plane, matrix=matrix, fill_value=0, interp_type=types.INTERP_NN)
    return fn.reshape(moved, shape=(-1, *shape), layout="FCHW")


def _blend(other: Any, image: Any, weight: Any) -> Any:
    return _bytes((image - other) * weight + other)


def _luma(image: Any, shape: Shape) -> Any:
    """PIL's conversion to grey, float32; no number here needs more than 24 bits."""
    weight_C = np.array(views.LUMA if shape[0] == 3 else [1 << 16], dtype=np.float32)
    total = _sum(image * _constant(image, weight_C[None, :, None, None]), [1])
    return math.floor(total * 2.0**-16 + 0.5)


def _contrast(image: Any, weight: Any, shape: Shape) -> Any:
    P = shape[1] * shape[2]
    total = fn.cast(_sum(_luma(image, shape), [2, 3]), dtype=types.INT32)
    return _blend(fn.cast((2 * total + P) // (2 * P), dtype=types.FLOAT), image, weight)


def _sharpness(image: Any, weight: Any, shape: Shape) -> Any:
    """The other image is smooth inside, and on the border, which PIL leaves alone, the same."""
    window = np.array(((1, 1, 1), (1, 5, 1), (1, 1, 1)), dtype=np.float32)
    inside_HW = np.pad(np.ones((shape[1] - 2, shape[2] - 2), dtype=np.float32), 1)
    total = fn.filter(image, _constant(image, window), dtype=types.FLOAT)
    change = math.floor(total * (1 / 13) + 0.5) - image
    return _blend(image + change * _constant(image, inside_HW[None, None]), image, weight)


def _auto_contrast(image: Any, shape: Shape) -> Any:
    """In float64 as in PIL; a flat channel is scaled by 1 from 0."""
    low = fn.reductions.min(image, axes=[2, 3], keep_dims=True)
    high = fn.reductions.max(image, axes=[2, 3], keep_dims=True)
    flat = high == low
    scale = (255 - 254 * flat) / (fn.cast(high - low, dtype=types.FLOAT64) + flat)
    return _bytes(image * scale - low * scale * (high != low))


def _equalize(image: Any, shape: Shape) -> Any:
    """PIL's table, made and read without a gather, which DALI has not on both devices.

    A level is its block of eight and its place in there, and the place has a byte of a 64-bit
    word: eight counters, or eight entries of the table, are added up and picked as one number.
    """
    (_, H, W), P, K, L = shape, shape[1] * shape[2], 32, 8
    level_QP1 = fn.reshape(image, shape=(-1, P, 1), layout="")
    here_QPK = level_QP1 >> 3 == _constant(image, np.arange(K, dtype=np.uint8)[None, None])
    bit_QP1 = (~level_QP1 & 7) * types.Constant(8, dtype=types.INT64)
    bit_L = _constant(image, np.arange(56, -8, -8, dtype=np.int32))
    # A pixel counts for its place and all before it. A row has too few pixels to fill a byte.
    counter_QP1 = types.Constant(0x0101010101010101, dtype=types.INT64) << bit_QP1
    row_sum = _sum(fn.reshape(here_QPK * counter_QP1, shape=(-1, W, K)), [1])
    count = _sum(fn.reshape(row_sum, shape=(-1, H, K, 1)) >> bit_L & 255, [1])
    count_QKL = fn.reshape(count, shape=(-1, K, L))
    block_Q1K = fn.reshape(count_QKL[:, :, 0:1], shape=(-1, 1, K))
    later_1KK = _constant(image, np.triu(np.ones((1, K, K), dtype=np.int32), 1))
    below_QKL = P - count_QKL - _sum(block_Q1K * later_1KK, [2])
    step_Q11 = fn.reductions.max(below_QKL * (below_QKL < P), axes=[1, 2], keep_dims=True) // 255
    table_QKL = math.min((step_Q11 // 2 + below_QKL) // math.max(step_Q11, 1), 255)
    word_Q1K = fn.reshape(_sum(table_QKL << bit_L, [2]), shape=(-1, 1, K))
    new_QP1 = _sum(here_QPK * word_Q1K, [2]) >> bit_QP1 & 255
    new_QP1 = level_QP1 + (step_Q11 > 0) * (new_QP1 - level_QP1)
    return fn.reshape(fn.cast(new_QP1, dtype=types.UINT8), shape=(-1, *shape), layout="FCHW")


_FAMILIES: dict[str, Callable[..., Any]] = {
    "geometric": _move,
    "Brightness": lambda image, weight, _: _bytes(image * weight),
    "Color": lambda image, weight, shape: _blend(_luma(image, shape), image, weight),
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": lambda image, kept_bits, _: image & fn.cast(kept_bits, dtype=types.UINT8),
    "Solarize": lambda image, limit, _: image ^ (image >= limit) * types.Constant(255, types.UINT8),
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Identity": lambda image, _: image,
}
_WITHOUT_NUMBERS = ("AutoContrast", "Equalize", "Identity")
_FAMILY_OF = np.array([0 if name in GEOMETRIC else list(_FAMILIES).index(name) for name in OPS])
