from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from logel.baselines.networks import Network
from logel.baselines.trex import (
    Snippets,
    TrexConfig,
    TrexReward,
    pair_loss,
    snippets_of,
    trex,
)
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import HistoryError, IdentificationError, OptionError

TOY = TrexConfig(snippet_length=20, hidden=(32, 32), n_steps=600, rate=1e-3)
QUICK = replace(TOY, hidden=(8,), n_steps=20)


def plane_stage(
    gain: float, rng: np.random.Generator, *, n_episodes: int = 30, horizon: int = 40
) -> Stage:
    """A point that is pulled to the origin; the true reward is minus its squared distance."""
    x = 2 * rng.normal(size=(n_episodes, 2))
    seen, taken = [x], []
    for _ in range(horizon):
        taken.append(-gain * x + 0.5 * rng.normal(size=x.shape))
        x = x + 0.3 * taken[-1] + 0.1 * rng.normal(size=x.shape)
        seen.append(x)
    states = np.stack(seen, axis=1)
    return Stage(
        observations=states[:, :-1].reshape(-1, 2),
        actions=np.stack(taken, axis=1).reshape(-1, 2),
        lengths=np.full(n_episodes, horizon),
        terminated=np.zeros(n_episodes, dtype=bool),
        last_observations=states[:, -1],
    )


def plane_history(gains: np.ndarray, seed: int) -> LearningHistory:
    rng = np.random.default_rng(seed)
    return LearningHistory.from_stages([plane_stage(float(g), rng) for g in gains])


@pytest.fixture(scope="module")
def improving() -> LearningHistory:
    return plane_history(np.linspace(0.05, 1.0, 6), seed=0)


@pytest.fixture(scope="module")
def ranked(improving: LearningHistory) -> TrexReward:
    return trex(improving, config=TOY, seed=1)


def test_improving_stages_give_a_reward_that_ranks_returns(ranked: TrexReward) -> None:
    """Thresholds: three in four held-out pairs ordered rightly, rank correlation .8."""
    reward = ranked
    assert reward.accuracy > 0.75
    rng = np.random.default_rng(5)
    predicted, true = [], []
    for gain in rng.uniform(0, 1.2, 60):
        stage = plane_stage(gain, rng, n_episodes=1)
        batch = (stage.observations, stage.actions, stage.next_observations())
        predicted.append(reward(*batch).sum())
        true.append(-(stage.observations**2).sum())
    assert spearmanr(predicted, true).statistic > 0.8


def test_with_actions_stages_are_told_apart_even_better(
    improving: LearningHistory, ranked: TrexReward
) -> None:
    # By the gain, which the action betrays, rather than by the distance: pairs are ordered well,
    # but returns are ranked less well (.70 here) than from observations alone.
    reward = trex(improving, config=replace(TOY, inputs="observation-action"), seed=1)
    assert reward.uses_actions and reward.members[0].n_inputs == 4
    assert reward.accuracy > max(0.75, ranked.accuracy)


def test_a_learner_that_stands_still_is_not_ranked() -> None:
    reward = trex(plane_history(np.full(6, 0.5), seed=1), config=TOY)
    assert 0.35 < reward.accuracy < 0.65


