"""Stable-Baselines3 policies as families, and checkpoints from strangers."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy
from torch import nn

from logel import LearningHistory, MLPCategorical, MLPGaussian, SB3Policy, Stage, infer_reward
from logel.errors import FormatError, PolicyError
from logel.policies.base import Policy
from logel.policies.sb3 import checkpoint_parameters, policy_parameters, set_policy_parameters
from logel.policies.sb3_checkpoint import read_checkpoint, recorded_gamma
from logel.policies.torch_policy import TorchFamily

VECTOR = spaces.Box(-np.inf, np.inf, (4,), dtype=np.float64)
BOX = spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "tanh": (VECTOR, BOX, {}),
    "tanh wide": (VECTOR, spaces.Discrete(3), {"net_arch": {"pi": [8], "vf": [5, 5]}}),
    "linear": (VECTOR, BOX, {"net_arch": []}),
    "relu": (VECTOR, BOX, {"activation_fn": nn.ReLU, "net_arch": [6, 7]}),
    "elu": (VECTOR, spaces.Discrete(3), {"activation_fn": nn.ELU, "net_arch": [6]}),
    "states": (spaces.Discrete(5), spaces.Discrete(3), {"net_arch": [6]}),
    "codes": (spaces.MultiDiscrete([3, 2]), BOX, {"net_arch": [6]}),
}


def policy_of(name: str) -> ActorCriticPolicy:
    torch.manual_seed(0)
    observations, actions, options = CASES[name]
    policy = ActorCriticPolicy(observations, actions, lambda _: 1e-3, **options)
    with torch.no_grad():
        for value in policy.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return policy


def sample(space: Any, n: int) -> np.ndarray:
    space.seed(0)
    return np.array([space.sample() for _ in range(n)])


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_scores_and_sums_agree_with_sb3(name: str) -> None:
    policy = policy_of(name)
    family = SB3Policy.from_model(policy)
    observations = sample(policy.observation_space, 9)
    actions = sample(policy.action_space, 9)
    _, expected, _ = policy.evaluate_actions(
        policy.obs_to_tensor(observations)[0], torch.as_tensor(actions)
    )
    assert expected is not None
    theta = family.tensor(policy_parameters(policy))
    assert theta.shape == (family.n_parameters,)
    data = family.prepare_observations(observations), family.prepare_actions(actions)
    found = family.log_prob(theta, *data)
    np.testing.assert_allclose(found.detach(), expected.detach(), atol=2e-5)

    # Gradients of SB3's own network, row by row, against scores and their weighted sum.
    tensors = [
        *policy.mlp_extractor.policy_net.parameters(),
        *policy.action_net.parameters(),
        *([policy.log_std] if hasattr(policy, "log_std") else []),
    ]
    rows = [
        torch.cat([g.ravel() for g in torch.autograd.grad(row, tensors, retain_graph=True)])
        for row in expected
    ]
    scores = family.scores(theta, *data)
    np.testing.assert_allclose(scores, torch.stack(rows), atol=1e-4)
    cotangents = torch.randn(9, 2, dtype=torch.float64, generator=torch.manual_seed(1))
    np.testing.assert_allclose(
        family.vjp(theta, *data, cotangents), scores.T @ cotangents, atol=1e-10
    )
    # The information is that of the scores' distribution: check one product by the diagonal.
    information = family.fisher(theta, data[0])
    assert (information.diagonal() >= 0).all()


def test_plain_networks_become_the_written_out_families() -> None:
    assert SB3Policy.from_model(policy_of("tanh")) == MLPGaussian(4, 2)
    assert SB3Policy.from_model(policy_of("tanh wide")) == MLPCategorical(4, 3, hidden=(8,))
    assert SB3Policy.from_model(policy_of("linear")) == MLPGaussian(4, 2, hidden=())
    assert isinstance(SB3Policy.from_model(policy_of("relu")), TorchFamily)


def test_images_and_shared_extractors() -> None:
    torch.manual_seed(0)
    image = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
    policy = ActorCriticCnnPolicy(image, spaces.Discrete(2), lambda _: 1e-3, net_arch=[4])
    family = SB3Policy.from_model(policy)
    observations, actions = sample(image, 3), np.array([0, 1, 1])
    _, expected, _ = policy.evaluate_actions(
        policy.obs_to_tensor(observations)[0], torch.as_tensor(actions)
    )
    theta = family.tensor(policy_parameters(policy))
    found = family.log_prob(
        theta, family.prepare_observations(observations), family.prepare_actions(actions)
    )
    np.testing.assert_allclose(found.detach(), expected.detach(), atol=1e-5)


def test_other_distributions_are_refused() -> None:
    exploring = ActorCriticPolicy(VECTOR, BOX, lambda _: 1e-3, use_sde=True)
    with pytest.raises(PolicyError, match="use_sde"):
        policy_parameters(exploring)
    with pytest.raises(PolicyError, match="not an actor-critic"):
        SB3Policy.from_model(nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["tanh", "relu", "elu"])
def test_parameters_can_be_set(name: str) -> None:
    policy = policy_of(name)
    value = [p.clone() for p in policy.mlp_extractor.value_net.parameters()]
    wanted = np.linspace(-1, 1, len(policy_parameters(policy))).astype(np.float32)
    set_policy_parameters(policy, wanted)
    np.testing.assert_array_equal(policy_parameters(policy), wanted)
    for before, after in zip(value, policy.mlp_extractor.value_net.parameters(), strict=True):
        assert torch.equal(before, after)
    with pytest.raises(PolicyError, match="of another environment or network"):
        set_policy_parameters(policy, wanted[1:])
    with pytest.raises(PolicyError, match="finite"):
        set_policy_parameters(policy, np.full_like(wanted, np.nan))


def test_an_adapter_goes_through_the_whole_inference() -> None:
    """An ELU learner that climbs towards action 0, watched with known parameters."""
    policy = policy_of("elu")
    family = SB3Policy.from_model(policy)
    rng = np.random.default_rng(0)
    theta, stages = family.initial(rng), []
    for _ in range(4):
        observations = rng.standard_normal((400, 4))
        actions = family.sample(theta, observations, rng)
        stage = Stage(
            observations,
            actions,
            lengths=np.full(400, 1),
            terminated=np.ones(400, dtype=bool),
            features=np.eye(3)[actions],
            parameters=theta,
        )
        stages.append(stage)
        signal = family.tensor((actions == 0) - (actions == 0).mean())[:, None] / 400
        theta = (
            theta + family.vjp(family.tensor(theta), *family.prepare(stage), signal)[:, 0].numpy()
        )
    history = LearningHistory.from_stages(stages, feature_names=["a", "b", "c"])
    estimate = infer_reward(history, policy=family, gamma=0.9, method="paper")
    assert np.argmax(estimate.weights) == 0


def saved(policy: ActorCriticPolicy, path: Path, *, data: str | None = None) -> Path:
    """An archive laid out as SB3's, made by hand."""
    buffer = io.BytesIO()
    torch.save(policy.state_dict(), buffer)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.pth", buffer.getvalue())
        if data is not None:
            archive.writestr("data", data)
    return path


