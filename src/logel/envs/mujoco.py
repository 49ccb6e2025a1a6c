"""Reward features of Gymnasium's MuJoCo worlds; Hopper's and Reacher's are the paper's.

    HistoryRecorder("history", FEATURES["Hopper-v5"])         # while SB3 trains
    LinearReward.from_estimate(est, FEATURES["Hopper-v5"])    # in use
    make("Hopper-v5")                                         # reports info["features"]

The true rewards stand apart, at the end: studies score with them, no inference sees them.
Hopper's dynamics differ between versions of mujoco; every history notes the one it was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from logel.errors import MissingExtraError
from logel.rewards.features import ActionCost, Concatenate, RBFGrid, RewardFeatures, StepFeatures
from logel.rewards.gymnasium import with_features
from logel.types import Array, Float

HOPPER_DT = 0.008
"""Seconds of one step of Hopper-v5: four frames of 2 ms."""
# Of HalfCheetah and Ant: five frames of 10 ms. Walker2d has Hopper's.
_LONG_DT = 0.05


@dataclass(frozen=True)
class _Walked:
    """What bodies that walk are paid for, of one step and of many."""

    seconds: float  # of a step
    # The observation leaves the position out, so the distance comes from the velocity that the
    # environment computes as distance / dt.
    lives: bool = True  # whether the environment tells that a body is healthy
    touches: bool = False  # whether it counts the forces of contacts

    def __call__(
        self, observation: Any, action: Any, next_observation: Any, info: dict[str, Any]
    ) -> Float:
        return self.rows(observation, np.asarray(action)[None], next_observation, [info])[0]

    def rows(
        self,
        observations: Array,
        actions: Array,
        next_observations: Array,
        infos: Sequence[dict[str, Any]],
    ) -> Float:
        table = np.empty((len(infos), 2 + self.lives + self.touches))
        table[:, 0] = [info["x_velocity"] for info in infos]
        table[:, 0] *= self.seconds
        if self.lives:
            table[:, 1] = [info["reward_survive"] > 0 for info in infos]
        table[:, 1 + self.lives] = np.square(actions).sum(axis=1)
        if self.touches:
            table[:, -1] = [-info["reward_contact"] / _CONTACT for info in infos]
        return table

    @property
    def features(self) -> StepFeatures:
        """With their names."""
        alive = ("alive",) if self.lives else ()
        touch = ("contact",) if self.touches else ()
        return StepFeatures(self, ("distance", *alive, "|action|^2", *touch), batch=self.rows)


# What Ant-v5 charges for the squared forces of contacts.
_CONTACT = 5e-4


def hopper_features() -> StepFeatures:
    """Distance moved in the step (metres), 1 while alive, squared norm of the action."""
    return _Walked(HOPPER_DT).features


def half_cheetah_features() -> StepFeatures:
    """Distance moved in the step (metres), squared norm of the action."""
    return _Walked(_LONG_DT, lives=False).features


def walker_features() -> StepFeatures:
    """Distance moved in the step (metres), 1 while alive, squared norm of the action."""
    return _Walked(HOPPER_DT).features


def ant_features() -> StepFeatures:
    """Distance, 1 while alive, squared norm of the action, squared forces of contacts."""
    return _Walked(_LONG_DT, touches=True).features


def reacher_bumps(columns: tuple[int, int] = (8, 9)) -> RBFGrid:
    """The 25 bumps of Reacher's features, over two columns of the observation."""
    return RBFGrid(low=-0.2, high=0.2, points=5, columns=columns, variance=(0.2 / 4) ** 2)


def reacher_features() -> Concatenate:
    """Bumps of the vector from target to fingertip after the step, and the squared action.

    5 x 5 Gaussian bumps on [-.2, .2]^2 with standard deviation .05, q = 26. The vector is the
    last two of the ten observations of Reacher-v5.
    """
    return Concatenate((reacher_bumps(), ActionCost()))


FEATURES: dict[str, StepFeatures | RewardFeatures] = {
    "Ant-v5": ant_features(),
    "HalfCheetah-v5": half_cheetah_features(),
    "Hopper-v5": hopper_features(),
    "Walker2d-v5": walker_features(),
    "Reacher-v5": reacher_features(),
}
"""The reward features of each environment, by its Gymnasium name."""


def make(env_id: str, *, report_features: bool = True) -> gymnasium.Env[Any, Any]:
    """An environment that reports in `info["features"]` those features that need `info`.

    Features of transitions are computed in batches elsewhere.
    """
    try:
        # The checker looks at every step and observation: 10% of the time.
        env = gymnasium.make(_quick(env_id), disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError("mujoco", "mujoco") from error
    features = FEATURES.get(env_id)
    if report_features and isinstance(features, StepFeatures):
        return with_features(env, features)
    return env


def _quick(env_id: str) -> str | EnvSpec:
    if env_id != "Hopper-v5":
        return env_id
    from logel.envs.quick_hopper import QuickHopper

    return replace(gymnasium.spec(env_id), entry_point=QuickHopper)


HOPPER_TRUE_WEIGHTS = (1.0 / HOPPER_DT, 1.0, -1e-3)
"""What Hopper-v5 pays for its features: 125 per metre, 1 per step alive, -.001 per |action|^2."""

TRUE_WEIGHTS: dict[str, tuple[float, ...]] = {
    "Ant-v5": (1.0 / _LONG_DT, 1.0, -0.5, -_CONTACT),
    "HalfCheetah-v5": (1.0 / _LONG_DT, -0.1),
    "Hopper-v5": HOPPER_TRUE_WEIGHTS,
    "Walker2d-v5": HOPPER_TRUE_WEIGHTS,
}
"""What environments pay for their features."""


def hopper_true_weights(*, unit: bool = False) -> Float:
    """`HOPPER_TRUE_WEIGHTS` as an array, on request of unit length."""
    weights = np.array(HOPPER_TRUE_WEIGHTS)
    return np.asarray(weights / np.linalg.norm(weights)) if unit else weights
