"""Weights from the learner's own update, run again: the inference of `logel.replay` as a method.

`x[t+1] = update(x[t], episodes, rewards, hidden state)`: the rule is somebody's code, its hidden
state (critic, optimiser) is carried along, and the weights are those whose updates lead where the
learner went.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from logel.data.history import LearningHistory
from logel.data.settings import LearnerSettings
from logel.errors import IdentificationError, OptionError
from logel.inference.found import Found
from logel.inference.gauge import Fit, Gauge
from logel.inference.method import Method
from logel.inference.null import ENOUGH_STEPS, shortness
from logel.inference.spread import Spread, student_draws, unit_rows
from logel.inference.status import Status
from logel.inference.watched import Watched, naming
from logel.policies.base import Policy
from logel.policies.layers import LayeredPolicy
from logel.replay.batch import Batch
from logel.replay.course import Course
from logel.replay.fates import Replay
from logel.replay.fit import ReplayFit, fit_replay
from logel.replay.fresh import FreshReplay, fit_fresh
from logel.replay.learner import Learner, StackedLearner
from logel.replay.movement import Movement
from logel.replay.search import searched
from logel.types import Float

logger = logging.getLogger(__name__)

# Of the movement that could be explained at all: the share that must be. A learner replayed with
# its own settings reaches nine tenths, a random walk nothing.
_ENOUGH = 0.5
# Times what fates differ by: what a fit may leave unexplained. With the learner's settings fits
# leave about as much; stuck ones, and those with wrong settings, two to thirty times as much.
_STUCK = 2.0
# Times what noise leaves, from which on what is left on other episodes is worth a note: at the
# truth it is one, and varies by a fifth of it in short runs.
_LEFT = 1.5
# Share of the movement that neither weights nor chance explain, from which on it is worth a note.
_NOTED = 0.005
# Settings that people have when they say nothing: Stable-Baselines3's own and CleanRL's.
ORDINARY: tuple[LearnerSettings, ...] = (
    LearnerSettings("PPO"),
    LearnerSettings("PPO", n_epochs=4, learning_rate=2.5e-4, batch_size=256, ent_coef=0.01),
    LearnerSettings("A2C"),
    LearnerSettings("A2C", learning_rate=5e-3, normalize_advantage=True),
    LearnerSettings("TRPO"),
)
# Length of a movement of which no share can be told.
_STILL = 1e-9
# Settings whose loss per step is within this of the best are fitted too, and averaged.
_AS_GOOD = 0.1


def replay_applies(watched: Watched) -> bool:
    """Whether a history says all that replay needs: a network's parameters, and its learner."""
    history, policy = watched.history, watched.policy
    if not watched.use_parameters or policy.convex or len(history) < 2:
        return False
    first = history[0]
    settings = LearnerSettings.of(history)
    if not history.own_episodes:
        return (
            False  # closer than mirror on most runs, but not yet known to be sure only when right
        )
    if settings is None or first.parameters is None or first.last_observations is None:
        return False
    return StackedLearner.of(settings, policy, _n_inputs(first.observations, policy)) is not None


def replay_might_apply(history: LearningHistory, policy: Policy) -> bool:
    """Whether all that replay lacks is the learner's name: ordinary ones can be tried, if asked."""
    if not _ordinary(policy) or LearnerSettings.of(history) is not None:
        return False
    first = history[0]
    known = first.parameters is not None and first.last_observations is not None
    return known and history.own_episodes is not False


def _n_inputs(observations: Float, policy: Policy) -> int:
    return int(policy.prepare_observations(observations[:1]).flatten(1).shape[1])


def find_by_replay(
    watched: Watched,
    method: Method,
    parameters: Float,
    gauge: Gauge,
    other: Found,
    learner: Learner | None = None,
) -> Found:
    """Weights whose replayed updates lead where the learner went.

    Args:
        watched: What is asked of what.
        method: The choices.
        parameters: Of every stage's policy, (m + 1, d).
        gauge: What no data can tell.
        other: What another rule found: the first guess, and the way out if replay explains little.
        learner: The update, if it is not one that the history names.
    """
    course = course_of(watched, method, parameters)
    learners, notes = ([learner], ()) if learner is not None else learners_of(watched, course)
    fits = _fitted(watched, method, course, learners, other.weights)
    found = _found(watched, method, course, fits, gauge, other)
    logger.info("replay explains %.3f, %s %.3f", fits[0].fit.explained, other.rule, _share(other))
    return replace(found, notes=(*notes, *found.notes))


