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
import re
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from logel.data.cache import Cache
from logel.data.limits import FilePath, optional
from logel.errors import OptionError, WorkerError
from logel.interrupts import blocked_interrupt, deferred_interrupt
from logel.threads import ONE_THREAD, limited_threads

_STOP_SECONDS = 5.0
POLL_SECONDS = 0.1
"""How long Ctrl-C may go unnoticed while no piece of work finishes."""
# Pieces that wait beside those that run, for each worker: none has to wait for the next one.
_AHEAD = 2
# How often Ray runs a piece again whose worker or node died; of those that stand by themselves only
# once: one that keeps killing its worker is to be told.
_RETRIES, _APART_RETRIES = 3, 1
# Pieces in flight on Ray that stand by themselves: for each CPU, and so that a cluster grows that
# grows on demand.
_FOR_EACH, _FEWEST_IN_FLIGHT = 2, 64
# Things that pieces share which are kept where they were put, here and by each process.
_KEPT = 2
Work = Callable[[Any, Any], Any]
"""Maps what all pieces share and an item to a result. Sent to other processes, so at the top level
of a module, or a `functools.partial` of such."""


class Executor(ABC):
    """Runs pieces of work, see `Workers`; in a piece of work itself, one after the other.

    What pieces share must not change: passed again, the very same object is not sent again.
    """

    n: int = 1
    here: bool = False
    """Whether all is done in this process, when it is asked for."""
    cache: Cache | None = None
    """What was done before, for those who keep what they did."""

    def __reduce__(self) -> tuple[type[Serial], tuple[Cache | None]]:
        return Serial, (self.cache,)

    def start(self, work: Work, item: Any, common: Any = None) -> Callable[[], Any]:
        """Begin one piece; its result is waited for, or made here, when what is returned is called.

        What is begun ahead and never asked for costs nothing where there is one worker.
        """
        return partial(self._result, self._submit(work, self._shared(common), item))

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

    def _first(self, running: Collection[Any]) -> Any:
        """One of several pieces that is done."""
        with deferred_interrupt() as interrupted:
            while (done := self._done(running)) is None:
                if interrupted():
                    raise KeyboardInterrupt
        return done

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
    def _done(self, running: Collection[Any]) -> Any:
        """One of several pieces that is done; None if none is, after a moment."""

    @abstractmethod
    def _cancel(self, running: Iterable[Any]) -> None:
        """Nobody waits for these any more."""


