"""What this program runs on: half of every number's meaning."""

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("fl2fast", "torch", "numpy", "nvidia-dali-cuda120", "nvidia-dali-cuda130")


def environment(device: str) -> dict[str, Any]:
    """Machine, versions and date: what a number needs beside it."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device) if device.startswith("cuda") else "cpu",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: v for name in PACKAGES if (v := version(name)) is not None},
    }


def device_name(device: str | torch.device) -> str:
    """The make of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if str(device).startswith("cuda") else cpu_name()


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
