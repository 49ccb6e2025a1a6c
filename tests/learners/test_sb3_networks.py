"""Recording Stable-Baselines3's policies on images and Dict observations, with several choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from logel import HistoryRecorder, LearningHistory, SB3Policy, infer_reward
from logel.errors import OptionError
from logel.policies.choose import choose_policy
from logel.policies.sb3 import set_policy_parameters

A2C = pytest.importorskip("stable_baselines3").A2C
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
VECTOR = spaces.Box(-1, 1, (3,), np.float64)
SEEN = {
    "MlpPolicy": VECTOR,
    "CnnPolicy": IMAGE,
    "MultiInputPolicy": spaces.Dict({"camera": IMAGE, "speed": VECTOR}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,)),
    "several": spaces.MultiDiscrete([3, 2]),
    "flags": spaces.MultiBinary(3),
}


class Slide(gymnasium.Env[Any, Any]):
    """Somebody on a line, drawn or measured; pays for the place and for the first action."""

    def __init__(self, seen: str, actions: str) -> None:
        self.observation_space, self.action_space = SEEN[seen], ACTIONS[actions]
        self.seen = seen

    def look(self) -> Any:
        image, left = np.zeros((36, 36, 1), np.uint8), int(self.x * 28)
        image[left : left + 6, 10:16] = 200
        vector = np.array([self.x, self.x**2, 1.0])
        both = {"camera": image, "speed": vector}
        return {"MlpPolicy": vector, "CnnPolicy": image}.get(self.seen, both)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.time = float(self.np_random.random()), 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = np.ravel(action)
        push = 0.1 * (taken.sum() - len(taken) / 2) / len(taken)
        self.x = float(np.clip(self.x + push + 0.02 * self.np_random.standard_normal(), 0, 1))
        self.time += 1
        features = np.array([self.x, float(taken[0] > 0)])
        paid = float(features @ [1.0, -0.3])
        return self.look(), paid, False, self.time >= 20, {"features": features}


def recorded(
    folder: Path, seen: str, actions: str, n_steps: int = 40
) -> tuple[Any, LearningHistory]:
    """A model and its run of six updates."""
    network: dict[str, Any] = {"net_arch": [8]}
    if seen == "MlpPolicy":
        network["activation_fn"] = torch.nn.ReLU
    if seen == "CnnPolicy":
        network["features_extractor_kwargs"] = {"features_dim": 16}
    world = Slide(seen, actions)
    model = A2C(seen, world, n_steps=n_steps, policy_kwargs=network, seed=0, device="cpu")
    recorder = HistoryRecorder(folder, feature_names=["place", "pushed"])
    model.learn(6 * n_steps, callback=recorder)
    return model, LearningHistory.load(folder)


CASES = [
    *((seen, "several") for seen in SEEN),
    *(("MlpPolicy", actions) for actions in ACTIONS if actions != "several"),
    ("CnnPolicy", "box"),
    ("MultiInputPolicy", "flags"),
]


@pytest.mark.parametrize(("seen", "actions"), CASES)
def test_policies_are_recorded_with_parameters_and_rebuilt_from_facts(
    tmp_path: Path, seen: str, actions: str
) -> None:
    """Rebuilt without loading code, they give the probabilities that the model itself gives."""
    model, history = recorded(tmp_path / "run", seen, actions)
    policy, stage = choose_policy(history, "auto"), history[3]
    assert policy.n_parameters == SB3Policy.from_model(model).n_parameters == stage.n_parameters
    set_policy_parameters(model, stage.parameters)
    parts = stage.observations.dtype.names
    if parts is None:
        shown: Any = torch.tensor(stage.observations)
    else:
        shown = {name: torch.tensor(stage.observations[name]) for name in parts}
    taken = torch.tensor(stage.actions)
    taken = taken.float() if actions == "flags" else taken  # as torch's Bernoulli wants them
    expected = model.policy.evaluate_actions(shown, taken)[1].detach()
    for family in (policy, SB3Policy.from_model(model)):
        theta = family.tensor(stage.parameters)
        found = family.log_prob(theta, *family.prepare(stage))
        np.testing.assert_allclose(found.detach(), expected, atol=2e-6)
    estimate = infer_reward(history, method="mirror", intervals=False)
    assert np.isfinite(estimate.weights).all()


def test_frames_keep_their_bytes_and_their_last_one(tmp_path: Path) -> None:
    _, history = recorded(tmp_path / "run", "CnnPolicy", "discrete")
    stage = history[0]
    assert stage.observations.dtype == np.uint8
    assert stage.observations.shape == (40, 1, 36, 36)  # channels first, as the policy saw them
    assert stage.last_observations is not None and stage.last_observations.shape[1:] == (1, 36, 36)
    assert stage.observations.nbytes == 40 * 36 * 36
    assert history.own_episodes
    # Where somebody is drawn is where the features say that he went.
    after = stage.next_observations()[:, 0, :, 12]
    drawn = np.argmax(after > 0, axis=1)
    assert np.array_equal(drawn, (stage.features[:, 0] * 28).astype(int))


def test_features_are_computed_from_parts_by_name(tmp_path: Path) -> None:
    model = A2C("MultiInputPolicy", Slide("MultiInputPolicy", "discrete"), n_steps=30, device="cpu")

    def place(before: Any, actions: Any, after: Any) -> Any:
        return np.stack([after["speed"][:, 0], actions > 0], axis=1)

    model.learn(60, callback=HistoryRecorder(tmp_path / "run", place, feature_names=["p", "a"]))
    stage = LearningHistory.load(tmp_path / "run")[1]
    following = stage.next_observations()["speed"][:, 0]
    np.testing.assert_allclose(stage.features[:, 0], following, atol=1e-6)


def test_images_and_parts_are_cloned(tmp_path: Path) -> None:
    _, history = recorded(tmp_path / "run", "MultiInputPolicy", "discrete")
    estimate = infer_reward(history, method="mirror", use_parameters=False, intervals=False)
    assert np.isfinite(estimate.weights).all()


def test_a_networks_facts_are_strangers_words(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "MlpPolicy", "discrete")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["metadata"]["policy"]["network"]["hidden"] = ["8"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(OptionError, match="makes no sense"):
        infer_reward(LearningHistory.load(tmp_path / "run"), method="mirror")
