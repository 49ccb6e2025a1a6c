"""Watching a learner live: an estimate after every stage, at a cost that does not grow.

Everything that touches trajectories or parameters is done once, when a stage arrives
(`ParameterSteps.add`); solving the small factors of all steps again is the only work that grows
with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Signature, Stage, check_parameters, check_stage
from logel.errors import HistoryError, OptionError, check_gamma
from logel.inference.answer import Asked, CloneFacts, answer
from logel.inference.estimate import RewardEstimate
from logel.inference.extremes import Extremes, in_words
from logel.inference.gauge_sums import GaugeSums
from logel.inference.method import METHODS, Coordinates, Method
from logel.inference.parameters import ParameterSteps
from logel.inference.watched import naming
from logel.policies.base import Policy
from logel.policies.cloned_path import Cloner, checked_parameters
from logel.policies.cloning import Clone
from logel.rewards.features import feature_names, featured
from logel.threads import limited_threads
from logel.types import FeatureFunction, Float


class Observer:
    """Recovers the reward while the learner learns.

    After every stage the estimate is the one `infer_reward` would give for the history so far
    with the same method and seed.

    Args:
        policy: Family of the learner's policies (or of the clones that stand for them).
        gamma: The learner's discount factor, in [0, 1).
        method: A method by name, or a `Method`, whose coordinates are parameters. The others would
            need all earlier stages again.
        features: Maps (observations, actions, next_observations) to reward features (N, q);
            needed when the episodes carry none.
        feature_names: q names; numbered when missing.
        use_parameters: Use the stages' parameters if they have them, instead of cloning.
        intervals: Whether to compute intervals and clones' held-out fit.
        seed: As in `infer_reward`.
        growth: Answer anew when the number of stages has grown by this share, and in between as
            before. 0 answers anew at every stage, which takes ever longer: the small factors of all
            steps are solved again.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        gamma: float,
        method: str | Method = "two-step",
        features: FeatureFunction | None = None,
        feature_names: Sequence[str] | None = None,
        use_parameters: bool = True,
        intervals: bool = True,
        seed: int = 0,
        growth: float = 0.0,
    ) -> None:
        check_gamma(gamma)
        if not growth >= 0:
            raise OptionError(f"growth must not be negative, but is {growth}")
        self.growth = growth
        self._last: RewardEstimate | None = None
        self._answered = 0
        self.policy, self.gamma, self.features, self.seed = policy, gamma, features, seed
        self.name, chosen = _method(method)
        self.method = chosen if intervals else chosen.without_intervals(policy)
        self.intervals = intervals
        self._given_names, self._use_parameters = feature_names, use_parameters
        self._cloner = Cloner(policy, self.method.clone, np.random.default_rng(seed))
        self._signature: Signature | None = None
        self._names: tuple[str, ...] = ()
        self._clones: list[CloneFacts] = []
        self._seen, self._extremes = GaugeSums(gamma), Extremes(feature_names)
        self._steps: ParameterSteps | None = None
        self._n_stages = 0

    @property
    def n_stages(self) -> int:
        """Number of stages seen."""
        return self._n_stages

    @limited_threads()
    def update(
        self,
        stage: Stage | Sequence[Episode],
        *,
        parameters: npt.ArrayLike | None = None,
        learning_rate: float | None = None,
    ) -> RewardEstimate | None:
        """Take in the next stage.

        Args:
            stage: Its episodes.
            parameters: The policy's flat parameters, if known (or in the stage itself); for all
                stages or none.
            learning_rate: Rate of the step that led to this stage, if known; for all but the
                first stage, or none.

        Returns:
            The estimate from all stages so far (or, with `growth`, the latest); None while there is
            nothing to infer from: at the first stage, and as long as the policy has not moved or no
            feature varies.
        """
        t = self._n_stages
        if not isinstance(stage, Stage):
            stage = Stage.from_episodes(stage)
        if parameters is not None:
            stage = replace(stage, parameters=np.asarray(parameters))
        steps = self._steps or self._begin(stage, learning_rate)
        if t > 0:
            self._check(steps, stage, learning_rate)
        with naming(t), in_words(self._extremes.furthest):
            stage = featured(stage, self.features, t)
            self._extremes.add(stage)
            theta, cloned = self._policy_of(stage)
            steps.take(steps.recorder(stage, (theta, cloned)), learning_rate)
        if cloned is not None:
            self._clones.append(CloneFacts.of(cloned, self.method.clone.prior_strength))
        assert stage.features is not None
        if t == 0:
            history = LearningHistory.from_stages([stage], feature_names=self._given_names)
            self._names = feature_names(history, self.features, stage.features.shape[1])
        self._seen.add(stage)
        self._steps, self._n_stages = steps, t + 1
        if self._last is None or self._n_stages >= (1 + self.growth) * self._answered:
            with in_words(self._extremes.furthest):
                self._last, self._answered = self._estimate(steps), self._n_stages
        return self._last

    def _begin(self, stage: Stage, learning_rate: float | None) -> ParameterSteps:
        if learning_rate is not None:
            raise OptionError("no step leads to the first stage: give it no learning_rate")
        self._signature, self._n_parameters = stage.signature, stage.n_parameters
        return ParameterSteps(
            self.policy,
            self.method,
            gamma=self.gamma,
            n_groups=max(min(self.method.n_groups, stage.n_episodes), 1),
            known=self._use_parameters and stage.parameters is not None,
            intervals=self.intervals,
            seed=self.seed,
        )

    def _check(self, steps: ParameterSteps, stage: Stage, learning_rate: float | None) -> None:
        t = self._n_stages
        assert self._signature is not None
        check_stage(stage, t, self._signature)
        check_parameters(stage, t, self._n_parameters)
        if t > 1 and (learning_rate is None) != (not steps.rated):
            raise OptionError(
                f"stage {t}: learning rates must be given for every step or for none of them"
            )
        if learning_rate is not None and not learning_rate > 0:
            raise HistoryError(
                f"learning rates must be positive, but step {t - 1} has one of {learning_rate}"
            )

    def _policy_of(self, stage: Stage) -> tuple[Float, Clone | None]:
        """The stage's parameters, known or cloned."""
        if not (self._use_parameters and stage.parameters is not None):
            clone = self._cloner.add(stage)
            return clone.parameters, clone
        known = checked_parameters(stage.parameters[None], self.policy, self._n_stages)
        assert known is not None
        return known[0], None

    def _estimate(self, steps: ParameterSteps) -> RewardEstimate | None:
        """The answer so far, if there is anything to infer from."""
        self._extremes.check()
        gauge = self._seen.gauge(self._names, bootstrap=False)
        if not steps.moved or gauge.n == len(self._names):
            return None
        gauge = steps.with_weak(gauge)
        asked = Asked(
            self.name,
            self.method,
            self.gamma,
            self.seed,
            self.intervals,
            self._names,
            complete=True,
            clones=None if steps.known else tuple(self._clones),
            # Whether anything terminates is known at the end alone: features stay as they come.
            notes=self._seen.moments.offset_notes(self._names, centred=False),
            furthest=self._extremes.furthest(),
        )
        return answer(steps.find(gauge), gauge, asked)


def _method(method: str | Method) -> tuple[str, Method]:
    name = method if isinstance(method, str) else "custom"
    offered = {n: m for n, m in METHODS.items() if m.coordinates is Coordinates.PARAMETERS}
    chosen = offered.get(method) if isinstance(method, str) else method
    if chosen is None or chosen.coordinates is not Coordinates.PARAMETERS:
        raise OptionError(
            f"an observer cannot use method {method!r}: choose one of {', '.join(offered)}, or a "
            "Method in coordinates 'parameters'"
        )
    return name, chosen
