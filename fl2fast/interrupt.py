"""Ctrl-C between two steps: the first asks a run to stop there, a second one leaves at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130
NOTICE = b"\nfl2fast: stopping after this step; once more to leave at once\n"

_asked = threading.Event()


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and did; the message, if any, says how to go on."""


def stop_if_asked() -> None:
    """Called between steps, on every thread that takes them."""
    if _asked.is_set():
        raise Interrupted


@contextmanager
def stopping_between_steps() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM end the run with `Interrupted` once the current step is done.

    Signals belong to the main thread; on another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked.clear()
    before = {number: signal.signal(number, _ask) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


def _ask(number: int, frame: FrameType | None) -> None:
    if _asked.is_set():
        os._exit(EXIT_CODE)  # nothing may stand in the way; files are whole at any moment
    _asked.set()
    with suppress(OSError):  # nobody may be listening any more
        os.write(2, NOTICE)  # print could be what was interrupted
