"""Bandit-like tasks: is the paid action of every stimulus found, and the gauge exact?

    python -m benchmarks.bandits [--subjects 20] [--first 0]

Simulated subjects see 3 to 6 stimuli, each 12 times in random order, and press one of two keys;
one of them is paid. They learn by Q-learning or policy gradient, each at its own rate. Features are
one-hot in stimulus and key, gamma is 0: one direction per stimulus (its level) cannot be told,
and nothing of a key that was never pressed.
"""

from __future__ import annotations

import argparse

import numpy as np

from logel import Episode, LearningHistory, RewardEstimate, TabularSoftmax, infer_reward
from logel.errors import IdentificationError
from logel.types import Float

KEYS, SHOWN, WINDOWS = 2, 12, 6


def subject(seed: int, n_stimuli: int) -> tuple[LearningHistory, Float]:
    """What a subject did, and the key that is paid for each stimulus."""
    rng = np.random.default_rng([seed, n_stimuli])
    paid = rng.integers(0, KEYS, n_stimuli)
    values, size = np.zeros((n_stimuli, KEYS)), float(rng.uniform(3.0, 6.0))
    gradient, rate = bool(rng.integers(2)), float(rng.uniform(0.05, 0.2))
    episodes = []
    for stimulus in np.concatenate([rng.permutation(n_stimuli) for _ in range(SHOWN)]):
        chances = np.exp(values[stimulus]) / np.exp(values[stimulus]).sum()
        key = int(rng.choice(KEYS, p=chances))
        features = np.eye(n_stimuli * KEYS)[[stimulus * KEYS + key]]
        trial = Episode(np.array([stimulus]), np.array([key]), features, terminated=True)
        episodes.append(trial)
        reward = size * (key == paid[stimulus])
        if gradient:
            score = -chances
            score[key] += 1
            values[stimulus] += rate * (reward - size / KEYS) * score
        else:
            values[stimulus, key] += rate * (reward - values[stimulus, key])
    names = [f"stimulus {s}, key {k}" for s in range(n_stimuli) for k in range(KEYS)]
    made = LearningHistory.from_sessions(episodes, windows=WINDOWS, feature_names=names)
    return made, paid


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


def main() -> None:
    """Print one line per number of stimuli."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.subjects)
    for n_stimuli in (3, 4, 5, 6):
        right, gauges, statuses = [], [], []
        for seed in seeds:
            history, paid = subject(seed, n_stimuli)
            policy = TabularSoftmax(n_stimuli, KEYS)
            try:
                estimate = infer_reward(history, policy, gamma=0.0, intervals=False)
            except IdentificationError:  # the same keys from the first trial to the last
                right.append(0.0)
                statuses.append("refused")
                continue
            best = estimate.weights.reshape(n_stimuli, KEYS).argmax(axis=1)
            right.append((best == paid).mean())
            gauges.append(exact(estimate, history, n_stimuli))
            statuses.append(estimate.status.name)
        told = ", ".join(f"{statuses.count(name)} {name}" for name in sorted(set(statuses)))
        print(
            f"{n_stimuli} stimuli: paid key found {np.mean(right):.3f}, gauge exact "
            f"{np.mean(gauges):.2f}; {told}",
            flush=True,
        )


if __name__ == "__main__":
    main()
