"""Torch modules as policies: several distributions, images as bytes, observations by name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy.special import expit, log_softmax
from torch import nn

from logel import LearningHistory, TorchPolicy, infer_reward
from logel.contract.family import check_family
from logel.data.observations import as_numbers, storable
from logel.data.stage import Episode, Stage
from logel.envs.gridworld import gridworld_mdp
from logel.envs.tabular import feature_action_values, sample_episodes
from logel.errors import LogelError, OptionError, PolicyError
from logel.policies.architecture import policy_of_facts
from logel.policies.base import Policy
from logel.policies.networks import MLPCategorical
from logel.studies.measures import judge_estimate
from logel.types import Array, Float
from logel.worlds.coordinates import Sketch

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 1, 8, 8)).astype(np.uint8)
ACTIONS = {
    "categorical": (spaces.Discrete(4), 4),
    "gaussian": (spaces.Box(-1, 1, (2,)), 2),
    "several": (spaces.MultiDiscrete([3, 2]), 5),
    "flags": (spaces.MultiBinary(3), 3),
}
SEEN = spaces.Dict(
    {"camera": spaces.Box(0, 255, (1, 8, 8), np.uint8), "at": spaces.Box(-1, 1, (2,))}
)


def convolutional(outputs: int) -> nn.Module:
    parts = nn.Conv2d(1, 2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, outputs)
    return nn.Sequential(*parts)


class Both(nn.Module):
    """Looks at a picture and at two numbers."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.camera, self.rest = convolutional(3), nn.Linear(5, outputs)

    def forward(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.rest(torch.cat([self.camera(seen["camera"]), seen["at"]], dim=1))
        return found


def by_name(n: int) -> Array:
    parts = {"camera": IMAGES[np.arange(n) % 40], "at": RNG.normal(size=(n, 2)).astype(np.float32)}
    return Stage(parts, np.zeros(n, int), [n], [False]).observations


@pytest.mark.parametrize("name", ACTIONS)
def test_families_of_modules_keep_the_contract(name: str) -> None:
    space, outputs = ACTIONS[name]
    torch.manual_seed(0)
    check_family(TorchPolicy(convolutional(outputs), space), IMAGES)


def test_a_family_that_sees_parts_by_name_keeps_the_contract() -> None:
    torch.manual_seed(0)
    policy = TorchPolicy(Both(4), spaces.Discrete(4), observations=SEEN)
    check_family(policy, by_name(40))
    again = pickle.loads(pickle.dumps(policy))
    assert again.n_parameters == policy.n_parameters


def test_choices_are_independent_softmaxes_by_hand() -> None:
    policy = TorchPolicy(nn.Linear(2, 5), spaces.MultiDiscrete([3, 2]))
    theta, x = RNG.normal(size=15), RNG.normal(size=(6, 2))
    taken = np.stack([RNG.integers(0, 3, 6), RNG.integers(0, 2, 6)], axis=1)
    logits = x @ theta[:10].reshape(5, 2).T + theta[10:]
    rows = np.arange(6)
    first = log_softmax(logits[:, :3], axis=1)[rows, taken[:, 0]]
    second = log_softmax(logits[:, 3:], axis=1)[rows, taken[:, 1]]
    found = log_prob(policy, theta, x, taken)
    np.testing.assert_allclose(found, first + second, rtol=1e-12)


def test_flags_are_independent_coins_by_hand() -> None:
    policy = TorchPolicy(nn.Linear(2, 3), spaces.MultiBinary(3))
    theta, x = RNG.normal(size=9), RNG.normal(size=(6, 2))
    flags = RNG.integers(0, 2, (6, 3))
    chance = expit(x @ theta[:6].reshape(3, 2).T + theta[6:])
    expected = np.where(flags == 1, np.log(chance), np.log(1 - chance)).sum(axis=1)
    np.testing.assert_allclose(log_prob(policy, theta, x, flags), expected, rtol=1e-12)


def log_prob(policy: Policy, theta: Float, seen: Array, actions: Array) -> Float:
    prepared = policy.prepare_observations(seen), policy.prepare_actions(actions)
    return policy.log_prob(policy.tensor(theta), *prepared).detach().numpy()


@pytest.mark.parametrize("name", ["several", "flags"])
def test_movements_are_covariances_with_the_log_ratio(name: str) -> None:
    """By going through all combinations of choices."""
    space, outputs = ACTIONS[name]
    policy = TorchPolicy(nn.Linear(2, outputs), space)
    theta, after = RNG.normal(size=(2, policy.n_parameters))
    x = RNG.normal(size=(1, 2))
    every = np.stack(np.meshgrid(*(np.arange(n) for n in policy.choices)), -1)
    every = every.reshape(-1, len(policy.choices))
    seen = np.repeat(x, len(every), axis=0)
    chances = np.exp(log_prob(policy, theta, seen, every))
    ratio = log_prob(policy, after, seen, every) - log_prob(policy, theta, seen, every)
    now, then = (
        policy.outputs(policy.tensor(t), policy.tensor(seen)).detach().numpy()
        for t in (theta, after)
    )
    rows, _ = policy.output_rows(now, every, then)
    np.testing.assert_allclose(chances @ rows.values, 0, atol=1e-12)
    np.testing.assert_allclose(chances @ (rows.values * ratio[:, None]), rows.movement[0])
    squares = rows.values.T @ (chances[:, None] * rows.values)
    np.testing.assert_allclose(squares, rows.information[0], atol=1e-12)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Discrete(3, start=1), "numbered from 0"),
        (spaces.MultiDiscrete([[2, 2]]), "flat"),
        (spaces.Text(3), "no distribution is known"),
    ],
)
def test_actions_without_a_distribution_are_refused(space: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        TorchPolicy(nn.Linear(1, 1), space)


def test_mistakes_are_named() -> None:
    with pytest.raises(OptionError, match="not a dict"):
        TorchPolicy({}, spaces.Discrete(2))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="double or single"):
        TorchPolicy(nn.Linear(1, 2), spaces.Discrete(2), precision="half")
    plain = TorchPolicy(nn.Linear(2, 2), spaces.Discrete(2))
    with pytest.raises(PolicyError, match="observations=space"):
        plain.prepare_observations(by_name(3))
    named = TorchPolicy(Both(2), spaces.Discrete(2), observations=SEEN)
    with pytest.raises(PolicyError, match="have several parts, but the data's do not"):
        named.prepare_observations(np.zeros((3, 2)))
    several = TorchPolicy(nn.Linear(2, 5), spaces.MultiDiscrete([3, 2]))
    stage = Stage(np.zeros((2, 2)), np.array([[0, 0], [0, 2]]), [2], [False])
    with pytest.raises(PolicyError, match=r"episode 0, time 1: choice 1 is 2, outside 0\.\.1"):
        several.check(stage)


