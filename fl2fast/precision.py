"""Number formats of convolutions and matrix products; parameters and sums keep float32.

fp32  float32 throughout
tf32  inputs rounded to 10 bits of mantissa by the tensor cores of a GPU
bf16  inputs and activations in bfloat16, through autocast
"""

import subprocess
import sys
from functools import cache

import torch

from fl2fast.errors import UsageError

_PROBE = """
import torch, torch.nn.functional as F
x = torch.ones(2, 16, 8, 8, dtype=torch.bfloat16)
F.conv2d(x, torch.ones(16, 16, 3, 3, dtype=torch.bfloat16))
torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
"""


def check_precision(precision: str, dtype: str, device: torch.device) -> None:
    """Refuse what this device cannot do."""
    if precision != "fp32" and dtype != "float32":
        raise UsageError(f"precision {precision!r} is for dtype float32, not {dtype}: drop one")
    if precision == "tf32" and device.type != "cuda":
        raise UsageError(
            f"precision 'tf32' needs a GPU's tensor cores, not device {str(device)!r}: use fp32"
        )
    if precision == "bf16" and device.type == "cpu" and not cpu_has_bf16():
        raise UsageError(
            "precision 'bf16' kills the process on this CPU, which announces instructions that it "
            "does not have: use fp32"
        )


@cache
def cpu_has_bf16() -> bool:
    """Tried in another process: some virtual machines trap instructions they announce."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    return probe.returncode == 0


def set_precision(precision: str) -> None:
    """Tell cuBLAS and cuDNN, which would use TF32 in convolutions unasked."""
    allowed = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
