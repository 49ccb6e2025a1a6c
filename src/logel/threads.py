"""How many threads the numerical libraries may use while we compute: one.

Inference solves very many small systems, and threads wait for each other longer than they compute:
on two busy cores eight stages of the gridworld took 74 s of processor time with the libraries' own
number of threads, 1.1 s with one. Nor do networks profit, ten stages of 20,000 steps: 1 to 4 s
on one thread, 7 to 47 s on two with known policies, 8 to 19 s and over 150 s with cloned ones.
That is a machine with other work; on one without, the environment variable LOGEL_THREADS allows
more, and `benchmarks/threads.py` tells whether it pays.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from threadpoolctl import ThreadpoolController

from logel.errors import OptionError

# For processes yet to start: the numerical libraries read these when they load.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)

# BLAS has one limit for the whole process. Were two Python threads to set it, the second would take
# the first one's limit for the user's own and leave that behind.
_blas_is_ours = threading.RLock()


@contextmanager
def limited_threads(n: int | None = None) -> Iterator[None]:
    """Compute with at most n threads; the libraries get back what they had, also after an error.

    Serves as a decorator, too. A limit that is lower already, the user's or one around this one,
    stays. Of Python threads that compute at the same time the first limits BLAS for all.

    Args:
        n: Threads allowed; by default what LOGEL_THREADS says, or else 1. With more than one the
            last bits of a result may differ, because sums are split.
    """
    allowed = _allowed() if n is None else n
    with ExitStack() as limits:
        limits.enter_context(_limited_torch(allowed))
        if _blas_is_ours.acquire(blocking=False):
            limits.callback(_blas_is_ours.release)
            limits.enter_context(_limited_blas(allowed))
        yield


def _allowed() -> int:
    said = os.environ.get("LOGEL_THREADS", "").strip() or "1"
    if not said.isdecimal() or int(said) < 1:
        raise OptionError(f"LOGEL_THREADS is a number of threads, 1 or more, but says {said!r}")
    return int(said)


@contextmanager
def _limited_blas(n: int) -> Iterator[None]:
    # Looked up every time (about a millisecond): libraries may have been loaded meanwhile.
    loaded = ThreadpoolController()
    above = [
        library.filepath
        for library in loaded.lib_controllers
        if library.user_api == "blas" and library.num_threads > n
    ]
    with loaded.select(filepath=above).limit(limits=n):
        yield


@contextmanager
def _limited_torch(n: int) -> Iterator[None]:
    torch = sys.modules.get("torch")  # loading it takes seconds, and without it nothing uses it
    before = torch.get_num_threads() if torch else 0
    if torch is None or before <= n:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
