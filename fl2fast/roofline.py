"""How long ops would take on a GPU, by a roofline: a prediction that has never been measured.

An op takes as long as its arithmetic at EFFICIENCY times the published peak, or its traffic at
EFFICIENCY times the published bandwidth, or LAUNCH, whichever is longest. Every op is taken to read
its inputs from memory and to write its outputs there.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fl2fast.errors import UsageError
from fl2fast.profile import Op

EFFICIENCY = 0.5  # of both roofs; large convolutions reach it, small ones stay below
LAUNCH = 5e-6  # seconds: an op cannot be launched from Python much faster


class Gpu(NamedTuple):
    """Published dense peaks, TFLOP/s by number format, 0 where there is none; GB/s."""

    float64: float
    fp32: float
    tf32: float
    bf16: float
    bandwidth: float


GPUS = {
    "T4": Gpu(0.25, 8.1, 0, 0, 320),
    "V100": Gpu(7.8, 15.7, 0, 0, 900),
    "A100": Gpu(9.7, 19.5, 156, 312, 2039),
    "RTX3090": Gpu(0.56, 35.6, 35.6, 71, 936),
    "L4": Gpu(0.47, 30.3, 60, 121, 300),
    "RTX4090": Gpu(1.29, 82.6, 82.6, 165, 1008),
    "L40S": Gpu(1.43, 91.6, 183, 362, 864),
    "H100": Gpu(33.5, 66.9, 495, 989, 3350),
    "B200": Gpu(37, 75, 1125, 2250, 7700),
}


def find_gpus(names: Sequence[str]) -> dict[str, Gpu]:
    """The rows of these names; all, if none is named."""
    for name in names:
        if name not in GPUS:
            raise UsageError(f"unknown GPU {name!r}: choose {', '.join(GPUS)}")
    return {name: GPUS[name] for name in names or GPUS}


def seconds_on(gpu: Gpu, precision: str, ops: Iterable[Op]) -> float:
    """One op after the other."""
    flops, bandwidth = EFFICIENCY * getattr(gpu, precision) * 1e12, EFFICIENCY * gpu.bandwidth * 1e9
    size = 0.5 if precision == "bf16" else 1.0
    return sum(max(op.flops / flops, size * op.bytes / bandwidth, LAUNCH) for op in ops)
