"""How long an inference will take and how much memory, before it starts.

Its own code runs on the first few stages, cut to some thousands of rows, and is timed phase by
phase; sizes and numbers of the other stages say by how much that grows. Paths of tables go through
rounds, and replayed learners through passages, whose numbers are the usual ones: there a plan can
be wrong by half.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.contents import stage_sizes
from logel.data.history import LearningHistory
from logel.data.limits import memory_budget
from logel.data.stage import Stage
from logel.errors import LogelError, one_line
from logel.inference.arguments import settled
from logel.inference.infer import Request, choose_method, infer_reward
from logel.inference.method import METHODS, Coordinates, Method
from logel.inference.path import Worlds, grounds
from logel.inference.replayed import course_of, learners_of, replay_of
from logel.inference.smooth import Start, fit_path, fit_random_walk
from logel.inference.watched import Watched
from logel.policies.base import Policy
from logel.policies.cloned_path import clone
from logel.policies.cloning import CloneConfig
from logel.replay.fates import Replay
from logel.replay.fit import lengths
from logel.replay.learner import Learner
from logel.threads import limited_threads
from logel.types import FeatureFunction
from logel.workers import Workers
from logel.worlds.known import KnownWorld

# Stages that are tried, also of families that may go through rounds, and rows of each: what is
# proportional to rows is seen on fewer.
_STAGES, _CONVEX_STAGES, _ROWS = 3, 6, 20_000
# Rounds by which a rule is timed; what accounts without a reward, and expected covariances, cost in
# rounds of the best rule.
_TIMED, _WITHOUT, _BESIDE = 3, 10, 2.5
# Copies that are timed, few and many; copies of a search for each feature and beside; how often all
# steps are replayed by the centre alone.
_FEW, _MANY, _CANDIDATES, _AGAIN = 4, 16, (4, 8), 3
# Seconds until processes have imported what they need, and what each holds then.
_STARTED, _EACH_PROCESS = 1.5, 400 * 2**20
# Copies of the largest stage that are held while it is worked on, in double precision.
_COPIES = 6
# Share of the memory budget that stages are kept at hand in.
_KEPT = 0.25


@dataclass(frozen=True)
class Phase:
    """A part of an inference.

    Attributes:
        name: As progress is reported.
        serial: Seconds that one process takes whatever the number of workers.
        parallel: Seconds of one core that can be shared out.
        longest: Of these, seconds that follow one upon the other.
    """

    name: str
    serial: float
    parallel: float = 0.0
    longest: float = 0.0

    def seconds(self, workers: int) -> float:
        """With so many workers."""
        return self.serial + max(self.parallel / workers, self.longest)


@dataclass(frozen=True)
class Plan:
    """What an inference will take.

    Attributes:
        method: By which it will go.
        phases: In their order.
        memory: Bytes of all processes at most.
        workers: At a time.
        took: Seconds that planning took.
        notes: What could not be tried.
    """

    method: str
    phases: tuple[Phase, ...]
    memory: int
    workers: int
    took: float
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """From beginning to end."""
        return sum(phase.seconds(self.workers) for phase in self.phases)

    def to_json(self) -> str:
        """As JSON."""
        phases = [
            {"name": phase.name, "seconds": phase.seconds(self.workers)} for phase in self.phases
        ]
        return json.dumps({**asdict(self), "phases": phases, "seconds": self.seconds}, indent=1)

    def summary(self) -> str:
        """A line for every phase, and for all."""
        told = [(phase.name, phase.seconds(self.workers)) for phase in self.phases]
        width = max(len(name) for name, _ in [*told, ("together", 0.0)])
        lines = [f"{name:<{width}}  {_time(s)}" for name, s in [*told, ("together", self.seconds)]]
        many = "one worker" if self.workers == 1 else f"{self.workers} workers"
        head = f"method {self.method}, {many}, memory up to {self.memory / 1e9:.2g} GB"
        return "\n".join([head, "", *lines, *(f"note: {note}" for note in self.notes)])


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:8.1f} s"
    return f"{seconds / 60:8.1f} min" if seconds < 7200 else f"{seconds / 3600:8.1f} h"


@limited_threads()
def plan_inference(
    history: LearningHistory,
    policy: Policy | None = None,
    *,
    gamma: float | None = None,
    method: str | Method = "default",
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    intervals: bool = True,
    seed: int = 0,
    learner: Learner | None = None,
    world: KnownWorld | Any = None,
    workers: int | Workers = 1,
) -> Plan:
    """How long `infer_reward` will take with the same arguments, and how much memory.

    Takes a second or two itself; some seconds where a single stage, or a round of a rule, does. On
    a Ray cluster times are those with as many workers of this machine's speed.

    Args:
        history: Of one learner.
        policy: See `infer_reward`, as for all that follows.
        gamma: The learner's discount factor.
        method: By which the reward is to be inferred.
        features: Of the reward, where the episodes carry none.
        use_parameters: Whether recorded parameters are used.
        intervals: Whether intervals are wanted.
        seed: Of everything random.
        learner: For "replay".
        world: What is known of the world.
        workers: How many processes will compute at a time.
    """
    began = time.perf_counter()
    policy, gamma = settled(history, policy, gamma, known=use_parameters)
    asked = Request(
        *(policy, gamma, method, features, use_parameters, intervals, seed, learner, world)
    )
    sample = _Sample.of(history, _CONVEX_STAGES if policy.convex else _STAGES)
    few = asked.watched(sample.history)
    whole = asked.watched(history)
    whole.__dict__["look"] = replace(few.look, n_rows=int(few.look.n_rows * sample.growth))
    name, chosen = choose_method(method, whole, learner)
    chosen = chosen if intervals else chosen.without_intervals(policy)
    notes: list[str] = []
    if chosen.coordinates is Coordinates.PATH and few.look.parameters is None:
        phases = _along_path(few, sample, chosen)
    elif chosen.coordinates is Coordinates.REPLAY:
        phases = [
            *_tried(few, sample, METHODS["mirror"], notes),
            *_replayed(few, len(history), chosen, learner),
        ]
    else:
        phases = _tried(few, sample, chosen, notes)
    n = workers.n if isinstance(workers, Workers) else workers
    if n > 1:
        phases.append(Phase("workers start", _STARTED))
    memory = _resident() + sample.held + _COPIES * sample.largest
    if n > 1:
        memory += n * (_EACH_PROCESS + _COPIES * sample.largest)
    took = time.perf_counter() - began
    return Plan(name, tuple(phases), int(memory), n, took, tuple(notes))


@dataclass(frozen=True)
class _Sample:
    """The first stages of a history, with their first episodes.

    Attributes:
        history: Of these alone.
        n_stages: Of the whole history.
        growth: Times as many rows as these have that the whole history has.
        read: Seconds that reading all stages once takes.
        held: Bytes of the stages that are kept at hand.
        largest: Bytes of the largest stage, in double precision.
    """

    history: LearningHistory
    n_stages: int
    growth: float
    read: float
    held: int
    largest: int

    @classmethod
    def of(cls, history: LearningHistory, n: int) -> _Sample:
        """Reads the first few stages."""
        n = min(n, len(history))
        began = time.perf_counter()
        stages = [history[t] for t in range(n)]
        read = (time.perf_counter() - began) / n * len(history)
        sizes = stage_sizes(history.source) or [float(stages[-1].n_steps)] * len(history)
        rows = sum(stage.n_steps for stage in stages) * sum(sizes) / sum(sizes[:n])
        cut = [_begun(stage) for stage in stages]
        numbers = sum(_n_numbers(stage) for stage in stages) / sum(s.n_steps for s in stages)
        largest = 8 * numbers * rows * max(sizes) / sum(sizes)
        held = min(sum(_n_bytes(s) for s in stages) / n * len(history), _KEPT * memory_budget())
        brief = replace(history.slice(0, n), source=tuple(cut))
        growth = rows / sum(stage.n_steps for stage in cut)
        return cls(brief, len(history), growth, read, int(held), int(largest))

    @property
    def stages(self) -> float:
        """Times as many stages as these that the whole history has."""
        return self.n_stages / len(self.history)


def _begun(stage: Stage) -> Stage:
    """A stage's first episodes, with so many rows that the others cost in proportion."""
    n = int(np.searchsorted(np.cumsum(stage.lengths), _ROWS)) + 1
    return stage if n >= stage.n_episodes else stage.take(np.arange(n))