def course_of(watched: Watched, method: Method, parameters: Float) -> Course:
    """The first steps of the history as tensors."""
    n = min(len(parameters), method.n_stages + 1)
    notes = watched.history.notes
    batches, movements = [], []
    for t, stage in zip(range(n - 1), watched.stages(), strict=False):
        with naming(t):
            batches.append(Batch.of(stage, watched.policy, notes[t] if t < len(notes) else None))
            movements.append(Movement.at(stage, watched.policy, parameters[t]))
    settings = LearnerSettings.of(watched.history)
    between = None if settings is None else settings.n_updates_between
    own = bool(watched.history.own_episodes)
    course = Course(batches, parameters[:n], movements, own=own, n_updates=between or 1)
    if not any(x @ x > 1e-18 for x in course.observed):
        raise IdentificationError(
            "the policies do not move between stages: there is nothing to explain"
        )
    return course


def learners_of(watched: Watched, course: Course) -> tuple[list[Learner], tuple[str, ...]]:
    """The learner that the history names, or the ordinary ones; and what to know about it."""
    settings, n_inputs = LearnerSettings.of(watched.history), course.batches[0].inputs.shape[1]
    notes = [batch.notes for batch in course.batches]
    if settings is not None:
        # Needs Stable-Baselines3 only where the fast way does not do.
        from logel.replay.sb3 import learner_for

        known_settings = replace(settings, gamma=watched.gamma)
        own, note = learner_for(known_settings, watched.policy, n_inputs, notes=notes)
        return [own], () if note is None else (note,)
    built = [
        StackedLearner.of(replace(one, gamma=watched.gamma), watched.policy, n_inputs, notes)
        for one in _ordinary(watched.policy)
    ]
    known: list[Learner] = [one for one in built if one is not None]
    if not known:
        raise OptionError(
            "an unknown learner with this network cannot be replayed: pass learner=, its own update"
        )
    return known, ()


