"""From a folder of Stable-Baselines3 checkpoints and an environment to a history.

Training runs that nobody recorded often left checkpoints. Each is read without executing anything
in it, acts in the environment for some episodes, and becomes a stage. Neither Stable-Baselines3
nor the run's own code is needed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from logel.data.facts import call_with_facts
from logel.data.folder import HistoryWriter
from logel.data.history import LearningHistory
from logel.data.limits import MALFORMED, read_json
from logel.data.rollout import record_stage
from logel.data.settings import KEY, LearnerSettings
from logel.data.stage import Episode
from logel.data.store import new_folder
from logel.errors import FormatError, OptionError, PolicyError, check_gamma, one_line
from logel.policies.base import Policy
from logel.policies.gaussian import GaussianPolicy
from logel.policies.sb3 import SB3Policy, checkpoint_parameters, shows_states, shows_vectors
from logel.policies.sb3_checkpoint import recorded_gamma
from logel.policies.sb3_settings import checkpoint_settings, updates_between
from logel.policies.softmax import SoftmaxPolicy
from logel.rewards.features import RewardFeatures, StepFeatures
from logel.rewards.normaliser import Normaliser
from logel.types import Array, Float, Progress
from logel.workers import Executor, Workers, opened

# Environments that act at a time: a policy is asked once for all of them.
_SIDE_BY_SIDE = 16


def read_normaliser(path: Path, shape: tuple[int, ...]) -> Normaliser:
    """From JSON with the keys of `normaliser_notes` (`logel.learners.sb3`)."""
    raw = read_json(path)
    try:
        mean, var = (np.array(raw[f"observation_{k}"], dtype=float) for k in ("mean", "var"))
        epsilon = float(raw.get("observation_epsilon", Normaliser.epsilon))
        clip = float(raw.get("observation_clip", Normaliser.clip))
    except MALFORMED as error:
        raise FormatError(f"{path} holds no normaliser's statistics: {one_line(error)}") from None
    sound = np.isfinite([*mean.ravel(), *var.ravel(), epsilon]).all() and clip > 0
    fits = mean.shape == shape and var.shape == shape
    if not (fits and sound and (var + epsilon > 0).all()):
        raise FormatError(
            f"{path}: observation_mean and observation_var must be finite, of shape {shape}, "
            "with positive variances"
        )
    return Normaliser(mean, var, epsilon, clip)


def find_checkpoints(folder: str | PathLike[str]) -> dict[int, Path]:
    """The checkpoints of a folder, by the number of steps their names tell, in that order."""
    root = Path(folder)
    if not root.is_dir():
        raise OptionError(f"there is no folder of checkpoints at {root}")
    found: dict[int, Path] = {}
    for path in sorted(root.glob("*.zip")):
        match = re.search(r"(\d{1,18})_steps$", path.stem) or re.search(
            r"(\d{1,18})\D*$", path.stem
        )
        if match is None:
            raise OptionError(
                f"{path.name} does not tell its step: name it rl_model_1000_steps.zip"
            )
        step = int(match[1])
        if step in found:
            raise OptionError(
                f"{found[step].name} and {path.name} are both of step {step}: keep one run's "
                "checkpoints in a folder of their own"
            )
        found[step] = path
    if len(found) < 2:
        raise OptionError(
            f"{root} holds {len(found)} checkpoints (.zip): at least two are needed to see the "
            "learner move"
        )
    return dict(sorted(found.items()))


def record_checkpoints(
    folder: str | PathLike[str],
    env_id: str,
    out: str | PathLike[str],
    *,
    features: RewardFeatures | StepFeatures,
    episodes: int = 50,
    activation: str = "tanh",
    gamma: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    workers: int | Workers | Executor = 1,
) -> LearningHistory:
    """Let every checkpoint act and write down what happens as a history.

    The episodes are fresh ones, not those the learner learnt from. Networks with other activations
    than tanh are recorded without parameters: inference clones them.

    Args:
        folder: Holds checkpoints of one run, all of an MlpPolicy (`CheckpointCallback` writes
            such), each with the number of steps in its name. Where the run normalised
            observations, `NAME.json` beside `NAME.zip` holds the statistics.
        env_id: Gymnasium name of the environment.
        out: Folder of the new history.
        features: What a reward may be made of, as for `HistoryRecorder`.
        episodes: Per checkpoint.
        activation: Between the layers of the networks, see `SB3Policy.from_checkpoint`.
        gamma: The learner's discount factor; by default the one in the first checkpoint.
        seed: Of the environments and of the policies' choices.
        progress: Called with (what, done, total).
        workers: How many checkpoints act at a time; the history is the same.
    """
    _check_options(episodes, gamma)
    checkpoints = find_checkpoints(folder)
    paths = list(checkpoints.values())
    # All are read before anything is written, and a new folder is all or nothing: neither a bad
    # checkpoint nor Ctrl-C leaves half a history behind.
    policy, thetas = _policies(paths, activation)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(contextlib.closing(_make(env_id)))
        shape, discrete = _check_spaces(one, policy, env_id), shows_states(one.observation_space)
        normalisers = [_normaliser(path, shape) for path in paths]
        discount = recorded_gamma(paths[0]) if gamma is None else gamma
        facts = {
            **_facts(policy, env_id, discount, activation),
            **({"n_states": shape[0]} if discrete else {}),
            **_settings(paths, discount, activation),
        }
        unfinished = stack.enter_context(new_folder(out))
        writer = stack.enter_context(
            HistoryWriter(unfinished, feature_names=features.names, metadata=facts)
        )
        run = stack.enter_context(opened(workers))
        common = _Acting(env_id, policy, features, episodes, seed)
        acted = run.map(_episodes, enumerate(zip(thetas, normalisers, strict=True)), common)
        told = zip(checkpoints, thetas, acted, strict=True)
        for index, (step, theta, seen) in enumerate(told):
            record_stage(
                writer,
                seen,
                parameters=theta if activation == "tanh" else None,
                notes={"timesteps": step, "checkpoint": paths[index].name},
            )
            if progress is not None:
                progress("checkpoints", index + 1, len(paths))
    return LearningHistory.load(out)


class _Acting(NamedTuple):
    """What all checkpoints have in common."""

    env_id: str
    policy: Policy
    features: RewardFeatures | StepFeatures
    n_episodes: int
    seed: int


def _episodes(
    common: _Acting, checkpoint: tuple[int, tuple[Float, Normaliser | None]]
) -> list[Episode]:
    """What one checkpoint does, in environments of its own."""
    index, (theta, normaliser) = checkpoint
    with contextlib.ExitStack() as stack:
        envs = [
            stack.enter_context(contextlib.closing(_make(common.env_id)))
            for _ in range(min(common.n_episodes, _SIDE_BY_SIDE))
        ]
        sampler = _Sampler(envs, common.policy, theta, normaliser, common.features)
        return sampler.episodes(common.n_episodes, np.random.default_rng([common.seed, index]))


def _check_options(episodes: int, gamma: float | None) -> None:
    if episodes < 1:
        raise OptionError(f"episodes must be at least 1, but is {episodes}")
    if gamma is not None:
        check_gamma(gamma)


def _policies(paths: list[Path], activation: str) -> tuple[Policy, list[Float]]:
    """The family of a run's policies, and the parameters in every checkpoint."""
    policy = SB3Policy.from_checkpoint(paths[0], activation=activation)
    thetas = [checkpoint_parameters(path) for path in paths]
    for path, theta in zip(paths, thetas, strict=True):
        if len(theta) != policy.n_parameters:
            raise PolicyError(
                f"{path} has {len(theta)} parameters, but {paths[0]} {policy.n_parameters}: keep "
                "one run's checkpoints in a folder of their own"
            )
    return policy, thetas


