"""From a learning history to reward weights: the order of things, for every method.

look    once at all stages: features, observations, sizes
path    the policies' parameters: known, or cloned
steps   what moved and along what, in the coordinates the method wants
found   weights and rates: a regression on the steps, or a smoother along the whole path
answer  status, notes, words, intervals
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from logel.data.contents import Kept
from logel.data.history import LearningHistory
from logel.data.settings import LearnerSettings
from logel.errors import IdentificationError, OptionError
from logel.inference.answer import Asked, CloneFacts, answer
from logel.inference.arguments import settled
from logel.inference.arrow import disorder, order_gain
from logel.inference.cohort import Cohort, Histories, infer_each, named_histories
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.extremes import in_words
from logel.inference.found import Found
from logel.inference.functions import find_weights, function_steps, words
from logel.inference.gauge import FAR_LEVEL, Gauge, check_movement
from logel.inference.group import GroupEstimate, group_estimate
from logel.inference.masked import allowing, allowing_all
from logel.inference.method import METHODS, Coordinates, Method
from logel.inference.parameters import ParameterSteps
from logel.inference.passes import basis_sums, stage_parameters
from logel.inference.path import find_along_path, path_applies
from logel.inference.replayed import find_by_replay, replay_applies
from logel.inference.shared import shared_estimate
from logel.inference.status import Status
from logel.inference.watched import Look, Watched, naming, unheard
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig
from logel.replay.learner import Learner
from logel.rules.functions import Basis, StateFeatures
from logel.rules.rates import Rates
from logel.threads import limited_threads
from logel.types import FeatureFunction, Progress
from logel.workers import SERIAL, Executor, Workers, opened
from logel.worlds.known import KnownWorld, known_world

__all__ = ["METHODS", "Method", "compare_groups", "infer_group", "infer_reward"]

logger = logging.getLogger(__name__)
_Outcome = tuple[Found, Gauge, Method, tuple[CloneFacts, ...] | None]


@limited_threads()
def infer_reward(
    history: LearningHistory | Histories,
    policy: Policy | None = None,
    *,
    gamma: float | None = None,
    method: str | Method = "default",
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    intervals: bool = True,
    seed: int = 0,
    learner: Learner | None = None,
    pool_world: bool = True,
    progress: Progress | None = None,
    world: KnownWorld | Any = None,
    workers: int | Workers | Executor = 1,
) -> RewardEstimate:
    """Recover the reward weights of a learner from its history, or those that several share.

    Identification: unless the history carries learning rates (and the rule has any), the weights
    are only known up to a positive factor and are returned with unit norm; `scale` in the estimate
    says which. See `RewardEstimate` for sign and gauge.

    Args:
        history: What was observed, at least two stages. Several histories, in a list or by name in
            a mapping, are of learners that share the weights: each has its own path, rates and kind
            of learning, and the answer says what each added to it (`RewardEstimate.learners`).
        policy: Family of the learner's policies (or of the clones that stand for them); by default
            what the history says, if it does: a network that was recorded, a table of numbered
            states.
        gamma: The learner's discount factor, in [0, 1); by default the one that was recorded.
        method: "default" takes "joint" for tabular and linear policies of moderate size, "two-step"
            for larger ones, "replay" for networks with known parameters whose learner is known
            too, and "mirror" for other networks; "paper" is exactly the paper's algorithm,
            "authors" what its experiments run; or a `Method` of your own.
        features: Maps (observations, actions, next_observations) to reward features (N, q); needed
            when the episodes carry none.
        use_parameters: Use the history's policy parameters if it has them, instead of cloning.
        intervals: Whether to compute intervals, clones' held-out fit and comparisons with learners
            that want nothing; False is faster. Several learners are weighed by how sure they are,
            so that theirs are computed all the same.
        seed: Chooses held-out episodes and starting points; the same seed gives the same estimate.
        learner: For "replay": the learner's own update, see `logel.replay.learner.OneByOne`, if it
            is not one that the history names.
        pool_world: Whether several learners live in one world, about which all of them tell; where
            the method has a model of the world.
        progress: Called with (what, done, total) during long work.
        world: What every action leads to, for tables and method "joint": a map of successors
            (S, A), probabilities (S, A, S) or sparse (S A, S), or a `KnownWorld`, which can say
            more. What is not given is counted.
        workers: How many processes compute at a time, or where on a cluster (`Workers`; opened
            once, they serve many answers). The answer is the same to the last bit.
    """
    policy, gamma = settled(history, policy, gamma, known=use_parameters)
    asked = Request(
        *(policy, gamma, method, features, use_parameters, intervals, seed, learner, world)
    )
    report = progress or unheard
    with opened(workers) as run:
        if isinstance(history, LearningHistory):
            found, gauge, facts = asked.one(asked.watched(history, report, run))
            return answer(found, gauge, facts)
        return shared_estimate(asked.several(history, pool_world, report, run))


@limited_threads()
def infer_group(
    histories: Histories,
    policy: Policy | None = None,
    *,
    gamma: float | None = None,
    method: str | Method = "default",
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    seed: int = 0,
    learner: Learner | None = None,
    pool_world: bool = True,
    progress: Progress | None = None,
    world: KnownWorld | Any = None,
    workers: int | Workers | Executor = 1,
) -> GroupEstimate:
    """Recover the weights of learners that resemble each other: a mean, a spread, and each one's.

    Learners stray from the group's mean, how far is estimated, and each one's weights are drawn
    towards the mean as far as its own history leaves room (partial pooling). Intervals of the mean
    speak of learners like these, not only of these.

    Args:
        histories: What was observed of each, in a list or by name in a mapping.
        policy: See `infer_reward`, as for all that follows.
        gamma: The learners' discount factor.
        method: How each is fitted.
        features: Of the reward, where the episodes carry none.
        use_parameters: Whether recorded parameters are used.
        seed: Of everything random.
        learner: For "replay".
        pool_world: Whether they live in one world.
        progress: Called with (what, done, total) during long work.
        world: What is known of the world or, if each has one of its own, of all of them.
        workers: How many processes fit learners at a time.
    """
    policy, gamma = settled(histories, policy, gamma, known=use_parameters)
    asked = Request(*(policy, gamma, method, features, use_parameters, True, seed, learner, world))
    with opened(workers) as run:
        return group_estimate(asked.several(histories, pool_world, progress or unheard, run))


@limited_threads()
def compare_groups(
    first: Histories,
    second: Histories,
    policy: Policy | None = None,
    *,
    gamma: float | None = None,
    names: tuple[str, str] = ("first", "second"),
    method: str | Method = "default",
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    seed: int = 0,
    learner: Learner | None = None,
    pool_world: bool = True,
    progress: Progress | None = None,
    world: KnownWorld | Any = None,
    workers: int | Workers | Executor = 1,
) -> Contrast:
    """How the weights of two groups differ; `Contrast.of` compares groups inferred before.

    Args:
        first: Histories of one group, as for `infer_group`.
        second: Histories of the other.
        policy: See `infer_reward`, as for all that follows.
        gamma: The learners' discount factor.
        names: What the groups are called.
        method: How each learner is fitted.
        features: Of the reward, where the episodes carry none.
        use_parameters: Whether recorded parameters are used.
        seed: Of everything random.
        learner: For "replay".
        pool_world: Whether all learners of both groups live in one world.
        progress: Called with (what, done, total) during long work.
        world: What is known of the world or, if each has one of its own, of all of them.
        workers: How many processes fit learners at a time.
    """
    groups = named_histories(first), named_histories(second)
    everyone = {
        f"{g}: {name}": h for g, one in zip(names, groups, strict=True) for name, h in one.items()
    }
    if len(everyone) < len(groups[0]) + len(groups[1]):
        raise OptionError(f"the groups need different names, not {names[0]!r} twice")
    policy, gamma = settled(everyone, policy, gamma, known=use_parameters)
    asked = Request(*(policy, gamma, method, features, use_parameters, True, seed, learner, world))
    with opened(workers) as run:
        cohort = asked.several(everyone, pool_world, progress or unheard, run)
    one, other = (group_estimate(cohort.called(f"{name}: ")) for name in names)
    return Contrast.of(one, other, names=names, seed=seed)


@dataclass(frozen=True)
class Request:
    """What is asked of every learner alike; see `infer_reward`."""

    policy: Policy
    gamma: float
    method: str | Method
    features: FeatureFunction | None
    use_parameters: bool
    intervals: bool
    seed: int
    learner: Learner | None
    world: KnownWorld | Any

    def watched(
        self, history: LearningHistory, report: Progress = unheard, run: Executor = SERIAL
    ) -> Watched:
        """A history as it is to be looked at."""
        if len(history) < 2:
            raise IdentificationError(
                f"the history has {len(history)} stage: at least two are needed to see the "
                "learner move"
            )
        if not isinstance(history.source, tuple):
            history = replace(history, source=Kept(history.source))
        history, policy, features = allowing(history, self.policy, self.features)
        return Watched(
            *(history, policy, self.gamma, features, self.use_parameters),
            *(self.intervals, self.seed, report),
            world=None if self.world is None else known_world(self.world, policy)[0],
            run=run,
        )

    def one(self, watched: Watched) -> tuple[Found, Gauge, Asked]:
        """What one history shows."""
        contradicted = _contradicted(watched)
        if "look" not in watched.__dict__:
            watched = replace(watched, cloning=self._cloning(watched))
        name, chosen = choose_method(self.method, watched, self.learner)
        if watched.world is not None and chosen.coordinates is not Coordinates.PATH:
            raise OptionError(f"a given world is used by method 'joint', not by '{name}'")
        policy = watched.policy
        family, d = type(policy).__name__, policy.n_parameters
        stages = len(watched.history)
        logger.info("method %s: %d stages, %s with %d parameters", name, stages, family, d)
        chosen = chosen if self.intervals else chosen.without_intervals(policy)
        with in_words(watched.extremes.furthest):
            look = watched.look
        ways: dict[Coordinates, Callable[[Watched, Look, Method], _Outcome]] = {
            Coordinates.PARAMETERS: _in_parameters,
            Coordinates.FUNCTIONS: _in_functions,
            Coordinates.PATH: _along_path,
            Coordinates.REPLAY: partial(_by_replay, learner=self.learner),
        }
        with in_words(watched.extremes.furthest):
            found, gauge, used, clones = ways[Coordinates(chosen.coordinates)](
                watched, look, chosen
            )
        notes = (*look.moments.offset_notes(look.names, centred=used.centres), *look.unusual)
        complete = watched.history.complete
        facts = Asked(
            *(name, used, self.gamma, self.seed, self.intervals, look.names, complete, clones),
            *(notes, contradicted, watched.extremes.furthest()),
        )
        return found, gauge, facts

    def _cloning(self, watched: Watched) -> CloneConfig | None:
        """How stages are cloned as they are looked at, where that is settled before.

        Several workers clone later: a stage has to wait for others, and reading should not.
        """
        convex, default = watched.policy.convex, self.method == "default"
        method = "mirror" if default else self.method
        chosen = Method.named(method) if isinstance(method, str) else method
        if not watched.run.here or chosen.coordinates is Coordinates.PATH:
            return None
        if watched.run.cache is not None:
            return None  # which is asked for clones one by one
        if default and convex:
            return None  # "joint", if there are few enough rows, clones otherwise
        return (chosen if self.intervals else chosen.without_intervals(watched.policy)).clone

    def several(
        self, histories: Histories, pool_world: bool, report: Progress, run: Executor
    ) -> Cohort:
        """What each of several histories shows."""
        named = named_histories(histories)
        policy = allowing_all(named, self.policy) if pool_world else self.policy
        # They are weighed by how sure they are.
        sure = replace(self, policy=policy, intervals=True)
        cohort = infer_each(
            named,
            sure.watched,
            sure.one,
            pool_world=pool_world,
            report=report,
            run=run,
        )
        return replace(cohort, intervals=self.intervals)


def _contradicted(watched: Watched) -> tuple[str, ...]:
    """What of the data the given world calls impossible; refused if that is not tolerated."""
    if watched.world is None:
        return ()
    given, table = known_world(watched.world, watched.policy)
    note = given.check(watched.stages(), table)
    return () if note is None else (note,)


def choose_method(
    method: str | Method, watched: Watched, learner: Learner | None
) -> tuple[str, Method]:
    if not isinstance(method, str):
        return "custom", method
    if method != "default":
        return method, Method.named(method)
    name = "two-step" if watched.policy.convex else "mirror"
    if path_applies(watched):
        name = "joint"
    elif learner is not None or replay_applies(watched):
        name = "replay"
    return f"default ({name})", METHODS[name]


def _along_path(watched: Watched, look: Look, method: Method) -> _Outcome:
    """Path, weights and rule together."""
    found, gauge = find_along_path(watched, look, method)
    return found, gauge, method, None


def _by_replay(watched: Watched, look: Look, method: Method, learner: Learner | None) -> _Outcome:
    """Policies move as the learner's own code moves them."""
    parameters, path = stage_parameters(watched, look, method)
    look = replace(look, cloned=path)  # they are the same for both
    other, gauge, _, _ = _in_functions(watched, look, METHODS["mirror"])
    found = find_by_replay(watched, method, parameters, gauge, other, learner)
    if found.rule == "replay":
        # What Jacobians hardly tell is no matter here: intervals are those of replayed updates.
        gauge = replace(gauge, weak=gauge.weak[:0])
    return found, gauge, method, CloneFacts.of_path(path)


