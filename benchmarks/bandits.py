"""Bandit-like tasks: is the paid action of every stimulus found, and the gauge exact?

    python -m benchmarks.bandits [--subjects 20] [--first 0] [--slow]

Simulated subjects do four blocks, of 3 to 6 stimuli; each is shown 12 times in random order, and
one of two keys is paid. They learn by Q-learning or policy gradient, each at its own rate. Block by
block, features are one-hot in stimulus and key and gamma is 0: one direction per stimulus (its
level) cannot be told, and nothing of a key that was never pressed. Over all blocks of a subject,
the one feature is whether the key was right. `--slow`: subjects of whom even a reader who knew how
they learn (all but rate and size) would find .97 of the paid keys.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import chain

import numpy as np

from logel import Episode, LearningHistory, RewardEstimate, TabularSoftmax, infer_reward
from logel.errors import IdentificationError
from logel.types import Float

KEYS, SHOWN, WINDOWS, BLOCKS = 2, 12, 6, (3, 4, 5, 6)
# Ranges of learning rates and of rewards, by whether subjects are slow.
RATES, SIZES = {True: (0.05, 0.2), False: (0.1, 0.3)}, {True: (3.0, 6.0), False: (4.0, 8.0)}


class Subject:
    """One who learns, the same way in every block."""

    def __init__(self, seed: int, *, slow: bool) -> None:
        self.rng = np.random.default_rng([seed, 7])
        self.size = float(self.rng.uniform(*SIZES[slow]))
        self.gradient = bool(self.rng.integers(2))
        self.rate = float(self.rng.uniform(*RATES[slow]))

    def block(self, n_stimuli: int) -> tuple[LearningHistory, LearningHistory, Float]:
        """What was done, in features of pairs and of being right; each stimulus' paid key."""
        rng = self.rng
        paid, values = rng.integers(0, KEYS, n_stimuli), np.zeros((n_stimuli, KEYS))
        pairs, rights = [], []
        for stimulus in np.concatenate([rng.permutation(n_stimuli) for _ in range(SHOWN)]):
            chances = np.exp(values[stimulus]) / np.exp(values[stimulus]).sum()
            key = int(rng.choice(KEYS, p=chances))
            right = key == paid[stimulus]
            told = (np.eye(n_stimuli * KEYS)[[stimulus * KEYS + key]], np.array([[float(right)]]))
            for episodes, features in zip((pairs, rights), told, strict=True):
                seen = np.array([stimulus]), np.array([key])
                episodes.append(Episode(*seen, features, terminated=True))
            self._learn(values[stimulus], chances, key, self.size * right)
        names = [f"stimulus {s}, key {k}" for s in range(n_stimuli) for k in range(KEYS)]
        by_pair = LearningHistory.from_sessions(pairs, windows=WINDOWS, feature_names=names)
        by_right = LearningHistory.from_sessions(rights, windows=WINDOWS, feature_names=["right"])
        return by_pair, by_right, paid

    def _learn(self, values: Float, chances: Float, key: int, reward: float) -> None:
        """Move a stimulus' values, in place."""
        if self.gradient:
            score = -chances
            score[key] += 1
            values += self.rate * (reward - self.size / KEYS) * score
        else:
            values[key] += self.rate * (reward - values[key])


def exact(estimate: RewardEstimate, history: LearningHistory, n_stimuli: int) -> bool:
    """Whether exactly the levels of stimuli, and keys never pressed, are said not to be told."""
    pressed = np.zeros((n_stimuli, KEYS), dtype=bool)
    for stage in history:
        pressed[stage.observations, stage.actions] = True
    levels = np.kron(np.eye(n_stimuli), np.ones((1, KEYS))) * pressed.reshape(-1)
    levels /= np.linalg.norm(levels, axis=1, keepdims=True)
    silent = np.concatenate([levels, np.eye(n_stimuli * KEYS)[~pressed.reshape(-1)]])
    found = estimate.gauge.directions
    return len(found) == len(silent) and bool(np.allclose(found.T @ found, silent.T @ silent))


def found(estimate: RewardEstimate, paid: Float) -> list[bool]:
    """Whether the better key is the paid one, for every stimulus of which both were pressed."""
    weights = estimate.weights.reshape(-1, KEYS)
    told = np.ptp(weights, axis=1) > 1e-9
    return list((weights.argmax(axis=1) == paid)[told])


def main() -> None:
    """Print what was found block by block, and over all blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    right: dict[int, list[bool]] = {n: [] for n in BLOCKS}
    gauges: list[bool] = []
    told: dict[str, list[str]] = {"blocks": [], "all blocks": []}
    sure = []
    for seed in range(options.first, options.first + options.subjects):
        subject = Subject(seed, slow=options.slow)
        blocks = [subject.block(n) for n in BLOCKS]
        for n, (history, _, paid) in zip(BLOCKS, blocks, strict=True):
            try:
                one = infer_reward(history, TabularSoftmax(n, KEYS), gamma=0.0, intervals=False)
            except IdentificationError:  # the same keys from the first trial to the last
                told["blocks"].append("refused")
                continue
            right[n] += found(one, paid)
            gauges.append(exact(one, history, n))
            told["blocks"].append(one.status.name)
        # What is right differs from block to block: each is a world of its own.
        histories = [by_right for _, by_right, _ in blocks]
        policy = TabularSoftmax(max(BLOCKS), KEYS)
        pooled = infer_reward(histories, policy, gamma=0.0, pool_world=False)
        sure.append(bool(pooled.interval(0.95)[0, 0] > 0))
        told["all blocks"].append(pooled.status.name)
    for n, one_size in right.items():
        share = np.mean(one_size)
        print(f"{n} stimuli: paid key found {share:.3f} of {len(one_size)} that were told")
    hits = list(chain.from_iterable(right.values()))
    print(f"paid key found {np.mean(hits):.3f}; gauge exact {np.mean(gauges):.2f}")
    print(f"over all blocks, the weight of being right is surely positive: {np.mean(sure):.2f}")
    for what, names in told.items():
        print(f"{what}: {dict(Counter(names))}")


if __name__ == "__main__":
    main()
