"""Let a CPU run reuse the memory it frees."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Tell glibc not to hand large blocks back to the system after every step.

    By default each activation of some megabytes is mapped, faulted in page by page and unmapped
    again, at every step. Threads share one arena: one of their own could not hold a block of more
    than 64 MiB. Results do not change; memory that the process has once used stays with it.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
