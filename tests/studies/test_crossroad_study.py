import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from logel.cli import main as cli
from logel.errors import MissingExtraError
from logel.inference.infer import METHODS, Method
from logel.learners.pgpe import PGPE, Search, learn, random_walk, watch
from logel.policies.gaussian import LinearGaussian
from logel.studies import crossroad
from logel.studies.registry import STUDIES
from logel.studies.study import StudyOptions, reproduce


def test_a_small_study_writes_tables_figures_and_claims(tmp_path: Path) -> None:
    pytest.importorskip("libsumo", reason="libsumo is not installed: logel[sumo]")
    small = replace(
        STUDIES["crossroad"],
        cases=[{"learner": list(crossroad.LEARNERS), "episodes": [15], "updates": [1]}],
    )
    result = reproduce(small, StudyOptions(runs=1, seed=1000), out=tmp_path, jobs=1)
    assert not result.run.failures, [failure.traceback for failure in result.run.failures]
    folder = tmp_path / "crossroad"
    table = pd.read_csv(folder / "table.csv")
    stages = table[table.part == "stage"]
    assert set(table.learner) == set(crossroad.LEARNERS) and stages.stage.max() == 1
    assert stages.crash.between(0, 1).all() and (stages.collision <= stages.crash).all()
    weights = table[table.part == "weight"].groupby(["learner", "observer", "direction"]).weight
    np.testing.assert_allclose(weights.sum(), 1.0)
    assert (table[table.part == "weight"].weight >= 0).all()
    summary = (folder / "summary.md").read_text()
    assert "the paper's | 0.0401" in summary and "backwards" in summary
    assert json.loads((folder / "claims.json").read_text())
    for name in ("crossroad.png", "before-and-after.png"):
        assert (folder / name).read_bytes()[:4] == b"\x89PNG"


def toy(purpose: bool) -> tuple[float, float]:
    """Explained movement and the 95% point of chance, for a learner on a line or a random walk."""
    from logel.data.stage import Episode

    def rollout(parameters: np.ndarray, seed: int) -> Episode:
        rng = np.random.default_rng(seed)
        actions = parameters[0] + 0.3 * rng.standard_normal((5, 1))
        features = np.concatenate([-((actions - 3) ** 2), -(actions**2)], axis=1)
        return Episode(np.ones((5, 1)), actions, features)

    start = Search(np.zeros(1), np.full(1, 0.3))
    weights = (1.0, 0.0) if purpose else (0.0, 0.0)
    path = learn(
        PGPE(learning_rate=0.02),
        rollout,
        start=start,
        weights=weights,
        gamma=0.99,
        n_steps=9,
        seed=1,
    )
    if not purpose:
        path = random_walk(start, length=1.0, n_steps=9, seed=4)
    history = watch(path, rollout, n_episodes=60, feature_names=("near", "thrift"), seed=2)
    method = METHODS["two-step"]
    assert isinstance(method, Method)
    policy = LinearGaussian(n_features=1, action_dim=1, sigma=0.42)
    return crossroad.sign_flips(history, policy, replace(method, nonnegative=True))


def test_sign_flips_tell_a_purpose_from_none() -> None:
    explained, chance = toy(purpose=True)
    assert explained > 0.3 and explained > chance
    explained, chance = toy(purpose=False)
    assert explained < chance


def test_claims_say_what_holds() -> None:
    rows = []
    for seed in range(5):
        for learner, weight, explained in (
            ("cautious", (0.002, 0.001, 0.0, 0.997), 0.3),
            ("hurried", (0.6, 0.0, 0.1, 0.3), 0.3),
            ("random", (0.0, 0.0, 0.5, 0.5), 0.05),
        ):
            common = {"seed": seed, "learner": learner}
            for stage, crash in ((0, 0.4), (10, 0.03 + 0.001 * seed)):
                rows.append({**common, "part": "stage", "stage": stage, "crash": crash})
            for observer in crossroad.OBSERVERS:
                for direction in ("forwards", "backwards"):
                    labels = {**common, "observer": observer, "direction": direction}
                    fit = {"distance": 0.004 + 1e-4 * seed, "cosine": 0.5, "chance 95%": 0.1}
                    fit["explained"] = explained + 0.01 * seed
                    rows.append({**labels, "part": "fit", **fit})
                    for name, value in zip(crossroad.FEATURE_NAMES, weight, strict=True):
                        value += 1e-5 * seed if name == "time" else 0.0
                        rows.append({**labels, "part": "weight", "feature": name, "weight": value})
    table = pd.DataFrame(rows)
    claims = list(crossroad.claims(table))
    assert len(claims) == 12 and {claim.verdict for claim in claims} == {"holds"}
    assert "| cautious | forwards | 0.320 | 0.100 | 5 of 5 seeds | 0.50 |" in (
        crossroad.summary(table)
    )


def test_without_the_simulator_the_study_costs_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "libsumo", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[sumo\]'"):
        reproduce(STUDIES["crossroad"], StudyOptions(runs=1), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_networks_are_built_only_with_netconvert(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from logel.envs.crossroad import network as crossroad_network

    monkeypatch.setattr(crossroad_network, "find_netconvert", lambda: None)
    result = CliRunner().invoke(cli.app, ["build-networks", "--out", str(tmp_path / "n")])
    assert isinstance(result.exception, crossroad_network.NetworkBuildError)
    assert not (tmp_path / "n").exists()