@pytest.mark.parametrize("name", ["tanh", "tanh wide", "linear", "relu", "elu"])
def test_checkpoints_give_the_same_family_and_parameters(name: str, tmp_path: Path) -> None:
    policy = policy_of(name)
    path = saved(policy, tmp_path / "model.zip")
    np.testing.assert_array_equal(checkpoint_parameters(path), policy_parameters(policy))
    activation = name if name in ("relu", "elu") else "tanh"
    family: Policy = SB3Policy.from_checkpoint(path, activation=activation)
    model = SB3Policy.from_model(policy)
    theta = family.tensor(policy_parameters(policy))
    observations = family.prepare_observations(sample(VECTOR, 5))
    np.testing.assert_allclose(
        family.outputs(theta, observations).detach(), model.outputs(theta, observations).detach()
    )
    with pytest.raises(PolicyError, match="unknown activation"):
        SB3Policy.from_checkpoint(path, activation="softsign")


def test_a_checkpoint_of_sb3_itself(tmp_path: Path) -> None:
    import gymnasium
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), device="cpu", n_steps=8, batch_size=8)
    model.save(tmp_path / "model.zip")
    np.testing.assert_array_equal(
        checkpoint_parameters(tmp_path / "model.zip"), policy_parameters(model)
    )
    assert SB3Policy.from_checkpoint(tmp_path / "model.zip") == MLPCategorical(4, 2)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def archive_of(path: Path, policy: bytes, data: bytes = b"{}") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.pth", policy)
        archive.writestr("data", data)
    return path