def test_single_precision_is_exact_to_six_digits() -> None:
    """Sums over a stage of 300 steps, against double precision: Jacobians and likelihoods."""
    picture = {"name": None, "shape": [4, 36, 36], "features": 64, "bytes": True}
    facts = {"inputs": [picture], "hidden": [], "activation": "relu", "actions": "Discrete"}
    single = policy_of_facts({**facts, "sizes": [4]})
    double = TorchPolicy(single.module, spaces.Discrete(4))
    assert (single.precision, double.precision) == ("single", "double")
    theta = single.initial(np.random.default_rng(1))
    seen = np.random.default_rng(2).integers(0, 256, (300, 4, 36, 36)).astype(np.uint8)
    actions = np.random.default_rng(3).integers(0, 4, 300)
    to_go = torch.tensor(np.random.default_rng(4).normal(size=(300, 3)))
    prepared = double.prepare_observations(seen), double.prepare_actions(actions)
    found, exact = (p.vjp(p.tensor(theta), *prepared, to_go) for p in (single, double))
    assert found.dtype == torch.float64
    assert (found - exact).norm() < 2e-6 * exact.norm()
    gap = log_prob(single, theta, seen, actions) - log_prob(double, theta, seen, actions)
    assert np.abs(gap).max() < 1e-6


def test_images_stay_bytes_on_disk_and_in_memory(tmp_path: Path) -> None:
    episodes = [Episode(IMAGES[:11], np.arange(10) % 4, np.ones((10, 1))) for _ in range(2)]
    LearningHistory.from_episodes([episodes, episodes]).save(tmp_path / "run")
    stage = LearningHistory.load(tmp_path / "run")[1]
    assert stage.observations.dtype == stage.last_observations.dtype == np.uint8
    assert (tmp_path / "run" / "stage-00000.safetensors").stat().st_size < 2 * 11 * 64 + 1500
    policy = TorchPolicy(convolutional(4), spaces.Discrete(4))
    prepared = policy.prepare_observations(stage.observations)
    assert prepared.dtype == torch.uint8
    assert prepared.data_ptr() == stage.observations.ctypes.data  # not even copied
    # Bytes that are no image are numbers, as they were before.
    assert storable(np.zeros((3, 2), np.uint8)).dtype == np.int64


