"""A learner that wants nothing is told from one that does, with steps as the unit of evidence."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.stage import Stage
from logel.inference.infer import infer_reward
from logel.inference.null import CONVINCING, turned_gain
from logel.inference.status import Status
from logel.inference.steps import Steps, compress
from logel.learners.gradient_ascent import GradientAscent, ParameterWalk, observe_parametric
from logel.policies.networks import MLPGaussian
from logel.types import Float

WEIGHTS = np.array([0.7, 0.3, 0.4])


def turned(steps: Steps, way: int) -> Steps:
    """Whole steps turned round, by the bits of a number."""
    signs = 1.0 - 2.0 * ((way >> np.arange(steps.n_steps)) & 1)
    return replace(steps, delta=signs[:, None] * steps.delta)


@given(
    seed=st.integers(0, 10_000),
    m=st.integers(2, 6),
    q=st.integers(1, 4),
    spread=st.sampled_from([0.0, 2.0]),
    own_rates=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_chances_are_exact_for_steps_as_likely_as_their_opposites(
    seed: int, m: int, q: int, spread: float, own_rates: bool
) -> None:
    # Every way to turn the steps was as likely: so not more than a share p of them may be given a
    # chance of at most p, whatever the coordinates have in common and however sizes differ.
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(m, 1)) * rng.normal(size=12)
    delta = np.exp(spread * rng.normal(size=(m, 1))) * (common + 0.1 * rng.normal(size=(m, 12)))
    steps = compress(delta, rng.normal(size=(m, 12, q)))
    rates = None if own_rates else rng.uniform(0.5, 2.0, m)
    ways = 2 ** (m - 1)
    chances = np.exp([-turned_gain(turned(steps, way), rates, seed=0) for way in range(ways)])
    for p in np.unique(chances):
        assert np.mean(chances <= p + 1e-12) <= p + 1e-9
    assert chances.min() >= 1 / ways - 1e-12


@pytest.mark.parametrize(
    ("m", "own_rates", "n"), [(8, False, 300), (8, True, 300), (14, False, 300), (14, True, 60)]
)
def test_correlated_noise_convinces_in_one_history_of_twenty(
    m: int, own_rates: bool, n: int
) -> None:
    # Three directions carry the noise of forty coordinates, and the design knows them: an F test
    # that counts coordinates finds a reward in most of these.
    convinced = []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        directions = rng.normal(size=(3, 40))
        delta = rng.normal(size=(m, 3)) @ directions
        design = directions.T @ rng.normal(size=(m, 3, 2)) + 0.1 * rng.normal(size=(m, 40, 2))
        rates = None if own_rates else np.ones(m)
        convinced.append(turned_gain(compress(delta, design), rates, seed=seed) >= CONVINCING)
    # Three standard deviations of n histories.
    assert np.mean(convinced) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n)


@pytest.mark.parametrize("own_rates", [False, True])
@pytest.mark.parametrize(("m", "convincing"), [(5, False), (6, True), (20, True)])
def test_a_reward_convinces_from_six_steps_on(m: int, own_rates: bool, convincing: bool) -> None:
    rng = np.random.default_rng(0)
    design = rng.normal(size=(m, 20, 3))
    delta = design @ [1.0, -0.5, 0.3] + 0.1 * rng.normal(size=(m, 20))
    rates = None if own_rates else np.ones(m)
    gain = turned_gain(compress(delta, design), rates, seed=0)
    assert (gain >= CONVINCING) == convincing
    assert gain == pytest.approx(np.log(2 ** (m - 1)) if m <= 10 else np.log(1000))


# --- networks -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pushed:
    """A noisy point in the plane, pushed by a tiny network; enough of a world for learners."""

    policy: MLPGaussian
    gamma: float = 0.9
    horizon: int = 10
    feature_names: tuple[str, ...] = ("-x1^2", "-x2^2", "-|a|^2")

    def sample(
        self, parameters: npt.ArrayLike, *, rng: np.random.Generator, n_episodes: int
    ) -> Stage:
        theta, x = self.policy.tensor(parameters), rng.standard_normal((n_episodes, 2))
        seen, taken = [x], []
        for _ in range(self.horizon):
            mean = self.policy.means(theta, self.policy.prepare_observations(x)).numpy()
            a = mean + 0.5 * rng.standard_normal(x.shape)
            x = 0.8 * x + 0.5 * a + 0.2 * rng.standard_normal(x.shape)
            seen.append(x)
            taken.append(a)
        states, actions = np.stack(seen, axis=1), np.stack(taken, axis=1).reshape(-1, 2)
        after = states[:, 1:].reshape(-1, 2)
        return Stage(
            observations=states[:, :-1].reshape(-1, 2),
            actions=actions,
            lengths=np.full(n_episodes, self.horizon),
            terminated=np.zeros(n_episodes, dtype=bool),
            last_observations=states[:, -1],
            features=np.concatenate([-(after**2), -(actions**2).sum(1, keepdims=True)], axis=1),
        )


WORLD = Pushed(MLPGaussian(2, 2, hidden=(4,), sigma=0.5))


def explained(learner: Any, seed: int, method: str) -> bool:
    initial: Float = WORLD.policy.initial(np.random.default_rng(seed))
    history = observe_parametric(
        WORLD,  # type: ignore[arg-type]
        learner,
        weights=WEIGHTS,
        n_steps=9,
        n_episodes=15,
        seed=seed,
        parameters=True,
        initial=initial,
    )
    found = infer_reward(history, WORLD.policy, gamma=0.9, method=method, intervals=False)
    return found.status is not Status.UNEXPLAINED


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mirror", "two-step", "paper"])
def test_random_walks_of_networks_are_explained_in_one_of_twenty(method: str) -> None:
    found = sum(explained(ParameterWalk(step=0.1), seed, method) for seed in range(60))
    # More than eight of sixty have a probability of .003 at one in twenty.
    assert found <= 8


@pytest.mark.parametrize("method", ["mirror", "two-step", "paper"])
def test_networks_that_learn_are_explained(method: str) -> None:
    learner = GradientAscent(learning_rate=0.05, n_episodes=100)
    assert sum(explained(learner, seed, method) for seed in range(5)) >= 4


@pytest.mark.parametrize("own_rates", [False, True])
def test_memory_does_not_grow_with_ways_times_steps(own_rates: bool) -> None:
    m, q = 3000, 1
    rng = np.random.default_rng(0)
    steps = compress(rng.normal(size=(m, 2)), rng.normal(size=(m, 2, q)))
    tracemalloc.start()
    turned_gain(steps, None if own_rates else np.ones(m), seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 1000 * m / 2  # one array of all ways takes twice that


def test_the_answer_is_the_same_however_many_ways_are_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    steps = compress(rng.normal(size=(12, 3)) + 0.5, 0.2 * rng.normal(size=(12, 3, 2)) + 1)
    found = []
    for block in (300, 1000, 2**17):
        monkeypatch.setattr("logel.inference.null._BLOCK", block)
        found.append([turned_gain(steps, rates, seed=0) for rates in (None, np.ones(12))])
    assert found[0] == found[1] == found[2]
    assert found[0][0] > 1
