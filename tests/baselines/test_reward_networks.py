from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from logel.baselines.log_density import LogDensityReward
from logel.baselines.networks import Activation, Network, forward, frozen, initial_parameters
from logel.baselines.trex import TrexReward
from logel.errors import FormatError, OptionError


def small(activation: str = "relu", seed: int = 0) -> Network:
    net = initial_parameters([3, 5, 4, 1], np.random.default_rng(seed), dtype=torch.float64)
    return frozen(net, Activation(activation))


def test_forward_pass_written_out() -> None:
    network = Network(
        (np.array([[1.0, -1.0], [2.0, 0.0]]), np.array([[3.0, -1.0]])),
        (np.array([0.0, 1.0]), np.array([0.5])),
        "relu",
    )
    # (1, 2): hidden max(1 - 2, 0) = 0 and max(2 + 1, 0) = 3; (2, 1): hidden 1 and 5.
    np.testing.assert_allclose(network(np.array([[1.0, 2.0], [2.0, 1.0]])), [[-2.5], [-1.5]])
    tanh = Network(network.weights, network.biases, "tanh")
    expected = 3 * np.tanh(-1) - np.tanh(3) + 0.5
    np.testing.assert_allclose(tanh(np.array([[1.0, 2.0]])), [[expected]])


@pytest.mark.parametrize("activation", list(Activation))
def test_numpy_and_torch_agree(activation: Activation) -> None:
    rng = np.random.default_rng(1)
    net = initial_parameters([3, 5, 2], rng, dtype=torch.float64)
    network, rows = frozen(net, activation), rng.normal(size=(7, 3))
    before = forward(net, torch.from_numpy(rows), activation).detach().numpy()
    np.testing.assert_allclose(network(rows), before, rtol=1e-12)
    with torch.no_grad():
        net[0] += 1.0
    np.testing.assert_allclose(network(rows), before, rtol=1e-12)


def test_rescaling_is_what_it_says() -> None:
    rng = np.random.default_rng(2)
    network, rows = small(), rng.normal(size=(6, 3))
    shift, scale = rng.normal(size=3), rng.uniform(0.5, 2, size=3)
    other = network.rescaled(
        input_shift=shift, input_scale=scale, output_shift=1.5, output_scale=4.0
    )
    np.testing.assert_allclose(other(rows), (network((rows - shift) / scale) - 1.5) / 4)


@pytest.mark.parametrize(
    ("weights", "biases", "message"),
    [
        ((), (), "at least one"),
        ((np.zeros((2, 3)),), (np.zeros(3),), "each row"),
        ((np.zeros((2, 3)), np.zeros((1, 3))), (np.zeros(2), np.zeros(1)), "cannot feed"),
        ((np.zeros((2, 3)),), (np.zeros(2, dtype=np.float32),), "float32 or all float64"),
        ((np.full((2, 3), np.nan),), (np.zeros(2),), "finite"),
    ],
)
def test_networks_that_make_no_sense_are_refused(
    weights: tuple[Any, ...], biases: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Network(weights, biases)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "reward.safetensors"
    TrexReward((small(), small(seed=1)), False, float("nan")).save(path)
    return path


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with safetensors.safe_open(path, framework="numpy") as opened:
        return json.loads(opened.metadata()["logel"]), safetensors.numpy.load(path.read_bytes())


def rewrite(path: Path, description: Any, tensors: dict[str, Any]) -> None:
    path.write_bytes(safetensors.numpy.save(tensors, {"logel": json.dumps(description)}))


def test_a_missing_number_stays_missing(saved: Path) -> None:
    assert np.isnan(TrexReward.load(saved).accuracy)
    assert parts(saved)[0]["facts"]["accuracy"] is None


def test_a_file_of_another_kind_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"'t-rex', not neural-lfl"):
        LogDensityReward.load(saved)
    with pytest.raises(FormatError, match="missing"):
        TrexReward.load(tmp_path / "nowhere")
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(safetensors.numpy.save({"x": np.zeros(3)}))
    with pytest.raises(FormatError, match="not a reward"):
        TrexReward.load(plain)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "other", "not a reward"),
        ("format_version", 2, "upgrade"),
        ("format_version", "1", "upgrade"),
        ("networks", {}, "does not name"),
        ("networks", [], "not a reward's"),
        ("networks", {"member-0": {"layers": 10**9, "activation": "relu"}}, "layers"),
        ("networks", {"member-0": {"layers": 3, "activation": "sine"}}, "sine"),
        ("networks", {"member-0": {"layers": 2, "activation": "relu"}}, "does not name"),
        ("arrays", ["log_std"], "log_std"),
        ("facts", {}, "uses_actions"),
        ("facts", {"uses_actions": False, "accuracy": []}, "not a reward of T-REX"),
        ("facts", {"uses_actions": False, "accuracy": 10**400}, "not a reward of T-REX"),
        ("facts", None, "not a reward's"),
    ],
)
def test_descriptions_that_lie_are_refused(saved: Path, key: str, value: Any, message: str) -> None:
    description, tensors = parts(saved)
    description[key] = value
    rewrite(saved, description, tensors)
    with pytest.raises(FormatError, match=message):
        TrexReward.load(saved)


def test_arrays_that_do_not_fit_are_refused(saved: Path) -> None:
    description, tensors = parts(saved)
    for name, value, message in (
        ("network.member-0.0.weight", np.zeros((5, 3), dtype=np.float16), "float32"),
        ("network.member-0.1.weight", np.zeros((4, 9)), "cannot feed"),
        ("network.member-1.2.bias", np.array([np.inf]), "finite"),
        ("extra", np.zeros(1), "extra"),
    ):
        rewrite(saved, description, {**tensors, name: value})
        with pytest.raises(FormatError, match=message):
            TrexReward.load(saved)


@given(cut=st.floats(0, 1), at=st.floats(0, 1), byte=st.integers(0, 255), garbage=st.binary())
def test_damage_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, cut: float, at: float, byte: int, garbage: bytes
) -> None:
    path = tmp_path_factory.mktemp("damage") / "reward.safetensors"
    TrexReward((small(),), True, 0.5).save(path)
    data = path.read_bytes()
    changed = bytearray(data)
    changed[int(at * (len(data) - 1))] = byte
    for damaged in (data[: int(cut * len(data))], bytes(changed), garbage):
        path.write_bytes(damaged)
        try:
            reward = TrexReward.load(path)
        except FormatError:
            continue
        assert np.isfinite(reward.members[0](np.zeros((1, 3)))).all()
