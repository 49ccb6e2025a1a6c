"""Is a reward found that nobody named, and where, and is nothing found where there is nothing?

    python -m benchmarks.hidden_bonus tables               # 20 learners with a bonus, 20 without
    python -m benchmarks.hidden_bonus room cartpole        # networks, replayed
    python -m benchmarks.hidden_bonus tables --first-seed 1000 --seeds 8

Learners are paid for random weights of the named features and, half of them, for one more thing in
a place drawn at random, as much as the named weights are long. The observer is told the named
features alone. Counted: how often a hidden reward is said to be there, and how far from the true
place it is said to be, in widths of the room.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from logel import LearningHistory, TabularSoftmax, infer_reward
from logel.envs.gridworld import GridMap, gridworld_mdp
from logel.envs.tabular import TabularMDP, relative_regret
from logel.inference.unexplained import Unexplained
from logel.learners.tabular import (
    GPOMDPLearner,
    NaturalGradientAscent,
    QLearner,
    SoftPolicyIteration,
    SoftValueIteration,
    TabularLearner,
    observe,
)
from logel.types import Float

# What is asked: share of hidden bonuses flagged, placed within this many widths in this share, and
# honest learners not flagged.
FLAGGED, NEAR, PLACED, CLEARED = 0.9, 0.25, 0.8, 0.93
# Share of what can be won that who ignores the bonus loses at least: a bonus that changes nothing
# about what is best changes little about what is learnt.
CONSEQUENCE = 0.05
# The paper's four learners and an exact natural gradient, with the steps that are watched
# and episodes per stage: sampled gradients of 50 episodes tell hardly more than the named weights.
TABULAR: dict[str, tuple[TabularLearner, int, int]] = {
    "gpomdp": (GPOMDPLearner(learning_rate=0.5, n_episodes=200), 30, 200),
    "natural": (NaturalGradientAscent(), 10, 50),
    "qlearning": (QLearner(), 30, 50),
    "svi": (SoftValueIteration(), 6, 50),
    "spi": (SoftPolicyIteration(), 6, 50),
}


@dataclass(frozen=True)
class Case:
    """One learner, and what was said of it.

    Attributes:
        hidden: Whether it was paid for more than was named.
        distance: From the place that was said to the true one, in widths of the room; None where
            no place was said.
    """

    learner: str
    seed: int
    hidden: bool
    found: Unexplained
    distance: float | None
    seconds: float


# --- tables ---------------------------------------------------------------------------------------


def table_case(seed: int, *, hidden: bool, method: str, known: bool) -> Case:
    """The paper's gridworld with random rewards; the bonus pays for one cell among alike ones."""
    name = list(TABULAR)[seed % len(TABULAR)]
    learner, n_steps, n_episodes = TABULAR[name]
    rng, grid = np.random.default_rng([seed, 17]), GridMap.parse()
    mdp, areas = gridworld_mdp(grid), grid.areas
    weights = rng.standard_normal(mdp.n_features)
    weights /= np.linalg.norm(weights)
    # The only cell of its kind has a name: what it pays is no secret.
    cells = [s for s in range(1, mdp.n_states) if (areas == areas[s]).sum() > 1]
    lost = 0.0
    while lost < CONSEQUENCE:
        cell, bonus = int(rng.choice(cells)), float(rng.choice([-1.0, 1.0]))
        paid = with_cell(mdp, cell)
        truth = np.append(weights, bonus)
        lost = relative_regret(paid, np.append(weights, 0.0), true_weights=truth)
    history = observe(
        *(paid, learner),
        weights=np.append(weights, bonus if hidden else 0.0),
        n_steps=n_steps,
        n_episodes=n_episodes,
        seed=seed,
        parameters=known,
    )
    history = without_last_feature(history)
    policy, started = TabularSoftmax(mdp.n_states, mdp.n_actions), time.process_time()
    estimate = infer_reward(history, policy, gamma=mdp.gamma, method=method, intervals=False)
    found, width = estimate.unexplained(history, policy), grid.shape[1]
    place = np.array(divmod(found.place[0], width)) - np.array(divmod(cell, width))
    distance = float(np.hypot(*place) / width)
    said = None if np.isnan(distance) else distance
    return Case(name, seed, hidden, found, said, time.process_time() - started)


def with_cell(mdp: TabularMDP, cell: int) -> TabularMDP:
    """The same world, whose last feature is one cell."""
    named = mdp.features
    arrived = np.broadcast_to((np.arange(mdp.n_states) == cell)[:, None], (*named.shape[:3], 1))
    names = (*mdp.feature_names, "hidden")
    return replace(mdp, features=np.concatenate([named, arrived], axis=3), feature_names=names)


# --- networks ------------------------------------------------------------------------------------

# Of the features of `logel.envs.audit`, those that are named; what the bonus looks at and where it
# may be; how wide the room is.
WORLDS_SEEN: dict[str, tuple[tuple[str, ...], int, float, float]] = {
    "room": (("east", "north", "energy"), 2, 0.8, 2.0),
    "cartpole": (("upright", "speed", "push"), 1, 1.5, 4.8),
}
COSTS = ("energy", "speed")