def test_members_are_standardised(improving: LearningHistory) -> None:
    rows = [np.concatenate([getattr(s, n) for s in improving]) for n in ("observations", "actions")]
    reward = trex(improving, config=replace(QUICK, n_members=3))
    assert len(reward.members) == 3
    values = np.stack([member(rows[0])[:, 0] for member in reward.members]).astype(float)
    np.testing.assert_allclose(values.std(axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(values.mean(axis=1), 0, atol=1e-4)
    assert np.abs(values[0] - values[1]).max() > 0.01
    np.testing.assert_allclose(reward(*rows, rows[0]), values.mean(axis=0), atol=1e-6)


@given(
    lengths=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=2, max_size=5),
    ended=st.booleans(),
    absorbing=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pairs_are_of_two_stages_and_never_leave_their_episode(
    lengths: list[list[int]], ended: bool, absorbing: bool, seed: int
) -> None:
    config = TrexConfig(snippet_length=4, ends="absorbing" if absorbing else "inside")
    found, episode_of, stage_of, ends = [], [], [], []
    first = 0
    for t, episodes in enumerate(lengths):
        stage = Stage(
            observations=np.zeros((sum(episodes), 1)),
            actions=np.zeros((sum(episodes), 1)),
            lengths=np.array(episodes),
            terminated=np.full(len(episodes), ended),
        )
        rows, length, _ = snippets_of(stage, config)
        found.append((np.full(len(rows), t), first + rows, length))
        for n, size in enumerate(episodes):
            first += size
            stage_of += [t] * size
            episode_of += [(t, n)] * size
            ends += [first] * size
    snippets = Snippets(*(np.concatenate(column) for column in zip(*found, strict=True)))
    n_usable = sum(
        any(size >= 4 for size in episodes) or (ended and absorbing) for episodes in lengths
    )
    assert np.count_nonzero(snippets.sizes) == n_usable
    if n_usable < 2:
        return
    stages, rows, length = snippets.pairs(200, np.random.default_rng(seed))
    assert (stages[:, 0] < stages[:, 1]).all()
    for t, row, size in zip(stages.ravel(), rows.ravel(), length.ravel(), strict=True):
        assert stage_of[row] == t
        assert episode_of[row + size - 1] == episode_of[row]
        if size < 4:
            assert absorbing and ended and row + size == ends[row]


def test_all_pairs_of_stages_are_drawn_alike() -> None:
    sizes = (1, 50, 0, 7)
    starts = np.concatenate([np.arange(n) + 100 * t for t, n in enumerate(sizes)])
    snippets = Snippets(np.repeat(np.arange(4), sizes), starts, np.full(len(starts), 5))
    stages, rows, _ = snippets.pairs(6000, np.random.default_rng(0))
    pairs, counts = np.unique(stages, axis=0, return_counts=True)
    np.testing.assert_array_equal(pairs, [[0, 1], [0, 3], [1, 3]])
    # Six standard deviations of a binomial count.
    assert np.abs(counts - 2000).max() < 6 * np.sqrt(6000 * 2 / 9)
    np.testing.assert_array_equal(rows // 100, stages)


def test_gradient_of_the_loss_by_hand() -> None:
    rows = torch.tensor([[1.0], [2.0], [4.0], [-1.0], [3.0], [7.0]], dtype=torch.float64)
    net = [
        torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True),
        torch.tensor([0.2], dtype=torch.float64, requires_grad=True),
    ]
    starts, lengths = np.array([[0, 3]]), np.array([[3, 2]])
    # Sums: 7 w + 3 b for the early snippet, 2 w + 2 b for the late one.
    gap = (7 * 0.5 + 3 * 0.2) - (2 * 0.5 + 2 * 0.2)
    loss = pair_loss(net, rows, starts, lengths, snippet_length=3)
    assert loss.item() == pytest.approx(np.log(1 + np.exp(gap)))
    loss.backward()
    wrong = 1 / (1 + np.exp(-gap))
    assert net[0].grad is not None and net[1].grad is not None
    assert float(net[0].grad) == pytest.approx(wrong * (7 - 2))
    assert float(net[1].grad) == pytest.approx(wrong * (3 - 2))


def test_lasting_longer_is_better_where_ends_are_absorbing() -> None:
    rng = np.random.default_rng(0)

    def stage(length: int) -> Stage:
        return Stage(
            observations=rng.normal(size=(20 * length, 1)),
            actions=np.zeros((20 * length, 1)),
            lengths=np.full(20, length),
            terminated=np.ones(20, dtype=bool),
        )

    history = LearningHistory.from_stages([stage(length) for length in (5, 10, 20)])
    config = TrexConfig(
        snippet_length=20, ends="absorbing", hidden=(16,), n_steps=400, rate=1e-2, holdout=0
    )
    reward = trex(history, config=config)
    assert np.isnan(reward.accuracy)
    values = reward(rng.normal(size=(500, 1)), np.zeros((500, 1)), np.zeros((500, 1)))
    assert values.mean() > 0
    with pytest.raises(HistoryError, match=r"stage 0.*at most 5 times.*snippets of 20.*absorbing"):
        trex(history, config=replace(config, ends="inside"))


def test_deterministic_whatever_torch_was_doing_and_back_from_disk(
    improving: LearningHistory, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    torch.manual_seed(1)
    config = replace(QUICK, n_members=2)
    reward = trex(improving, config=config, seed=3, progress=lambda *args: told.append(args))
    torch.manual_seed(2)
    again = trex(improving, object(), gamma=0.5, config=config, seed=3)
    stage = improving[2]
    batch = (stage.observations, stage.actions, stage.next_observations())
    np.testing.assert_array_equal(reward(*batch), again(*batch))
    assert again.accuracy == reward.accuracy
    assert np.abs(trex(improving, config=config, seed=4)(*batch) - reward(*batch)).max() > 0
    assert told[-1] == ("reward 2 of 2", 20, 20) and ("reward 1 of 2", 20, 20) in told

    reward.save(tmp_path / "reward.safetensors")
    back = TrexReward.load(tmp_path / "reward.safetensors")
    np.testing.assert_array_equal(back(*batch), reward(*batch))
    assert (back.accuracy, back.uses_actions) == (reward.accuracy, False)


def test_columns_that_never_vary_and_large_units_do_no_harm(improving: LearningHistory) -> None:
    def changed(stage: Stage) -> Stage:
        x = np.concatenate([1e3 * stage.observations + 7e3, np.full((stage.n_steps, 1), 5.0)], 1)
        return replace(stage, observations=x, last_observations=None)

    history = LearningHistory.from_stages([changed(stage) for stage in improving])
    plain = trex(improving, config=QUICK)
    reward = trex(history, config=replace(QUICK, n_steps=100))
    x = changed(improving[0]).observations
    values = reward(x, x, x)
    assert np.isfinite(values).all() and values.std() > 0
    assert plain.members[0].n_inputs == 2 and reward.members[0].n_inputs == 3


def test_mistakes_are_named(improving: LearningHistory) -> None:
    with pytest.raises(IdentificationError, match="at least two"):
        trex(improving.slice(0, 1))
    with pytest.raises(HistoryError, match=r"stage 0.*at most 40 times.*snippets of 50"):
        trex(improving)
    for options in ({"snippet_length": 0}, {"rate": 0.0}, {"holdout": 1.0}, {"n_members": 0}):
        with pytest.raises(OptionError, match=next(iter(options))):
            TrexConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="observation-action"):
        TrexConfig(inputs="pixels")
    wide = Network((np.zeros((2, 3)),), (np.zeros(2),))
    narrow = Network((np.zeros((1, 2)),), (np.zeros(1),))
    with pytest.raises(OptionError, match="one output"):
        TrexReward((wide,), False, 0.5)
    with pytest.raises(OptionError, match="same inputs"):
        TrexReward((narrow, Network((np.zeros((1, 3)),), (np.zeros(1),))), False, 0.5)
