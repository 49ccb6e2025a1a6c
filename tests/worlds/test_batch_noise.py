"""The noise of a learner's own batch, against every episode there can be."""

from __future__ import annotations

from itertools import product

import numpy as np

from logel.types import Float
from logel.worlds.batch_noise import batch_noise

GAMMA, HORIZON = 0.8, 3


def test_a_state_s_block_is_the_mean_over_all_episodes() -> None:
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(3), size=2)
    moves = rng.dirichlet(np.ones(2), size=(2, 3))
    initial, paid = np.array([0.7, 0.3]), rng.standard_normal((2, 3))
    episodes = list(product(product(range(2), repeat=HORIZON), product(range(3), repeat=HORIZON)))
    chances, returns = [], []
    for states, actions in episodes:
        chance = initial[states[0]]
        for h in range(HORIZON):
            chance *= policy[states[h], actions[h]]
            if h + 1 < HORIZON:
                chance *= moves[states[h], actions[h], states[h + 1]]
        rewards = [GAMMA**h * paid[states[h], actions[h]] for h in range(HORIZON)]
        chances.append(chance)
        returns.append([sum(rewards[h:]) for h in range(HORIZON)])
    baseline = np.array(chances) @ np.array(returns)
    expected, here = np.zeros((2, 2, 2)), np.zeros((HORIZON, 2))
    for (states, actions), chance, to_go in zip(episodes, chances, returns, strict=True):
        for h, (s, a) in enumerate(zip(states, actions, strict=True)):
            score = np.eye(3)[a, :2] - policy[s, :2]
            expected[s] += chance * np.outer(score, score) * (to_go[h] - baseline[h]) ** 2
            here[h, s] += chance

    def expect(values: Float) -> Float:
        return np.einsum("sat,mt->msa", moves, values)

    found = batch_noise(policy[None], here[:, None], paid, expect, GAMMA)[0]
    trace = 1e-3 * np.einsum("saa->", expected) / 4
    np.testing.assert_allclose(found, expected + trace * np.eye(2), atol=1e-12)
