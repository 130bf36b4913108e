"""Where things that can be made again are kept."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder for fl2fast; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fl2fast"
