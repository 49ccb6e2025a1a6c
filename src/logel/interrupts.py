"""Ctrl-C while other processes are at work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed, which no longer raises by itself.

    Raised inside `concurrent.futures.wait`, a KeyboardInterrupt can leave a lock taken that the
    pool's threads need, and the driver then waits for them for ever (seen once in 30 stops). A
    second Ctrl-C does raise at once.
    """
    presses: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        if len(presses) > 1:
            signal.default_int_handler(number, frame)

    # Signals reach the main thread only, and a caller's own handler is the caller's business.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(presses)
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def blocked_interrupt() -> Iterator[None]:
    """Let a process started meanwhile inherit a blocked Ctrl-C, until it ignores it by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
