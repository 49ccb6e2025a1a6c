"""Recording a Stable-Baselines3 run while it trains.

    recorder = HistoryRecorder("history", features=reacher_features())
    PPO("MlpPolicy", env).learn(200_000, callback=recorder)
    history = LearningHistory.load("history")

Works with every on-policy algorithm (PPO, A2C, and TRPO and MaskablePPO of sb3-contrib). The
recorder only looks: the trained parameters are the same bit for bit with and without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from logel.data.folder import HistoryWriter
from logel.data.rollout import Rollout, record_stage
from logel.data.settings import KEY
from logel.errors import MissingExtraError, OptionError, StorageError
from logel.learners.sb3_trace import RawObservations, Trace, in_one
from logel.policies.sb3 import SB3Policy, network_facts, plain_hidden, policy_parameters
from logel.policies.sb3_settings import model_settings, schedule_values
from logel.rewards.features import RewardFeatures, StepFeatures

try:
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error

logger = logging.getLogger(__name__)


class HistoryRecorder(BaseCallback):
    """Writes a learning history while a model trains: one stage per update.

    A stage holds the episodes of one rollout as the policy saw them (normalised observations if
    `VecNormalize` is used, actions before clipping), the parameters of the policy that acted,
    before it was trained on them, the reward features of every step and, of a learner that was told
    them (MaskablePPO), which actions were legal. Images stay bytes, channels first as the policy
    saw them; Dict observations are structured arrays. Episodes are cut at the
    rollout's end. `LearningHistory.notes` says of each stage: `timesteps` before it, the
    `learning_rate` of the update that followed, and its `clip_range` and `clip_range_vf` where it
    had any; whether the last episode of every environment `continues` after the rollout;
    `mean_return` and number of `episodes_finished` in it (of the environment's own reward, where a
    Monitor reports it), and the normaliser's `observation_mean` and `observation_var` at its end.
    With `every` above 1, `learning_rates_between` are those of all updates since the stage before.

    The learner's settings are kept as well (`LearnerSettings.of`), so that its updates can be
    repeated with other rewards. Its own rewards, values and advantages are not.

    Stages are written as they come, so an interrupted run leaves a readable history. Memory does
    not grow. When a stage cannot be written (a full disk), recording stops with a warning, and the
    training goes on. Algorithms with short rollouts (A2C by default) make many small stages: record
    every hundredth or so.

    Args:
        path: Folder of the new history; must not exist yet.
        features: What a reward may be made of. A function of (observations, actions,
            next_observations) for many transitions, such as those of `logel.rewards.features`,
            with `terminated`, `truncated` and `times` if it has parameters of these names; or
            `StepFeatures`, which also look at `info`: both get the environment's own
            observations, before normalisation, and the actions it received, after clipping.
            None takes `info["features"]` of every step (see `logel.rewards.gymnasium`); "none"
            records no features.
        feature_names: Names of the features; by default those the features have, or those that
            `FeatureWrapper` tells.
        every: Record each so many updates.
        first: Number of the first update to record, from 0.
        last: Number of the last update to record; None for no end.
        learning_rates: Whether the optimiser's rates count as known learning rates of the history
            (summed over the updates between two stages). Off by default, because inference takes
            known rates at their word, and an Adam step of rate .001 is not a gradient step of
            that rate.
        metadata: Facts to keep with the history, JSON-serialisable.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        features: RewardFeatures | StepFeatures | Literal["none"] | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        every: int = 1,
        first: int = 0,
        last: int | None = None,
        learning_rates: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_updates(every, first, last)
        if not isinstance(path, str | PathLike):
            raise OptionError(
                "HistoryRecorder needs the folder of the new history: pass "
                "callback=HistoryRecorder('history', features)"
            )
        if isinstance(features, str) and features != "none":
            raise OptionError(f'features must be a callable, None or "none", not {features!r}')
        self.path = path
        self.features = features
        self.every, self.first, self.last = every, first, last
        self.learning_rates = learning_rates
        names = getattr(features, "names", None) if feature_names is None else feature_names
        self._names = None if names is None else tuple(names)
        # Made only to refuse a folder that exists: the real one waits for the model's facts.
        HistoryWriter(path, feature_names=self._names, metadata=metadata)
        self._writer: HistoryWriter | None = None
        self._metadata = {} if metadata is None else dict(metadata)
        self._update = -1
        # Whether a stage could not be written.
        self._stopped = False
        # Of the updates since the last stage that was recorded.
        self._rates: list[float] = []
        self._tap: RawObservations | None = None
        # Steps that the episode of each environment is old.
        self._ages = np.zeros(0, dtype=int)
        # Of the rollout that is being recorded, if it is to be.
        self._trace: Trace | None = None

    def _on_training_start(self) -> None:
        model = _checked(self.model)
        if self.learning_rates and hasattr(model, "cg_max_steps"):
            raise OptionError(
                f"{type(model).__name__} does not move its policy by a learning rate: leave out "
                "learning_rates"
            )
        if self._writer is None:
            settings = model_settings(model, n_updates_between=self.every)
            facts = {**_facts(model), KEY: settings.to_json(), **self._metadata}
            names = self._names
            if names is None and self.features is None:
                names = self.training_env.unwrapped.reset_infos[0].get("feature_names")
            # Between two stages further apart lie updates on episodes that nobody kept.
            own = self.every == 1
            self._writer = HistoryWriter(
                self.path, feature_names=names, metadata=facts, own_episodes=own
            )
        # Training that goes on without a reset is in the midst of episodes whose age nobody knows.
        self._ages = np.zeros(self.training_env.num_envs, dtype=int)
        normaliser = unwrap_vec_normalize(self.training_env)
        if callable(self.features) and normaliser is not None and normaliser.norm_obs:
            self._tap = RawObservations(normaliser)

    def _on_rollout_start(self) -> None:
        self._update += 1
        self._trace = None
        index = self._update - self.first
        inside = index >= 0 and (self.last is None or self._update <= self.last)
        if inside and index % self.every == 0 and not self._stopped:
            model = _checked(self.model)
            before = self._tap.observations if self._tap else model._last_obs
            self._trace = Trace(model.n_steps, in_one(before, 1), self.features, self._ages)

    def _on_step(self) -> bool:
        if self._trace is not None:
            self._trace.step(self.locals, self._tap)
        self._ages = np.where(self.locals["dones"], 0, self._ages + 1)
        return True

    def _on_rollout_end(self) -> None:
        model = _checked(self.model)
        # SB3 moves its progress on between the rollout and the training.
        progress = 1.0 - model.num_timesteps / max(model._total_timesteps, 1)
        rate = float(model.lr_schedule(progress))
        if self._trace is not None:
            rates = {"learning_rate": rate, **schedule_values(model, progress)}
            try:
                self._record(model, self._trace, rates)
            except StorageError as error:
                # Days of somebody's training are worth more than our record of them.
                logger.warning("recording has stopped, training goes on: %s", error)
                self._stopped = True
            self._rates, self._trace = [], None
        if self._update >= self.first and (self.last is None or self._update < self.last):
            self._rates.append(rate)

    def _record(self, model: OnPolicyAlgorithm, trace: Trace, rates: Mapping[str, float]) -> None:
        buffer = model.rollout_buffer
        observations, actions = in_one(buffer.observations, 2, single=True), buffer.actions
        if isinstance(model.observation_space, spaces.Discrete):
            observations = observations[:, :, 0]
        if isinstance(model.action_space, spaces.Discrete):
            actions = actions[:, :, 0]
        masks = getattr(buffer, "action_masks", None)
        between = self._rates
        known = (sum(between) or None) if self.learning_rates else None
        assert self._writer is not None
        record_stage(
            self._writer,
            Rollout(
                observations,
                actions,
                terminated=trace.terminated,
                truncated=trace.truncated,
                next_observations=trace.following(observations, self.locals["new_obs"]),
                features=trace.features(),
                action_masks=None if masks is None else masks > 0,
            ),
            parameters=policy_parameters(model),
            learning_rate=known,
            notes={
                "update": self._update,
                "timesteps": model.num_timesteps - trace.terminated.size,
                **rates,
                **({"learning_rates_between": between} if between and self.every > 1 else {}),
                "continues": trace.continues(),
                **trace.returns(),
                **normaliser_notes(self.training_env),
            },
        )
        logger.info("update %d: recorded %d steps", self._update, trace.terminated.size)

    def _on_training_end(self) -> None:
        if self._tap is not None:
            self._tap.remove()
            self._tap = None
        if self._writer is not None and not self._stopped:
            try:
                self._writer.close()
            except StorageError as error:
                logger.warning("the history is not marked complete: %s", error)


