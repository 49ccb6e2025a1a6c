"""The paper's driving study: what a driver who learns to enter a crossroad wants.

A rule-based driver learns with PGPE. The observer sees episodes only, clones the driver with a
linear policy and recovers non-negative costs of time, jerk, slowness and crashes. Beside the
paper's table stand the controls it needs: the crash weight comes out near one for many movements,
whoever makes them, because its effect on the parameters is a hundred times smaller than time's. So
the same is computed for a driver with other wishes, for one that wants nothing, and for the
history read backwards; and the explained movement is compared with what it would be if every step
had gone either way with equal chances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.envs.crossroad.driver import SIGMA, START, drive, even_clone
from logel.envs.crossroad.simulation import require_simulator
from logel.envs.crossroad.world import FEATURE_NAMES, WEIGHTS, Crossroad
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import METHODS, Method, infer_reward
from logel.inference.regress import objective, solve
from logel.inference.steps import compress
from logel.learners.pgpe import PGPE, Search, describe, learn, random_walk, watch
from logel.policies.base import Policy
from logel.policies.cloning import clone
from logel.studies.claims import Claim, judge
from logel.studies.run.tasks import Row, Scalar, Task, grid
from logel.types import Float
from logel.worlds.own_episodes import stage_jacobian

GAMMA = 0.999
UPDATES, EPISODES = 10, 400
OBSERVERS = ("default", "paper")
PAPER_WEIGHTS = (0.0401, 0.0174, 0.0, 0.9424)
PAPER_DISTANCE = 0.111
TARGET_DISTANCE = 0.05
SAFE = 0.1
_FLIPS = 400


@dataclass(frozen=True)
class Wish:
    """A driver to be watched.

    Attributes:
        weights: True reward weights, summing to one; None for a driver that wants nothing.
        learning_rate: PGPE's rate; rewards in other units need other rates.
    """

    weights: tuple[float, ...] | None
    learning_rate: float = 7.0


LEARNERS = {
    "cautious": Wish(WEIGHTS),
    "hurried": Wish((0.5, 0.0, 0.0, 0.5), learning_rate=0.15),
    "random": Wish(None),
}
# As long as the cautious driver's typical step, in units of the search's standard deviations.
RANDOM_STEP = 0.6


def methods() -> dict[str, Method]:
    """The observers: the best that can keep costs non-negative, and the paper's way."""
    default, paper = METHODS["two-step"], METHODS["paper"]
    assert isinstance(default, Method) and isinstance(paper, Method)
    return {
        # Draws, not standard errors: shares near 0 and 1 have no symmetric intervals.
        "default": replace(default, nonnegative=True, uncertainty="bootstrap", n_groups=30),
        "paper": replace(paper, nonnegative=True),
    }


def crossroad_tasks(
    options: dict[str, str],
    observers: Sequence[str],
    seeds: range,
    *,
    episodes: int = EPISODES,
    updates: int = UPDATES,
) -> list[Task]:
    """Every learner and seed; all observers watch the same episodes."""
    require_simulator()  # one sentence now rather than a failure per task
    if not set(observers) & set(OBSERVERS):
        return []
    settings: dict[str, list[Scalar]] = {
        "learner": list(LEARNERS),
        "episodes": [episodes],
        "updates": [updates],
    }
    return grid("crossroad", settings, seeds=seeds)


def run_crossroad(task: Task) -> list[Row]:
    """Let a driver learn, watch it, and recover its reward in several ways."""
    name = str(task.setting["learner"])
    updates, episodes = int(task.setting["updates"] or 0), int(task.setting["episodes"] or 0)
    env = Crossroad()
    try:
        path, history, collisions = _watched(env, task, LEARNERS[name], updates, episodes)
    finally:
        env.close()
    rows = _stage_rows(path, history, collisions, LEARNERS[name])
    truth = LEARNERS[name].weights
    backwards = LearningHistory.from_stages(list(history)[::-1], feature_names=FEATURE_NAMES)
    for direction, seen in (("forwards", history), ("backwards", backwards)):
        policy = even_clone(seen)
        for observer, method in methods().items():
            estimate = infer_reward(seen, policy, gamma=GAMMA, method=method, seed=task.seed)
            labels: Row = {"observer": observer, "direction": direction}
            rows += [{**labels, **row} for row in _weight_rows(estimate, truth)]
            chance = sign_flips(seen, policy, method) if observer == "default" else None
            rows.append({**labels, **_fit_row(estimate, truth, chance)})
    return rows