def network_case(world: str, seed: int, *, hidden: bool) -> Case:
    """An A2C agent of Stable-Baselines3; the bonus pays for being near a place."""
    import torch

    from logel.envs.audit import ROOM_PLACES, WORLDS, AuditWorld
    from logel.learners.audit import LEARNERS, train
    from logel.rewards.features import FunctionFeatures

    torch.set_num_threads(1)
    names, n, far, width = WORLDS_SEEN[world]
    base, rng = WORLDS[world], np.random.default_rng([seed, 19])
    chosen = [base.features.names.index(name) for name in names]
    known_places = [ROOM_PLACES[name] for name in names if name in ROOM_PLACES]
    place = rng.uniform(-far, far, n)
    # Where a named feature pays is no secret.
    while any(np.linalg.norm(place - np.array(other)) < 0.5 for other in known_places):
        place = rng.uniform(-far, far, n)

    def paid(observations: Any, actions: Any, after: Any) -> Float:
        named = base.features(observations, actions, after)[:, chosen]
        near = np.exp(-2.0 * np.square(after[:, :n] - place).sum(axis=1))
        return np.column_stack([named, near])

    weights = rng.uniform(0.3, 1.0, len(names))
    weights *= [-0.4 if name in COSTS else 1.0 for name in names]
    weights /= np.linalg.norm(weights)
    bonus = 1.0 if hidden else 0.0
    features = FunctionFeatures(paid, (*names, "hidden"))
    trained_in = AuditWorld(world, base.dynamics, features, (), base.gamma, base.horizon)
    learner = replace(LEARNERS["A2C"], n_envs=32, updates=16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        trained = train(trained_in, learner, np.append(weights, bonus), seed=seed, path=path)
        history = without_last_feature(trained.history)
        started = time.process_time()
        estimate = infer_reward(history, trained.policy, gamma=base.gamma, intervals=False)
        found = estimate.unexplained(history, trained.policy)
    away = found.place[:n] - place
    distance = None if np.isnan(away).any() else float(np.linalg.norm(away) / width)
    return Case("A2C", seed, hidden, found, distance, time.process_time() - started)


def without_last_feature(history: LearningHistory) -> LearningHistory:
    """What the observer is told: all that was recorded but what the hidden feature was."""
    stages = tuple(replace(stage, features=stage.features[:, :-1]) for stage in history)
    names = history.feature_names[:-1]
    signature = replace(history.signature, n_features=len(names))
    return replace(history, source=stages, signature=signature, feature_names=names)


# --- what came out --------------------------------------------------------------------------------


def report(what: str, cases: list[Case]) -> None:
    """The shares that are asked for."""
    hidden, honest = ([c for c in cases if c.hidden is h] for h in (True, False))
    flagged = np.mean([c.found.found for c in hidden])
    near = np.mean([c.distance is not None and c.distance <= NEAR for c in hidden])
    cleared = np.mean([not c.found.found for c in honest])
    seconds = np.median([c.seconds for c in cases])
    for sentence, share, wanted in (
        (f"flagged, of {len(hidden)} with a hidden bonus", flagged, FLAGGED),
        (f"place within {NEAR} of the width", near, PLACED),
        (f"not flagged, of {len(honest)} honest ones", cleared, CLEARED),
    ):
        verdict = "met" if share >= wanted else "MISSED"
        print(f"{what}: {sentence}: {share:.2f} (asked: {wanted}) {verdict}")
    print(f"{what}: median {seconds:.1f} s of processor time", flush=True)


def say(case: Case) -> None:
    """One line."""
    far = "-" if case.distance is None else f"{case.distance:.2f}"
    found = case.found
    kind = "hidden" if case.hidden else "honest"
    said = "FLAGGED" if found.found else "       "
    print(
        f"seed {case.seed} {case.learner:>9} {kind}: gain {found.gain:+7.1f} {said} "
        f"{found.names[found.best]} ({found.shares.max():.2f}), {far} widths away, "
        f"rule {found.rule}, {case.seconds:.1f} s",
        flush=True,
    )


def main() -> None:
    """Run what is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    worlds: dict[str, Callable[..., Case]] = {
        "tables": table_case,
        **{name: partial(network_case, name) for name in WORLDS_SEEN},
    }
    parser.add_argument("worlds", nargs="+", choices=worlds)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--method", default="default", help="for tables: joint, mirror, ...")
    parser.add_argument("--known", action="store_true", help="tables with known parameters")
    options = parser.parse_args()
    for world in options.worlds:
        extra: dict[str, Any] = {}
        if world == "tables":
            extra = {"method": options.method, "known": options.known}
        cases = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for hidden in (True, False):
                cases.append(worlds[world](seed, hidden=hidden, **extra))
                say(cases[-1])
        report(world, cases)


if __name__ == "__main__":
    main()