def _arrays(stage: Stage) -> list[Any]:
    return [array for array in vars(stage).values() if isinstance(array, np.ndarray)]


def _n_numbers(stage: Stage) -> int:
    return sum(array.size for array in _arrays(stage))


def _n_bytes(stage: Stage) -> int:
    return sum(array.nbytes for array in _arrays(stage))


class _Clock:
    """Seconds of a core by what was reported at their end: others may be at work just now."""

    def __init__(self) -> None:
        self.last, self.spent = time.process_time(), dict[str, list[float]]()

    def __call__(self, what: str, done: int = 1, total: int = 1) -> None:
        now = time.process_time()
        self.spent.setdefault(what, []).append(now - self.last)
        self.last = now


def _resident() -> int:
    """Bytes that this process holds, where the system says."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return _EACH_PROCESS
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _tried(few: Watched, sample: _Sample, method: Method, notes: list[str]) -> list[Phase]:
    """The whole inference on a few stages."""
    clock = _Clock()
    try:
        infer_reward(
            *(few.history, few.policy),
            gamma=few.gamma,
            method=method,
            features=few.features,
            use_parameters=few.use_parameters,
            intervals=few.intervals,
            seed=few.seed,
            world=few.world,
            progress=clock,
        )
    except LogelError as error:
        notes.append(f"the first {len(few.history)} stages alone have no answer: {one_line(error)}")
    clock("solving")
    spent = clock.spent
    looking, solving = sum(spent.pop("reading", [])), sum(spent.pop("solving"))
    # Whoever cannot keep the stages at hand reads them for each of these.
    passes = 1 if sample.held < _KEPT * memory_budget() else len(spent) + 1
    phases = [Phase("reading", sample.read * passes + looking * sample.growth)]
    for name, seconds in spent.items():
        if name == "cloning":
            phases.append(_cloned(seconds, sample))
            continue
        parallel = sum(seconds) * (sample.growth if name != "intervals" else sample.stages)
        phases.append(Phase(name, 0.0, parallel, max(seconds) * sample.growth / sample.stages))
    # Half of it is the same for any number of stages, about.
    return [*phases, Phase("solving", solving * (1 + sample.stages) / 2)]


def _cloned(seconds: Sequence[float], sample: _Sample) -> Phase:
    """The first stage from nowhere, each of the others from where another ended."""
    larger = sample.growth / sample.stages
    first, *others = (larger * one for one in seconds)
    usual = float(np.mean(others)) if others else first
    return Phase("cloning", first, usual * (sample.n_stages - 1), 4 * usual)


def _along_path(few: Watched, sample: _Sample, method: Method) -> list[Phase]:
    """A few rounds of every rule on a few stages."""
    clock = _Clock()
    names, offset, basis = grounds(few, method)
    few = replace(few, offset=offset)
    worlds = Worlds(few, basis, few.look)
    clock("pooling")
    path = clone(
        few.history, few.policy, CloneConfig(holdout=0.0), progress=lambda t: clock("cloning")
    )
    pooling = sum(clock.spent["pooling"])
    rules = {name: worlds.rule(name, worlds.world) for name in names}
    walk = fit_random_walk(next(iter(rules.values())), start=Start(path.parameters))
    clock("walk")
    fits, rounds = {}, {}
    steps = max(sample.n_stages - 1, 1) / max(len(few.history) - 1, 1)
    for name, rule in rules.items():
        began = time.process_time()
        fits[name] = fit_path(rule.refreshed(walk.states), max_rounds=_TIMED, start=walk)
        rounds[name] = (time.process_time() - began) / fits[name].rounds * steps
    best = max(fits, key=lambda name: fits[name].evidence)
    twice = [name for name, rule in rules.items() if rule.second_start]
    fitting = _fitted(rounds, best, twice, method, few.intervals)
    fitting = replace(fitting, serial=sum(clock.spent["walk"]) * steps)
    phases = [
        Phase("reading", sample.read + 2 * pooling * sample.growth),
        _cloned(clock.spent["cloning"], sample),
        fitting,
    ]
    if few.intervals:
        n = worlds.n_groups()
        group = pooling * sample.growth + rounds[best]
        beside = _BESIDE * rounds[best]
        phases.append(Phase("intervals", 0.0, n * group + beside, max(group, beside / 2)))
    return phases


def _fitted(
    rounds: dict[str, float], best: str, twice: Sequence[str], method: Method, intervals: bool
) -> Phase:
    """Heats of the rules, whose rounds take so many seconds, and of accounts without a reward."""
    first, *others = (n for n, _ in method.heats)
    last, middle = others[-1] if others else 0, sum(others[:-1])
    each = list(rounds.values())
    total = (sum(each) + sum(rounds[name] for name in twice)) * first + sum(each) * middle
    # The last heat is for the best, and often for another.
    total += (rounds[best] + float(np.mean(each))) * last
    total += intervals * _WITHOUT * rounds[best]
    return Phase("rules", 0.0, total, rounds[best] * (first + middle + last))


def _replayed(few: Watched, n_stages: int, method: Method, learner: Learner | None) -> list[Phase]:
    """One update of few copies and of many, times how many are usual."""
    look = few.look
    assert look.parameters is not None
    course = course_of(few, replace(method, n_stages=1), look.parameters)
    one = learner if learner is not None else learners_of(few, course)[0][0]
    replay = replay_of(few, course, one, few.seed)
    q, m = len(replay.scale), min(n_stages - 1, method.n_stages)

    def update(n: int) -> float:
        weights = np.random.default_rng(0).standard_normal((n, q))
        return _timed(lambda: replay.passed(weights, [0] * (n - 1) + [1], 1, "timing"))

    update(1)
    few_copies, many = update(_FEW), update(_MANY)
    each = max((many - few_copies) / (_MANY - _FEW), 0.0)
    alone = max(few_copies - _FEW * each, 0.0)

    def phase(name: str, passages: Sequence[tuple[int, int]]) -> Phase:
        """Of (copies, steps)."""
        seconds = [(alone + n * each) * steps for n, steps in passages]
        groups = [_n_groups(replay, n) for n, _ in passages]
        longest = sum(s / g for s, g in zip(seconds, groups, strict=True))
        return Phase(name, 0.0, sum(seconds), longest)

    per_feature, beside = _CANDIDATES
    candidates = 2 * (q + 1) + method.n_fates
    searched = [(per_feature * (q + 1), 3), (2 * q + beside, min(m, 5) * 3), (8, min(m, 10))]
    farther = [(candidates, n) for n in [*(n for n in lengths(m) if n < m), m]]
    fitted = [*farther, *[(method.n_fates, m)] * _AGAIN]
    return [phase("first guesses", searched), phase("replaying", fitted)]


def _n_groups(replay: Replay, n: int) -> int:
    return max(1, int(n // replay.learner.together(replay.course.batches[0])))