def _check_updates(every: int, first: int, last: int | None) -> None:
    if every < 1 or first < 0 or (last is not None and last < first):
        raise OptionError(
            f"every must be at least 1 and 0 <= first <= last, but every is {every}, first "
            f"{first}, last {last}"
        )


def _checked(model: Any) -> OnPolicyAlgorithm:
    """The model, if its rollouts can be recorded."""
    buffer = getattr(model, "rollout_buffer", None)
    if not isinstance(model, OnPolicyAlgorithm) or not isinstance(buffer, RolloutBuffer):
        raise OptionError(
            f"{type(model).__name__} is not an on-policy algorithm: record PPO, A2C, TRPO or "
            "MaskablePPO"
        )
    if hasattr(buffer, "hidden_states_pi"):
        raise OptionError(
            f"{type(model).__name__} chooses actions by more than the observation (memory), which "
            "a history cannot hold"
        )
    if hasattr(buffer, "action_masks") and not isinstance(model.action_space, spaces.Discrete):
        raise OptionError(
            f"{type(model).__name__} masks {type(model.action_space).__name__} actions, but "
            "histories hold masks of Discrete ones"
        )
    return model


def _facts(model: OnPolicyAlgorithm) -> dict[str, Any]:
    """What a history's metadata say about the run."""
    family = SB3Policy.from_model(model)
    hidden = plain_hidden(model.policy)
    network = None if hidden is not None else network_facts(model.policy)
    action_space = model.action_space
    spec = _spec_name(model.get_env())
    return {
        "learner": type(model).__name__,
        "environment": spec,
        "gamma": float(model.gamma),
        "n_envs": int(model.n_envs),
        "n_steps": int(model.n_steps),
        "seed": None if model.seed is None else int(model.seed),
        "policy": {
            "family": type(family).__name__,
            "hidden": None if hidden is None else list(hidden),
            "n_parameters": family.n_parameters,
            **({} if network is None else {"network": network}),
        },
        **{
            name: int(space.n)
            for name, space in (("n_actions", action_space), ("n_states", model.observation_space))
            if isinstance(space, spaces.Discrete)
        },
    }


def _spec_name(env: VecEnv | None) -> str | None:
    """The environment's Gymnasium name, if it has one and lives in this process.

    Asking another process would pickle the specification there, which can fail and end it.
    """
    envs = getattr(None if env is None else env.unwrapped, "envs", None)
    spec = envs[0].unwrapped.spec if isinstance(envs, list) and envs else None
    name = getattr(spec, "id", None)
    return name if isinstance(name, str) else None


def normaliser_notes(env: VecEnv) -> dict[str, Any]:
    """Statistics of the environment's observation normaliser, JSON-serialisable; else empty."""
    normaliser = unwrap_vec_normalize(env)
    if normaliser is None or not normaliser.norm_obs:
        return {}
    statistics: Any = normaliser.obs_rms
    by_name = isinstance(statistics, dict)  # of Dict observations

    def told(what: str) -> Any:
        if by_name:
            return {name: getattr(one, what).tolist() for name, one in statistics.items()}
        return getattr(statistics, what).tolist()

    return {
        "observation_mean": told("mean"),
        "observation_var": told("var"),
        "observation_epsilon": float(normaliser.epsilon),
        "observation_clip": float(normaliser.clip_obs),
    }