def _ordinary(policy: Policy) -> list[LearnerSettings]:
    """Ordinary settings for a plain network."""
    if not isinstance(policy, LayeredPolicy) or policy.convex:
        return []
    hidden = tuple(policy.layers.widths[1:-1])
    return [replace(one, pi=hidden, vf=hidden, activation="tanh") for one in ORDINARY]


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A learner and the weights found with it.

    Attributes:
        fit: The weights.
        learner: The update.
        loss: Per step, on the first ones.
        convincing: Whether they explain the steps, where the fit itself tells (fresh episodes).
        left: There: what is left unexplained, over what noise leaves.
    """

    fit: ReplayFit
    learner: Learner
    loss: float
    convincing: bool | None = None
    left: float = 1.0

    @property
    def stuck(self) -> bool:
        """Whether more is left unexplained than other random numbers would change."""
        return self.convincing is None and self.fit.excess > _STUCK

    @property
    def explains(self) -> bool:
        """Whether what can be explained is."""
        return _explains(self.fit) if self.convincing is None else self.convincing


def _fitted(
    watched: Watched,
    method: Method,
    course: Course,
    learners: Sequence[Learner],
    guess: Float,
) -> list[_Fitted]:
    """Fits with all learners that explain the first steps about equally well, best first."""
    if not course.known:
        return _fitted_fresh(watched, course, learners, guess)
    tried = []
    for learner in learners:
        replay = replay_of(watched, course, learner, watched.seed)
        centre, loss = searched(replay, _start(replay, guess))
        logger.info("%s: loss %.3f on the first steps", learner.words, loss)
        tried.append((loss, replay, centre))
    least = min(loss for loss, _, _ in tried)
    fits = []
    for loss, replay, centre in tried:
        if loss <= least + _AS_GOOD:
            fit = fit_replay(replay, centre, method.n_fates)
            enough = len(course) >= ENOUGH_STEPS
            if enough and (fit.excess > _STUCK or not _explains(fit)):
                # Other random numbers, and from where the first fit ended.
                again = replay_of(watched, course, replay.learner, watched.seed + 1)
                start = searched(again, _start(again, fit.weights))[0]
                second = fit_replay(again, start, method.n_fates)
                fit = max(fit, second, key=lambda one: one.explained)
            fits.append(_Fitted(fit, replay.learner, loss))
    return sorted(fits, key=lambda one: -one.fit.explained)


def _fitted_fresh(
    watched: Watched, course: Course, learners: Sequence[Learner], guess: Float
) -> list[_Fitted]:
    """The fit of the learner that explains the directions of the steps best."""
    settings = LearnerSettings.of(watched.history)
    rollout = None
    if settings is not None and settings.n_envs and settings.n_steps:
        rollout = (settings.n_envs, settings.n_steps)
    fits = []
    for learner in learners:
        replay = FreshReplay(
            course,
            learner,
            rollout=rollout,
            seed=watched.seed,
            progress=watched.report,
        )
        found = fit_fresh(replay, guess)
        loss = -found.fit.explained
        fits.append(_Fitted(found.fit, learner, loss, found.convincing, found.left))
    return [max(fits, key=lambda one: one.fit.explained)]


def replay_of(watched: Watched, course: Course, learner: Learner, seed: int) -> Replay:
    """A learner that goes along a course, reported and run as the history is."""
    return Replay(course, learner, seed=seed, progress=watched.report, run=watched.run)


def _start(replay: Replay, guess: Float) -> Float:
    """A guess as a direction in units of the features' scale, (1, q)."""
    start = guess * replay.scale
    size = np.linalg.norm(start)
    if size == 0:
        return np.full((1, len(guess)), len(guess) ** -0.5)
    return np.asarray(start / size)[None]


def _share(found: Found) -> float:
    return float(np.nanmean(found.fit.explained))


def _found(
    watched: Watched,
    method: Method,
    course: Course,
    fits: Sequence[_Fitted],
    gauge: Gauge,
    other: Found,
) -> Found:
    """Weights of the fits together, or of the other rule where they explain too little."""
    best, m = fits[0].fit, len(course)
    sure = [one for one in fits if one.explains]
    words = _words(watched, course, fits)
    if not sure or m < ENOUGH_STEPS:
        return _fallen_back(watched, method, best, gauge, other, words)
    shares = np.exp([-(one.loss - fits[0].loss) for one in sure])
    mean = _mean(sure, shares, gauge)
    stuck = fits[0].stuck
    draws = _draws(sure, shares, gauge, method, watched.seed)
    return Found(
        weights=np.asarray(mean),
        rates=np.ones(len(watched.history) - 1),
        fit=_fit_of(best, len(watched.history) - 1),
        gain=np.inf,
        words=words,
        rule="replay",
        solved=_ended(course, stuck=stuck),
        trace=best.trace,
        rank=len(mean) - gauge.n,
        condition=float(np.linalg.cond(best.covariance)) ** 0.5,
        keeps_scale=False,
        spread=Spread(draws=draws) if watched.intervals else None,
        gains={},
        notes=_stuck_note(best) if stuck else (*_misfit_note(best), *_left_note(fits[0])),
    )


def _ended(course: Course, *, stuck: bool) -> Status:
    if stuck:
        return Status.NOT_CONVERGED
    return Status.OK if course.known else Status.OTHER_EPISODES


def _mean(fits: Sequence[_Fitted], shares: Float, gauge: Gauge) -> Float:
    """Mean direction of several fits."""
    weights = np.stack([gauge.project(one.fit.weights) for one in fits])
    return np.asarray(shares @ unit_rows(weights) / shares.sum())


def _stuck_note(fit: ReplayFit) -> tuple[str, ...]:
    return (
        f"replay left {fit.excess:.0f} times as much unexplained as other minibatches would "
        "change: the learner's settings may be others than the history says, or the fit is stuck "
        "(try another seed, or more fates)",
    )