def test_parts_by_name_go_to_disk_and_back(tmp_path: Path) -> None:
    seen = by_name(11)
    episodes = [Episode({n: seen[n] for n in SEEN}, np.arange(10) % 2, np.ones((10, 1)))]
    history = LearningHistory.from_episodes([episodes, episodes])
    history.save(tmp_path / "run")
    again = LearningHistory.load(tmp_path / "run")
    assert again.signature == history.signature
    assert again.signature.observation_parts == (
        ("at", (2,), "float32"),
        ("camera", (1, 8, 8), "uint8"),
    )
    assert again[0].observations.dtype == seen.dtype
    assert np.array_equal(again[0].observations["camera"], seen["camera"][:10])
    assert np.array_equal(again[1].last_observations["at"], seen["at"][10:])
    assert as_numbers(again[0].observations).shape == (10, 66)
    features = again[0].with_features(lambda o, a, following: following["at"])
    assert np.array_equal(features.features, seen["at"][1:])


def test_a_sketch_finds_the_few_pictures_there_are() -> None:
    """Coordinates of 24 pictures tell them apart linearly: an indicator of each is a function."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (24, 4, 30, 30)).astype(np.uint8)
    shown = rng.integers(0, 24, 400)
    sketch = Sketch(3600)
    for rows in np.array_split(shown, 3):
        sketch.add(pictures[rows])
    axes = sketch.axes()
    z = np.concatenate([axes(pictures[shown]), np.ones((400, 1))], axis=1)
    indicators = np.eye(24)[shown]
    left = indicators - z @ np.linalg.lstsq(z, indicators, rcond=None)[0]
    assert z.shape[1] == 24 and np.abs(left).max() < 1e-3
    centred = pictures[shown].reshape(400, -1) / 255
    exact = np.linalg.svd(centred - centred.mean(axis=0), compute_uv=False)[:23] / np.sqrt(400)
    np.testing.assert_allclose(axes.spread, exact, rtol=2e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": [2**24, 2**24]},
        {"hidden": [-1]},
        {"activation": "__import__"},
        {"sizes": [1.5]},
        {"inputs": []},
        {"inputs": [{"name": "a", "shape": [4, 4, 4], "features": 8, "bytes": True}]},
        {"inputs": [{"name": None, "shape": [2], "features": None, "bytes": False}] * 2},
        {"actions": "Tuple"},
    ],
)
def test_facts_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    sound = {"name": None, "shape": [2], "features": None, "bytes": False}
    facts = {"inputs": [sound], "hidden": [3], "activation": "relu"}
    facts |= {"actions": "Discrete", "sizes": [2]}
    assert policy_of_facts(facts).n_parameters == 9 + 8
    with pytest.raises(LogelError, match=r"no sense|budget"):
        policy_of_facts({**facts, **change})


def drawn(weights: Float) -> tuple[LearningHistory, LearningHistory, TorchPolicy, MLPCategorical]:
    """One tabular learner, seen by its states' numbers and by its frames of 15 x 15 pixels."""
    mdp = gridworld_mdp(gamma=0.9)
    frames = np.zeros((25, 1, 15, 15), np.uint8)
    for state in range(25):
        row, column = divmod(state, 5)
        frames[state, 0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] = 255
    rng, logits, plain = np.random.default_rng(5), np.zeros((25, 4)), []
    for _ in range(6):
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        plain.append(sample_episodes(mdp, p, rng=rng, n_episodes=60, horizon=25).stage())
        logits = logits + 0.4 * feature_action_values(mdp, p) @ weights
    shown = [
        Stage(
            frames[s.observations], s.actions, s.lengths, s.terminated,
            frames[s.last_observations], s.features,
        )
        for s in plain
    ]  # fmt: skip
    facts = {"metadata": {"gamma": 0.9}, "feature_names": mdp.feature_names}
    parts = nn.Conv2d(1, 8, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(200, 4)
    histories = (LearningHistory.from_stages(stages, **facts) for stages in (plain, shown))
    large = TorchPolicy(nn.Sequential(*parts), spaces.Discrete(4), precision="single")
    return *histories, large, MLPCategorical(25, 4, (32,), one_hot=True)


@pytest.mark.parametrize("method", ["mirror", "paper"])
def test_frames_tell_what_numbers_of_states_tell(method: str) -> None:
    """Cloned from actions alone, the direction errors of both are alike."""
    truth = np.array([-0.2, -0.4, -0.6, 0.3, 0.6])
    numbers, frames, large, small = drawn(truth)
    errors = []
    for history, policy in ((numbers, small), (frames, large)):
        found = infer_reward(history, policy, method=method, intervals=False)
        errors.append(judge_estimate(found, truth, intervals=False)["error"])
    assert errors[1] < errors[0] + 0.1