def _watched(
    env: Crossroad, task: Task, wish: Wish, updates: int, episodes: int
) -> tuple[list[Search], LearningHistory, list[int]]:
    """The search distributions, the observer's history, and real collisions in every stage."""
    learner_seed, observer_seed = task.seed_sequence().spawn(2)
    start = Search(np.array(START), np.array(SIGMA))
    learner = PGPE(learning_rate=wish.learning_rate)
    collided: list[bool] = []

    def rollout(parameters: Float, seed: int) -> Episode:
        episode = drive(env, parameters, seed)
        collided.append(env.outcome == "collision")
        return episode

    if wish.weights is None:
        path = random_walk(start, length=RANDOM_STEP, n_steps=updates, seed=learner_seed)
    else:
        path = learn(
            learner,
            rollout,
            start=start,
            weights=wish.weights,
            gamma=GAMMA,
            n_steps=updates,
            seed=learner_seed,
        )
    collided.clear()
    history = watch(
        path,
        rollout,
        n_episodes=episodes,
        feature_names=FEATURE_NAMES,
        seed=observer_seed,
        metadata=describe(learner),
    )
    return path, history, np.reshape(collided, (len(path), episodes)).sum(axis=1).tolist()


def _stage_rows(
    path: list[Search], history: LearningHistory, collisions: list[int], wish: Wish
) -> list[Row]:
    weights = np.array(WEIGHTS if wish.weights is None else wish.weights)
    rows: list[Row] = []
    for t, (search, stage) in enumerate(zip(path, history, strict=True)):
        assert stage.features is not None
        paid = GAMMA**stage.times * (stage.features @ weights)
        row: Row = {
            "part": "stage",
            "stage": t,
            "return": float(paid.sum()) / stage.n_episodes,
            "crash": -float(stage.features[:, 3].sum()) / stage.n_episodes,
            "collision": collisions[t] / stage.n_episodes,
            "seconds": 0.5 * float(stage.lengths.mean()),
        }
        rows.append({**row, **{f"mean {k}": float(v) for k, v in enumerate(search.mean)}})
    return rows


def _weight_rows(estimate: RewardEstimate, truth: tuple[float, ...] | None) -> list[Row]:
    size = float(np.abs(estimate.weights).sum()) or 1.0
    ends = estimate.interval(0.95) / size
    if estimate.draws is not None:
        costs = np.clip(estimate.draws, 0, None)
        shares = costs / np.maximum(costs.sum(axis=1, keepdims=True), 1e-300)
        ends = np.quantile(shares, [0.025, 0.975], axis=0).T
    return [
        {
            "part": "weight",
            "feature": name,
            "weight": float(weight) / size,
            "low": float(low),
            "high": float(high),
            "truth": None if truth is None else truth[k],
        }
        for k, (name, weight, (low, high)) in enumerate(
            zip(FEATURE_NAMES, estimate.weights, ends, strict=True)
        )
    ]


def _fit_row(
    estimate: RewardEstimate, truth: tuple[float, ...] | None, chance: tuple[float, float] | None
) -> Row:
    size = float(np.abs(estimate.weights).sum()) or 1.0
    distance = None if truth is None else float(np.abs(estimate.weights / size - truth).sum())
    return {
        "part": "fit",
        "distance": distance,
        "median explained": float(np.nanmedian(estimate.explained)),
        "cosine": float(np.nanmedian(estimate.fit.cosines)),
        "explained": None if chance is None else chance[0],
        "chance 95%": None if chance is None else chance[1],
        "status": estimate.status.name,
        "gauge": "; ".join(estimate.gauge.describe()),
    }


def sign_flips(history: LearningHistory, policy: Policy, method: Method) -> tuple[float, float]:
    """Explained share of all movement, and the 95% point of what chance would explain.

    A learner that wants nothing takes every step and its opposite with equal probability. So the
    fit is repeated with the signs of the steps drawn at random: the exact distribution under that
    hypothesis, whatever the steps' sizes and directions.
    """
    parameters = clone(history, policy, replace(method.clone, holdout=0.0)).parameters
    design = np.stack(
        [
            stage_jacobian(
                policy, theta, stage, gamma=GAMMA, estimator=method.estimator,
                baseline=method.baseline, n_groups=1,
            ).mean
            for theta, stage in zip(parameters[:-1], history, strict=False)
        ]
    )  # fmt: skip
    steps = compress(np.diff(parameters, axis=0), design)
    rng = np.random.default_rng(0)

    def explained(signs: Float) -> float:
        flipped = replace(steps, delta=signs[:, None] * steps.delta)
        found = solve(flipped, nonnegative=method.nonnegative, shared_rate=True)
        left = objective(flipped, found.weights, found.learning_rates)
        return 1 - left / float(steps.squared_movement.sum())

    flips = rng.choice([-1.0, 1.0], size=(_FLIPS, steps.n_steps))
    by_chance = [explained(signs) for signs in flips]
    return explained(np.ones(steps.n_steps)), float(np.quantile(by_chance, 0.95))


# --- what came out --------------------------------------------------------------------------------


def fits(table: pd.DataFrame, learner: str, observer: str, direction: str) -> pd.DataFrame:
    """The fit rows of one case, by seed."""
    chosen = (table.part == "fit") & (table.learner == learner) & (table.observer == observer)
    return table[chosen & (table.direction == direction)].set_index("seed").sort_index()