def _misfit_note(fit: ReplayFit) -> tuple[str, ...]:
    """What to know of a fit that leaves more than chance."""
    if fit.misfit < max(_NOTED, float(np.median([step.scatter for step in fit.steps]))):
        return ()
    return (
        f"{100 * fit.misfit:.1f}% of the usual movement is neither the weights' doing nor chance: "
        "the learner's settings may be others than the history says; intervals allow for that",
    )


def _left_note(best: _Fitted) -> tuple[str, ...]:
    """What to know of a fit on other episodes that leaves more than their noise."""
    if best.left < _LEFT:
        return ()
    return (
        f"these weights leave {best.left:.1f} times as much of the steps as noise leaves: the fit "
        "may be far off (try another seed), or the learner's settings are others",
    )


def _explains(fit: ReplayFit) -> bool:
    """Whether replay explains what can be explained: more than half of what is no noise."""
    sizes = np.array([step.moved**2 for step in fit.steps])
    noise = np.array([min(step.scatter, 0.9) for step in fit.steps])
    return fit.explained > _ENOUGH * float((sizes * (1 - noise)).sum() / sizes.sum())


def _fit_of(fit: ReplayFit, n_steps: int) -> Fit:
    """Step by step; steps that were not replayed count as not seen."""
    rows = np.full((5, n_steps), np.nan)
    for t, step in enumerate(fit.steps):
        rows[2:4, t] = step.moved, step.predicted
        if step.moved > _STILL:
            rows[[0, 1, 4], t] = 1 - step.unexplained, step.cosine, step.scatter
    explained, cosines, moved, predicted, noise = rows
    return Fit(explained, cosines, 0.0, moved=moved, predicted=predicted, noise=noise)


def _draws(
    fits: Sequence[_Fitted], shares: Float, gauge: Gauge, method: Method, seed: int
) -> Float:
    rng = np.random.default_rng([seed, 23])
    counts = rng.multinomial(method.n_draws, shares / shares.sum())
    parts = []
    for one, n in zip(fits, counts, strict=True):
        fit = one.fit
        drawn = student_draws(fit.weights, fit.covariance, fit.freedom, int(n), rng)
        parts.append(gauge.project(drawn.T).T / np.linalg.norm(fit.weights))
    return np.concatenate(parts)


def _fallen_back(
    watched: Watched,
    method: Method,
    best: ReplayFit,
    gauge: Gauge,
    other: Found,
    words: str,
) -> Found:
    """The rule that explains more, with nothing claimed: no direction is excluded."""
    m = len(watched.history) - 1
    rng = np.random.default_rng([watched.seed, 29])
    anything = gauge.project(rng.standard_normal((len(other.weights), method.n_draws))).T
    said = (
        f"replaying the learner's update explains {100 * max(best.explained, 0.0):.0f}% of its "
        "movement: its settings may be others than the history says, or it wants nothing",
    )
    spread = Spread(draws=anything) if watched.intervals else None
    if _share(other) > best.explained:
        notes = (*said, f"these weights are those of the rule '{other.rule}'", *other.notes)
        return replace(other, gain=0.0, spread=spread, notes=notes, words=f"{words}; {other.words}")
    return replace(
        other,
        weights=gauge.project(best.weights),
        rates=np.ones(m),
        fit=_fit_of(best, m),
        gain=0.0,
        words=words,
        rule="replay",
        solved=Status.OK,
        trace=best.trace,
        keeps_scale=False,
        spread=spread,
        gains={},
        notes=(*said, *shortness(len(best.steps))),
    )


def _words(watched: Watched, course: Course, fits: Sequence[_Fitted]) -> str:
    names = " or ".join(one.learner.words for one in fits)
    m, n = len(course), len(watched.history) - 1
    steps = f"{m} steps" if m == n else f"the first {m} of {n} steps"
    # How much the learner is paid enters weakly: a fact about the fit, no weight of the answer.
    size = np.linalg.norm(fits[0].fit.weights)
    paid = f"paid {size:.2g} times these weights"
    return f"the learner's own update replayed over {steps}: {names}; {paid}"
