"""Where independent pieces of work run: here, in processes of this machine, or on a Ray cluster.

Pieces are functions of what all of them share and of one item, and know nothing of each other, so
that an answer is the same to the last bit wherever they ran: each computes on one thread, and
results come back in the order of the items.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from logel.data.limits import optional
from logel.errors import OptionError, WorkerError
from logel.threads import ONE_THREAD, limited_threads

POLL_SECONDS = 0.1
"""How long Ctrl-C may go unnoticed while no piece of work finishes."""
# Pieces that wait beside those that run, for each worker: none has to wait for the next one.
_AHEAD = 2
# How often Ray runs a piece again whose worker or node died.
_RETRIES = 3
Work = Callable[[Any, Any], Any]
"""Maps what all pieces share and an item to a result. Sent to other processes, so at the top level
of a module, or a `functools.partial` of such."""


class Executor(ABC):
    """Runs pieces of work, see `Workers`; in a piece of work itself, one after the other."""

    n: int = 1

    def __reduce__(self) -> tuple[type[Serial], tuple[()]]:
        return Serial, ()

    def map(self, work: Work, items: Iterable[Any], common: Any = None) -> Iterator[Any]:
        """Results of `work(common, item)` in the order of the items, some of them ahead."""
        handle, waiting = self._shared(common), deque[Any]()
        try:
            for item in items:
                waiting.append(self._submit(work, handle, item))
                if len(waiting) >= _AHEAD * self.n:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            self._cancel(waiting)

    def tree(
        self,
        work: Work,
        items: Sequence[Any],
        parents: Sequence[int | None],
        common: Any = None,
        *,
        handed: Callable[[Any], Any],
    ) -> Iterator[Any]:
        """Like `map`, for `work(common, (item, what its parent hands on or None))`.

        Args:
            work: What is to be done.
            items: Of all pieces.
            parents: Index of each item's parent, which comes before it, or None.
            common: What all pieces share.
            handed: What of a result is handed on.
        """
        handle, results = self._shared(common), dict[int, Any]()
        running: dict[Any, int] = {}
        children: dict[int | None, list[int]] = {}
        for i, parent in enumerate(parents):
            children.setdefault(parent, []).append(i)

        def start(parent: int | None) -> None:
            for i in children.get(parent, ()):
                given = None if parent is None else handed(results[parent])
                running[self._submit(work, handle, (items[i], given))] = i

        told = 0
        try:
            start(None)
            while told < len(items):
                done = self._first(running)
                index = running.pop(done)
                results[index] = self._result(done)
                start(index)
                while told in results:
                    yield results[told]
                    told += 1
        finally:
            self._cancel(running)

    @abstractmethod
    def _shared(self, common: Any) -> Any:
        """What pieces are told of where to find what they share."""

    @abstractmethod
    def _submit(self, work: Work, handle: Any, item: Any) -> Any:
        """Begin a piece of work."""

    @abstractmethod
    def _result(self, running: Any) -> Any:
        """What a piece of work came to, once it is done; what it raised is raised."""

    @abstractmethod
    def _first(self, running: Iterable[Any]) -> Any:
        """One of several pieces that is done."""

    @abstractmethod
    def _cancel(self, running: Iterable[Any]) -> None:
        """Nobody waits for these any more."""


class Serial(Executor):
    """One piece after the other, in this process."""

    def map(self, work: Work, items: Iterable[Any], common: Any = None) -> Iterator[Any]:
        """See `Executor.map`; nothing is done ahead."""
        return (work(common, item) for item in items)

    def _shared(self, common: Any) -> Any:
        return common

    def _submit(self, work: Work, handle: Any, item: Any) -> Any:
        return _Later(work, handle, item)

    def _result(self, running: Any) -> Any:
        return running()

    def _first(self, running: Iterable[Any]) -> Any:
        return next(iter(running))

    def _cancel(self, running: Iterable[Any]) -> None:
        pass


class _Later:
    """A piece of work that is done when its result is asked for."""

    def __init__(self, work: Work, common: Any, item: Any) -> None:
        self._given = work, common, item

    def __call__(self) -> Any:
        work, common, item = self._given
        return work(common, item)


SERIAL = Serial()


@dataclass(frozen=True)
class Workers:
    """How many pieces of work run at a time, and where.

    Attributes:
        n: Processes of this machine, each with one thread; 1 computes in this process. On Ray, the
            CPUs of the cluster that is started where there is none.
        ray: Address of a Ray cluster ("auto" for one that is running, "local" to start one), whose
            CPUs are all used; None for processes of this machine.
    """

    n: int = 1
    ray: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise OptionError(f"workers must be a whole number from 1 on, but is {self.n!r:.40}")

    @contextlib.contextmanager
    def open(self) -> Iterator[Executor]:
        """Start them, and stop them at the end."""
        if self.ray is not None:
            ray = optional("ray", "ray")
            with ray_cluster(ray, jobs=self.n, address=self.ray):
                yield _OnRay(ray)
        elif self.n == 1:
            yield SERIAL
        else:
            with contextlib.ExitStack() as stack:
                yield _Processes(self.n, stack)


def opened(workers: int | Workers | Executor) -> contextlib.AbstractContextManager[Executor]:
    """As many workers as are asked for; those who are at work already go on afterwards."""
    if isinstance(workers, Executor):
        return contextlib.nullcontext(workers)
    return (workers if isinstance(workers, Workers) else Workers(workers)).open()


# What the pieces that a process worked on last have in common, by where it was found.
_found: dict[str, Any] = {}


def _work_beside(work: Work, place: str, item: Any) -> Any:
    """A piece of work in another process of this machine."""
    import cloudpickle

    if place not in _found:
        _found.clear()
        # Written by the process that started this one, into a folder of its own.
        _found[place] = cloudpickle.loads(Path(place).read_bytes())
    with limited_threads(1):
        return work(_found[place], item)


class _Processes(Executor):
    """Processes of this machine, started when they are first needed."""

    def __init__(self, n: int, stack: contextlib.ExitStack) -> None:
        self.n = n
        self._stack, self._numbers = stack, itertools.count()
        self._pool: Any = None
        self._folder: Path | None = None

    def _shared(self, common: Any) -> str:
        import cloudpickle

        if self._folder is None:
            # Nobody else may read or write there.
            made = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="logel-"))
            self._folder = Path(made)
        place = self._folder / str(next(self._numbers))
        place.write_bytes(cloudpickle.dumps(common))
        return str(place)

    def _submit(self, work: Work, handle: Any, item: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = process_pool(self.n)
            self._stack.callback(lambda: self._pool.shutdown(kill_workers=True))
        with blocked_interrupt():
            return self._pool.submit(_work_beside, work, handle, item)

    def _result(self, running: Any) -> Any:
        with deferred_interrupt() as interrupted:
            while not wait([running], timeout=POLL_SECONDS).done:
                if interrupted():
                    raise KeyboardInterrupt
        try:
            return running.result()
        except BrokenExecutor:
            raise WorkerError(
                "a worker process died, most likely for want of memory: use fewer workers"
            ) from None

    def _first(self, running: Iterable[Any]) -> Any:
        with deferred_interrupt() as interrupted:
            while not (
                done := wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done
            ):
                if interrupted():
                    raise KeyboardInterrupt
        return next(iter(done))

    def _cancel(self, running: Iterable[Any]) -> None:
        for future in running:
            future.cancel()


def _work_on_ray(work: Work, common: Any, item: Any) -> Any:
    with limited_threads(1):
        return work(common, item)


class _OnRay(Executor):
    """A Ray cluster; pieces whose worker or node dies are run again."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.n = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_work_on_ray)

    def _shared(self, common: Any) -> Any:
        return self._ray.put(common)

    def _submit(self, work: Work, handle: Any, item: Any) -> Any:
        return self._remote.remote(work, handle, item)

    def _result(self, running: Any) -> Any:
        try:
            return self._ray.get(running)
        except self._ray.exceptions.RayTaskError as error:
            # Ray wraps what a piece raised in an error of its own.
            cause = getattr(error, "cause", None)
            raise (error if cause is None else cause) from None
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"a piece of work was lost on the Ray cluster {_RETRIES + 1} times: {error}"
            ) from None

    def _first(self, running: Iterable[Any]) -> Any:
        return self._ray.wait(list(running), num_returns=1)[0][0]

    def _cancel(self, running: Iterable[Any]) -> None:
        for reference in running:
            self._ray.cancel(reference, force=True)


def process_pool(n: int) -> Any:
    """Processes with one thread each, which ignore Ctrl-C and do not outlive this one."""
    # Importing it takes a fifth of a second, and most answers need no pool.
    from joblib.externals.loky import ProcessPoolExecutor

    return ProcessPoolExecutor(
        n, env=ONE_THREAD, initializer=_start_worker, initargs=(os.getpid(),)
    )


def _start_worker(driver: int) -> None:
    """Prepare a loky worker to follow its driver: it ignores Ctrl-C and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver gets it too, and decides

    def follow() -> None:
        # Orphans get another parent, but nobody tells them.
        while os.getppid() == driver:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
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


@contextlib.contextmanager
def blocked_interrupt() -> Iterator[None]:
    """Let a process started meanwhile inherit a blocked Ctrl-C, until it ignores it by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ray_cluster(ray: Any, *, jobs: int, address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one; leave alone what the caller has connected to."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    # A study sends nothing home unless the user says so.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    ray.init(
        address=address,
        runtime_env={"env_vars": ONE_THREAD},
        logging_level=logging.ERROR,
        log_to_driver=False,
        **local,
    )
    try:
        yield
    finally:
        ray.shutdown()