class _Walk:
    """An episode as it happens."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        self.env = env
        # Copies: environments may hand out one array and overwrite it in the next step.
        self.seen: list[Array] = [np.array(env.reset(seed=seed)[0])]
        self.chosen: list[Any] = []
        self.taken: list[Any] = []
        self.infos: list[dict[str, Any]] = []
        self.terminated = False

    def goes_on_after(self, action: Any) -> bool:
        """Act, and tell whether there is more to do."""
        received = _received(self.env, action)
        following, _, ended, cut, info = self.env.step(received)
        self.seen.append(np.array(following))
        self.chosen.append(action)
        self.taken.append(received)
        self.infos.append(info)
        self.terminated = bool(ended)
        return not (ended or cut)


@dataclass(frozen=True)
class _Sampler:
    """One policy in copies of one environment."""

    envs: list[gymnasium.Env[Any, Any]]
    policy: Policy
    theta: Float
    normaliser: Normaliser | None
    features: RewardFeatures | StepFeatures

    def episodes(self, n: int, rng: np.random.Generator) -> list[Episode]:
        """Whole episodes, several side by side."""
        result: list[Episode] = []
        while len(result) < n:
            going = [_Walk(env, int(rng.integers(2**31))) for env in self.envs[: n - len(result)]]
            walks = going
            while going:
                observations = self._seen(np.array([walk.seen[-1] for walk in going]))
                actions = self.policy.sample(self.theta, observations, rng)
                pairs = zip(going, actions, strict=True)
                going = [walk for walk, action in pairs if walk.goes_on_after(action)]
            result += map(self._episode, walks)
        return result

    def _episode(self, walk: _Walk) -> Episode:
        raw, taken = np.array(walk.seen), np.array(walk.taken)
        if isinstance(self.features, StepFeatures):
            table = self.features.rows(raw[:-1], taken, raw[1:], walk.infos)
        else:
            ended = np.arange(len(taken)) == len(taken) - 1
            computed = call_with_facts(
                self.features,
                *(raw[:-1], taken, raw[1:]),
                terminated=ended & walk.terminated,
                truncated=ended & (not walk.terminated),
                times=np.arange(len(taken)),
            )
            table = np.asarray(computed, dtype=np.float64)
        return Episode(self._seen(raw), np.array(walk.chosen), table, terminated=walk.terminated)

    def _seen(self, raw: Array) -> Array:
        if raw.ndim == 1 and raw.dtype.kind == "i":
            return raw
        flat = raw.reshape(len(raw), -1)
        return flat.astype(np.float32) if self.normaliser is None else self.normaliser(flat)


def _received(env: gymnasium.Env[Any, Any], action: Any) -> Any:
    """The action as the environment takes it: Stable-Baselines3 clips to the bounds."""
    space = env.action_space
    if isinstance(space, spaces.Box):
        clipped = np.clip(action, space.low.reshape(-1), space.high.reshape(-1))
        return clipped.reshape(space.shape).astype(space.dtype)
    return int(action)


def _make(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        raise OptionError(f"cannot make the environment {env_id!r}: {error}") from None


def _check_spaces(env: gymnasium.Env[Any, Any], policy: Policy, env_id: str) -> tuple[int, ...]:
    """The shape of a flat observation, if the policy can act in the environment."""
    width, actions = _shown(env.observation_space, env_id), env.action_space
    outputs = -1
    if isinstance(actions, spaces.Discrete) and isinstance(policy, SoftmaxPolicy):
        if actions.start != 0:
            raise OptionError(f"the actions of {env_id} must be numbered from 0")
        outputs = int(actions.n)
    elif isinstance(actions, spaces.Box) and isinstance(policy, GaussianPolicy):
        outputs = int(np.prod(actions.shape))
    found = _widths(policy)
    if found != (width, outputs):
        raise OptionError(
            f"the checkpoints are of another environment than {env_id}: their policy takes "
            f"{found[0]} numbers and puts out {found[1]}, the environment shows {width} and takes "
            f"{actions}"
        )
    return (width,)


def _shown(space: Any, env_id: str) -> int:
    """How many numbers a network takes of what an environment shows."""
    if shows_states(space):
        return int(space.n)
    if shows_vectors(space):
        return int(np.prod(space.shape))
    raise OptionError(
        f"{env_id} must show vectors of numbers or numbers of states, but shows {space}"
    )


def _widths(policy: Policy) -> tuple[int, int]:
    """Numbers a policy takes and puts out."""
    module = getattr(policy, "module", None)
    linear = [] if module is None else [m for m in module.modules() if hasattr(m, "in_features")]
    if linear:
        return int(linear[0].in_features), int(linear[-1].out_features)
    outputs = getattr(policy, "n_actions", getattr(policy, "action_dim", 0))
    return int(getattr(policy, "observation_dim", 0)), int(outputs)


def _normaliser(path: Path, shape: tuple[int, ...]) -> Normaliser | None:
    """The statistics beside a checkpoint, None if the run did not normalise."""
    statistics = path.with_suffix(".json")
    if statistics.is_file():
        return read_normaliser(statistics, shape)
    pickles = [p.name for p in path.parent.glob("*.pkl") if "normalize" in p.name.lower()]
    if pickles:
        raise OptionError(
            f"{path.parent} holds {sorted(pickles)[0]}, a pickle, which is never loaded: load it "
            "yourself with VecNormalize.load and write json.dumps(normaliser_notes(env)), of "
            f"logel.learners.sb3, to {statistics.name}"
        )
    return None


def _settings(paths: list[Path], gamma: float | None, activation: str) -> dict[str, Any]:
    """What the learner says of itself in its first checkpoint, as a part of the metadata."""
    settings = checkpoint_settings(paths[0])
    if settings is None:
        return {}
    told = {
        **settings.to_json(),
        **({} if gamma is None else {"gamma": gamma}),
        "activation": activation,
        "n_updates_between": updates_between(settings, paths),
    }
    return {KEY: LearnerSettings.believed(told).to_json()}


def _facts(policy: Policy, env_id: str, gamma: float | None, activation: str) -> Mapping[str, Any]:
    hidden = getattr(policy, "hidden", None)
    return {
        "learner": "checkpoints of Stable-Baselines3",
        "environment": env_id,
        **({} if gamma is None else {"gamma": gamma}),
        "policy": {
            "family": type(policy).__name__,
            "hidden": None if hidden is None else list(hidden),
            "n_parameters": policy.n_parameters,
            "activation": activation,
        },
        **({"n_actions": policy.n_actions} if isinstance(policy, SoftmaxPolicy) else {}),
    }