def tensors(content: Any, *, compression: int = zipfile.ZIP_STORED, extra: str = "") -> bytes:
    """What torch would write, with a pickle of one's own."""
    buffer = io.BytesIO()
    torch.save(OrderedDict(a=torch.zeros(2)), buffer)
    result = io.BytesIO()
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(result, "w", compression) as target:
        for info in source.infolist():
            raw = source.read(info)
            if info.filename.endswith("/data.pkl") and content is not None:
                raw = content
            target.writestr(info.filename, raw)
        if extra:
            target.writestr(extra, b"x")
    return result.getvalue()


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    for protocol in (0, 2, 4):
        code = pickle.dumps(Bomb(target), protocol=protocol)
        for payload in (tensors(code), code):
            path = archive_of(tmp_path / "model.zip", payload)
            with pytest.raises(FormatError, match="not a readable checkpoint"):
                read_checkpoint(path)
    # The pickles in `data` are what SB3 itself would load; here they are not even decoded.
    import base64
    import json

    blob = base64.b64encode(pickle.dumps(Bomb(target))).decode()
    data = json.dumps({"action_space": {":type:": "<class 'x.Box'>", ":serialized:": blob}})
    path = saved(policy_of("tanh"), tmp_path / "data.zip", data=data)
    assert SB3Policy.from_checkpoint(path) == MLPGaussian(4, 2)
    assert not target.exists()


def test_absurd_sizes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGEL_MEMORY", "3M")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("policy.pth", bytes(2**21))
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data/0", bytes(2**19))
    archive_of(tmp_path / "inner.zip", inner.getvalue())
    # Four bytes of storage that claim to be a trillion numbers.
    wide = io.BytesIO()
    torch.save(OrderedDict(a=torch.zeros(1).expand(2**40)), wide)
    archive_of(tmp_path / "wide.zip", wide.getvalue())
    for name, reason in (
        ("bomb", r"policy\.pth would take 8 MiB"),
        ("inner", "compressed"),
        ("wide", "would take"),
    ):
        with pytest.raises(FormatError, match=reason):
            read_checkpoint(tmp_path / f"{name}.zip")
    # Parsed JSON is far larger than its text: a hundred kilobytes here would become gigabytes.
    with zipfile.ZipFile(tmp_path / "facts.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b"[" + b"[]," * (2**25 // 3) + b"[]]")
    with pytest.raises(FormatError, match="data would take"):
        recorded_gamma(tmp_path / "facts.zip")


def test_unusable_checkpoints_say_why(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not a file"):
        read_checkpoint(tmp_path / "missing.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(FormatError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "text.zip")
    archive_of(tmp_path / "two.zip", tensors(None, extra="archive/constants.pkl"))
    with pytest.raises(FormatError, match="exactly one table"):
        read_checkpoint(tmp_path / "two.zip")
    archive_of(tmp_path / "other.zip", tensors(None))
    with pytest.raises(PolicyError, match="is it an MlpPolicy"):
        checkpoint_parameters(tmp_path / "other.zip")
    codes = ActorCriticPolicy(VECTOR, spaces.MultiDiscrete([2, 2]), lambda _: 1e-3)
    data = '{"action_space": {":type:": "<class \'gymnasium.spaces.MultiDiscrete\'>"}}'
    path = saved(codes, tmp_path / "codes.zip", data=data)
    with pytest.raises(PolicyError, match="actions are MultiDiscrete"):
        SB3Policy.from_checkpoint(path)
    image = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
    policy = ActorCriticCnnPolicy(image, spaces.Discrete(2), lambda _: 1e-3)
    with pytest.raises(PolicyError, match="not an MlpPolicy"):
        checkpoint_parameters(saved(policy, tmp_path / "image.zip"))


@given(st.data())
def test_damaged_checkpoints_never_crash(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = saved(policy_of("linear"), Path(folder) / "model.zip")
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if len(raw) % 2 else raw)
        try:
            arrays = read_checkpoint(path)
        except FormatError:
            return
        assert all(np.isfinite(array).all() for array in arrays.values())