def _in_parameters(watched: Watched, look: Look, method: Method) -> _Outcome:
    """Parameters move along Jacobians."""
    gauge = look.gauge(bootstrap=False)
    if method.centres:
        watched = replace(watched, offset=look.seen.moments.offset(beyond=FAR_LEVEL))
    parameters, path = stage_parameters(watched, look, method)
    check_movement(np.diff(parameters, axis=0))
    steps = ParameterSteps(
        watched.policy,
        method,
        gamma=watched.gamma,
        n_groups=look.groups(method.n_groups),
        known=path is None,
        intervals=watched.intervals,
        seed=watched.seed,
    )
    rates = watched.history.learning_rates
    clones = [None] * len(parameters) if path is None else path.clones
    known = zip(parameters, clones, strict=True)
    for t, record in enumerate(watched.each(steps.recorder, known, "Jacobians")):
        rate = None if rates is None or t == 0 else float(rates[t - 1])
        with naming(t):
            steps.take(record, rate)
    gauge = steps.with_weak(gauge)
    return steps.find(gauge, watched.report), gauge, method, CloneFacts.of_path(path)


def _in_functions(watched: Watched, look: Look, method: Method) -> _Outcome:
    """Policies move as functions, along advantages."""
    gauge = look.gauge(bootstrap=method.bootstrap)
    watched = replace(watched, offset=look.seen.moments.offset())
    history, rates = watched.history, watched.history.learning_rates
    parameters, path = stage_parameters(watched, look, method)
    if method.debias is None:
        method = replace(method, debias=not history.own_episodes)
    if method.rates is None:
        method = replace(method, rates=Rates.SHARED if path is None else Rates.SCHEDULE)
    basis = Basis.choose(
        watched.policy, method.state_features, look.scale, deviations=method.deviations
    )
    steps = function_steps(
        basis_sums(watched, basis, parameters, method),
        n_groups=look.groups(method.n_groups),
        pool=method.pool,
        prior_strength=None if path is None else method.clone.prior_strength,
        rates=rates,
    )
    if not (steps.steps.squared_movement > 1e-18).any():
        raise IdentificationError(
            "the policies do not move between stages: there is nothing to explain"
        )
    gauge = replace(gauge, weak=steps.weak.weak_directions(gauge.identified))
    lagging = _critic_unseen(history)
    found = find_weights(steps, gauge, rates, method, watched.seed, lagging=lagging)
    found = replace(
        found, words=words(method, basis, steps, known=path is None, rated=rates is not None)
    )
    found = _warned(found, lagging)
    if not (watched.intervals and (path is None or method.tellable)):
        found = replace(found, spread=None)
    ordered, crowded = order_gain(parameters), _crowded(basis, gauge)
    found = replace(
        found,
        gain=min(found.gain, ordered, 0.0 if crowded else np.inf),
        unlearns=look.unlearns(watched.policy, parameters),
        notes=(*found.notes, *disorder(ordered), *crowded),
    )
    return found, gauge, method, CloneFacts.of_path(path)


def _crowded(basis: Basis, gauge: Gauge) -> tuple[str, ...]:
    """A note where there are no more functions than weights: some weights explain any movement.

    A reward for every pair of a table explains all there is, too, but leaves no other reward out.
    """
    q = len(gauge.feature_names) - gauge.n
    coarse = basis.states in (StateFeatures.LINEAR, StateFeatures.QUADRATIC)
    if q < 2 or basis.width > q or not coarse:
        return ()
    return (
        f"{q} weights explain whatever a policy does in {basis.width} functions of state and "
        "action: name fewer features, or more state features (Method.named('mirror', "
        "state_features=...))",
    )


def _critic_unseen(history: LearningHistory) -> bool:
    """Whether a critic of the learner's own led it, which learnt from other episodes."""
    return LearnerSettings.of(history) is not None and not history.own_episodes


def _warned(found: Found, lagging: bool) -> Found:
    """A lag is alike at all steps: their disagreement shows part of what it does."""
    sound = found.solved in (Status.OK, Status.RANK_DEFICIENT)
    return replace(found, solved=Status.OTHER_EPISODES) if lagging and sound else found