def recovered(table: pd.DataFrame, learner: str, observer: str) -> pd.DataFrame:
    """Recovered normalised weights, one row per seed, one column per feature."""
    chosen = (table.part == "weight") & (table.learner == learner) & (table.observer == observer)
    rows = table[chosen & (table.direction == "forwards")]
    return rows.pivot(index="seed", columns="feature", values="weight")[list(FEATURE_NAMES)]


def crossroad_claims(table: pd.DataFrame) -> list[Claim]:
    """The paper's claim, and those that make it mean something."""
    claims = []
    stages = table[(table.part == "stage") & (table.learner == "cautious")]
    crash = stages.pivot(index="seed", columns="stage", values="crash")
    claims.append(
        judge(
            "PGPE learns to drive safely",
            crash[crash.columns.max()].tolist(),
            statistic=f"crash rate after {int(crash.columns.max())} updates",
            threshold=SAFE,
            wanted="below",
            observer="none",
            source="logel",
        )
    )
    for observer in OBSERVERS:
        distance = fits(table, "cautious", observer, "forwards").distance
        for threshold, source in ((PAPER_DISTANCE, "paper"), (TARGET_DISTANCE, "logel")):
            claims.append(
                judge(
                    "the recovered weights are close to the real ones",
                    distance.tolist(),
                    statistic="L1 distance of normalised weights",
                    threshold=threshold,
                    wanted="below",
                    observer=observer,
                    source=source,
                )
            )
        both = [recovered(table, learner, observer) for learner in ("cautious", "hurried")]
        claims.append(
            judge(
                "a driver with other wishes is recovered as different",
                (both[1] - both[0]).abs().sum(axis=1).tolist(),
                statistic="L1 distance between the two drivers' recovered weights",
                threshold=TARGET_DISTANCE,
                wanted="above",
                observer=observer,
                source="logel",
            )
        )
        claims.append(
            judge(
                "waiting matters more to the hurried driver",
                # Time and slow cannot be told apart by drivers who wait: their sum can.
                (both[1] - both[0])[["time", "slow"]].sum(axis=1).tolist(),
                statistic="difference of the recovered weights of time plus slow",
                threshold=0.0,
                wanted="above",
                observer=observer,
                source="logel",
            )
        )
    for learner, wanted in (("cautious", "above"), ("hurried", "above"), ("random", "below")):
        found = fits(table, learner, "default", "forwards")
        claims.append(
            judge(
                f"the {learner} driver's movement is explained "
                f"{'better' if wanted == 'above' else 'no better'} than chance",
                (found["explained"] - found["chance 95%"]).tolist(),
                statistic="explained movement minus the 95% point of chance",
                threshold=0.0,
                wanted=wanted,
                observer="default",
                source="logel",
            )
        )
    return claims


def crossroad_summary(table: pd.DataFrame) -> str:
    """The paper's table and its controls, as Markdown."""
    lines = ["| | " + " | ".join(FEATURE_NAMES) + " | L1 distance |", "|---|---|---|---|---|---|"]

    def line(label: str, cells: Sequence[str]) -> None:
        lines.append(f"| {label} | " + " | ".join(cells) + " |")

    line("real weights", [*(f"{w:.4f}" for w in WEIGHTS), ""])
    line("the paper's", [*(f"{w:.4f}" for w in PAPER_WEIGHTS), f"{PAPER_DISTANCE:.3f}"])
    for learner in LEARNERS:
        if learner == "hurried":
            hurried = LEARNERS[learner].weights or ()
            line("hurried driver's real weights", [*(f"{w:.4f}" for w in hurried), ""])
        for observer in OBSERVERS:
            weights = recovered(table, learner, observer)
            distance = fits(table, learner, observer, "forwards").distance
            middle, low, high = (weights.quantile(q) for q in (0.5, 0.0, 1.0))
            cells = [f"{middle[n]:.4f} [{low[n]:.4f}, {high[n]:.4f}]" for n in FEATURE_NAMES]
            # Who wants nothing is compared with the cautious: nothing shows the hazard better.
            guess = (weights - np.array(WEIGHTS)).abs().sum(axis=1).median()
            nothing = LEARNERS[learner].weights is None
            away = f"({guess:.4f})" if nothing else f"{distance.median():.4f}"
            line(f"{learner}, {observer}: median [range] over seeds", [*cells, away])
    lines += [
        "",
        "In brackets: from the cautious driver's weights, which the random driver never had.",
        "",
        "| driver | direction | explained movement | 95% point of chance | above it | cosine |",
        "|---|---|---|---|---|---|",
    ]
    for learner in LEARNERS:
        for direction in ("forwards", "backwards"):
            found = fits(table, learner, "default", direction)
            above = int((found["explained"] > found["chance 95%"]).sum())
            lines.append(
                f"| {learner} | {direction} | {found['explained'].median():.3f} | "
                f"{found['chance 95%'].median():.3f} | {above} of {len(found)} seeds | "
                f"{found['cosine'].median():.2f} |"
            )
    return "\n".join(lines) + "\n"