class Serial(Executor):
    """One piece after the other, in this process."""

    here = True

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache

    def map(self, work: Work, items: Iterable[Any], common: Any = None) -> Iterator[Any]:
        """See `Executor.map`; nothing is done ahead."""
        return (work(common, item) for item in items)

    def _shared(self, common: Any) -> Any:
        return common

    def _submit(self, work: Work, handle: Any, item: Any) -> Any:
        return _Later(work, handle, item)

    def _result(self, running: Any) -> Any:
        return running()

    def _done(self, running: Collection[Any]) -> Any:
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
        cache: A folder of your own, that all of them see, in which cloned stages, replayed updates
            and fitted rules are kept: who is interrupted, or asks again, goes on from there.
    """

    n: int = 1
    ray: str | None = None
    cache: FilePath | Cache | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise OptionError(f"workers must be a whole number from 1 on, but is {self.n!r:.40}")

    @contextlib.contextmanager
    def open(self) -> Iterator[Executor]:
        """Start them, and stop them at the end."""
        kept = self.cache
        kept = kept if kept is None or isinstance(kept, Cache) else Cache.at(kept)
        with contextlib.ExitStack() as stack:
            run: Executor = Serial()
            if self.ray is not None:
                ray = optional("ray", "ray")
                stack.enter_context(ray_cluster(ray, jobs=self.n, address=self.ray))
                run = _OnRay(ray)
            elif self.n > 1:
                run = _Processes(self.n, stack)
            run.cache = kept
            yield run

    def outcomes(
        self, work: Work, items: Iterable[Any]
    ) -> Generator[tuple[Any, Any] | None, None, None]:
        """(item, result) of pieces that stand by themselves, as they are done.

        The result is a WorkerError if the piece took its worker along, which disturbs no other
        piece: all are run by processes of their own, a single one at a time as well. None is
        yielded now and then, so that the caller can look up.
        """
        with contextlib.ExitStack() as stack:
            lanes: list[Executor]
            if self.ray is None:
                lanes = [_Processes(1, stack) for _ in range(self.n)]
            else:
                ray = optional("ray", "ray")
                stack.enter_context(ray_cluster(ray, jobs=self.n, address=self.ray))
                cluster = _OnRay(ray, retries=_APART_RETRIES)
                lanes = [cluster] * max(_FEWEST_IN_FLIGHT, _FOR_EACH * cluster.n)
            yield from _outcomes(lanes, work, iter(items))


def _outcomes(
    lanes: Sequence[Executor], work: Work, waiting: Iterator[Any]
) -> Generator[tuple[Any, Any] | None, None, None]:
    running: dict[Any, tuple[Executor, Any]] = {}

    def submit(lane: Executor) -> None:
        for item in itertools.islice(waiting, 1):
            running[lane._submit(work, lane._shared(None), item)] = lane, item

    try:
        for lane in lanes:
            submit(lane)
        while running:
            done = lanes[0]._done(running)
            if done is None:
                yield None
                continue
            lane, item = running.pop(done)
            try:
                result = lane._result(done)
            except WorkerError as error:
                result = error
            submit(lane)  # before the caller works on it, so that the worker need not wait
            yield item, result
    finally:
        lanes[0]._cancel(running)


def opened(workers: int | Workers | Executor) -> contextlib.AbstractContextManager[Executor]:
    """As many workers as are asked for; those who are at work already go on afterwards."""
    if isinstance(workers, Executor):
        return contextlib.nullcontext(workers)
    return (workers if isinstance(workers, Workers) else Workers(workers)).open()


# What the pieces that a process worked on lately have in common, by where it was found.
_found: dict[str, Any] = {}


def _work_beside(work: Work, place: str, item: Any) -> Any:
    """A piece of work in another process of this machine."""
    import cloudpickle

    if place not in _found:
        while len(_found) >= _KEPT:
            del _found[next(iter(_found))]
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
        self._put = _Put(self._write)

    def _shared(self, common: Any) -> str:
        return str(self._put(common))

    def _write(self, common: Any) -> str:
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
            pool = self._pool = process_pool(self.n)
            self._stack.callback(lambda: pool.shutdown(kill_workers=True))
        with blocked_interrupt(), self._told():
            return self._pool.submit(_work_beside, work, handle, item)

    def _result(self, running: Any) -> Any:
        with deferred_interrupt() as interrupted:
            while not wait([running], timeout=POLL_SECONDS).done:
                if interrupted():
                    raise KeyboardInterrupt
        with self._told():
            return running.result()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenExecutor as error:
            self._pool = None  # others can be started
            codes = re.search(r"exit codes of the workers are \{(.*?)\}", str(error))
            raise WorkerError(
                f"a worker process died ({codes[1] if codes else 'nobody knows of what'}), most "
                "likely for want of memory: use fewer workers"
            ) from None

    def _done(self, running: Collection[Any]) -> Any:
        done = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done
        return next(iter(done), None)

    def _cancel(self, running: Iterable[Any]) -> None:
        waiting = [future for future in running if not future.cancel()]
        # loky 3.6 fails when it is stopped before its thread has taken up the last call.
        deadline = time.monotonic() + _STOP_SECONDS
        while any(not (f.running() or f.done()) for f in waiting) and time.monotonic() < deadline:
            time.sleep(0.001)


class _Put:
    """Puts what pieces share where they find it; the last few things once."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put, self._kept = put, deque[tuple[Any, Any]](maxlen=_KEPT)

    def __call__(self, common: Any) -> Any:
        for known, place in self._kept:
            if known is common:
                return place
        self._kept.append((common, self._put(common)))
        return self._kept[-1][1]


def _work_on_ray(work: Work, common: Any, item: Any) -> Any:
    with limited_threads(1):
        return work(common, item)


class _OnRay(Executor):
    """A Ray cluster; pieces whose worker or node dies are run again."""

    def __init__(self, ray: Any, *, retries: int = _RETRIES) -> None:
        self._ray, self._retries = ray, retries
        self.n = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=retries)(_work_on_ray)
        self._put = _Put(ray.put)

    def _shared(self, common: Any) -> Any:
        return self._put(common)

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
                f"a piece of work was lost on the Ray cluster {self._retries + 1} times: "
                f"{type(error).__name__}: {error}"
            ) from None

    def _done(self, running: Collection[Any]) -> Any:
        done, _ = self._ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
        return next(iter(done), None)

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
