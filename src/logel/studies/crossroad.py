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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.envs.crossroad.driver import PARAMETER_NAMES, SIGMA, START, RuleDriver, drive, even_clone
from logel.envs.crossroad.simulation import require_simulator
from logel.envs.crossroad.world import FEATURE_NAMES, WEIGHTS, Crossroad
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import METHODS, Method, infer_reward
from logel.inference.regress import objective, solve
from logel.inference.steps import compress
from logel.learners.pgpe import PGPE, Search, describe, learn, random_walk, watch
from logel.policies.base import Policy
from logel.policies.cloned_path import clone
from logel.studies import plots
from logel.studies.claims import Claim, judge, markdown
from logel.studies.measures import mean_returns, weight_rows
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float
from logel.worlds.own_episodes import stage_jacobian

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAMMA = 0.999
# Seconds between decisions, the crossroad's default.
PERIOD = 0.5
OBSERVERS = ("default", "paper")
PAPER_WEIGHTS = (0.0401, 0.0174, 0.0, 0.9424)
PAPER_DISTANCE = 0.111
TARGET_DISTANCE = 0.05
# A driver has learnt when fewer episodes than this share end in a crash.
SAFE = 0.1
# The 95% point of so many draws is about between the true 94% and 96% points.
_FLIPS = 400
# Frames at the start in which the ego vehicle is not yet in the picture, and frames shown.
_APPROACH, _FRAMES = 6, 6


@dataclass(frozen=True)
class Wish:
    """A driver to be watched: true weights that sum to one, or None if it wants nothing."""

    weights: tuple[float, ...] | None
    # PGPE's; rewards in other units need other rates.
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


def run(task: Task) -> list[Row]:
    """Let a driver learn, watch it, and recover its reward in several ways."""
    wish = LEARNERS[task.text("learner")]
    env = Crossroad()
    try:
        path, history, collisions = _watched(env, task, wish)
    finally:
        env.close()
    rows = _stage_rows(path, history, collisions, wish)
    backwards = LearningHistory.from_stages(list(history)[::-1], feature_names=FEATURE_NAMES)
    for direction, seen in (("forwards", history), ("backwards", backwards)):
        policy = even_clone(seen)
        for observer, method in methods().items():
            estimate = infer_reward(seen, policy, gamma=GAMMA, method=method, seed=task.seed)
            found = _weight_rows(estimate, wish.weights)
            chance = sign_flips(seen, policy, method) if observer == "default" else None
            found.append(_fit_row(estimate, wish.weights, chance))
            rows += [{"observer": observer, "direction": direction, **row} for row in found]
    return rows


def _watched(
    env: Crossroad, task: Task, wish: Wish
) -> tuple[list[Search], LearningHistory, list[int]]:
    """The search distributions, the observer's history, and real collisions in every stage."""
    updates, episodes = task.integer("updates"), task.integer("episodes")
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
    returns = mean_returns(history, weights, GAMMA)
    rows: list[Row] = []
    for t, (search, stage) in enumerate(zip(path, history, strict=True)):
        assert stage.features is not None
        row: Row = {
            "part": "stage",
            "stage": t,
            "return": float(returns[t]),
            "crash": -float(stage.features[:, 3].sum()) / stage.n_episodes,
            "collision": collisions[t] / stage.n_episodes,
            "seconds": PERIOD * float(stage.lengths.mean()),
        }
        rows.append({**row, **{f"mean {k}": float(v) for k, v in enumerate(search.mean)}})
    return rows


def _weight_rows(estimate: RewardEstimate, truth: tuple[float, ...] | None) -> list[Row]:
    size = float(np.abs(estimate.weights).sum()) or 1.0
    ends = estimate.interval(0.95) / size
    if estimate.draws is not None:
        costs = np.clip(estimate.draws, 0, None)
        # A draw without any cost has no shares, but is no reason to divide by zero.
        shares = costs / np.maximum(costs.sum(axis=1, keepdims=True), 1e-300)
        ends = np.quantile(shares, [0.025, 0.975], axis=0).T
    return weight_rows(FEATURE_NAMES, estimate.weights / size, ends, truth)


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


def _part(table: pd.DataFrame, part: str, **wanted: str) -> pd.DataFrame:
    """The rows of one part of the results with these settings."""
    chosen = table.part == part
    for name, value in wanted.items():
        chosen &= table[name] == value
    return table[chosen]


def fits(table: pd.DataFrame, learner: str, observer: str, direction: str) -> pd.DataFrame:
    """The fit rows of one case, by seed."""
    rows = _part(table, "fit", learner=learner, observer=observer, direction=direction)
    return rows.set_index("seed").sort_index()


def recovered(table: pd.DataFrame, learner: str, observer: str) -> pd.DataFrame:
    """Recovered normalised weights, one row per seed, one column per feature."""
    rows = _part(table, "weight", learner=learner, observer=observer, direction="forwards")
    return rows.pivot(index="seed", columns="feature", values="weight")[list(FEATURE_NAMES)]


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The paper's claim, and those that make it mean something."""
    stages = _part(table, "stage", learner="cautious")
    crash = stages.pivot(index="seed", columns="stage", values="crash")
    last = crash.columns.max()
    yield judge(
        "PGPE learns to drive safely",
        crash[last],
        statistic=f"crash rate after {int(last)} updates",
        below=SAFE,
        observer="none",
    )
    for observer in OBSERVERS:
        for threshold, source in ((PAPER_DISTANCE, "paper"), (TARGET_DISTANCE, "logel")):
            yield judge(
                "the recovered weights are close to the real ones",
                fits(table, "cautious", observer, "forwards").distance,
                statistic="L1 distance of normalised weights",
                below=threshold,
                observer=observer,
                source=source,
            )
        apart = recovered(table, "hurried", observer) - recovered(table, "cautious", observer)
        yield judge(
            "a driver with other wishes is recovered as different",
            apart.abs().sum(axis=1),
            statistic="L1 distance between the two drivers' recovered weights",
            above=TARGET_DISTANCE,
            observer=observer,
            source="logel",
        )
        yield judge(
            "waiting matters more to the hurried driver",
            # Time and slow cannot be told apart by drivers who wait: their sum can.
            apart[["time", "slow"]].sum(axis=1),
            statistic="difference of the recovered weights of time plus slow",
            above=0.0,
            observer=observer,
            source="logel",
        )
    for learner, wish in LEARNERS.items():
        found = fits(table, learner, "default", "forwards")
        wanted: dict[str, Any] = {"below" if wish.weights is None else "above": 0.0}
        yield judge(
            f"the {learner} driver's movement is explained "
            f"{'no better' if wish.weights is None else 'better'} than chance",
            found["explained"] - found["chance 95%"],
            statistic="explained movement minus the 95% point of chance",
            **wanted,
        )


def summary(table: pd.DataFrame) -> str:
    """The paper's table and its controls, as Markdown."""
    weights = [
        ["real weights", *_cells(WEIGHTS), ""],
        ["the paper's", *_cells(PAPER_WEIGHTS), f"{PAPER_DISTANCE:.3f}"],
        *(_weights_line(table, "cautious", observer) for observer in OBSERVERS),
        ["hurried driver's real weights", *_cells(LEARNERS["hurried"].weights or ()), ""],
        *(
            _weights_line(table, learner, observer)
            for learner in ("hurried", "random")
            for observer in OBSERVERS
        ),
    ]
    controls = [
        _controls_line(table, learner, direction)
        for learner in LEARNERS
        for direction in ("forwards", "backwards")
    ]
    header = ["driver", "direction", "explained movement", "95% point of chance", "above it"]
    return (
        markdown(["", *FEATURE_NAMES, "L1 distance"], weights)
        + "\nIn brackets: from the cautious driver's weights, which the random driver never had.\n"
        + "\n"
        + markdown([*header, "cosine"], controls)
    )


def _cells(weights: tuple[float, ...]) -> list[str]:
    return [f"{weight:.4f}" for weight in weights]


def _weights_line(table: pd.DataFrame, learner: str, observer: str) -> list[str]:
    weights = recovered(table, learner, observer)
    middle, low, high = (weights.quantile(q) for q in (0.5, 0.0, 1.0))
    cells = [f"{middle[n]:.4f} [{low[n]:.4f}, {high[n]:.4f}]" for n in FEATURE_NAMES]
    away = f"{fits(table, learner, observer, 'forwards').distance.median():.4f}"
    if LEARNERS[learner].weights is None:
        # Who wants nothing is compared with the cautious: nothing shows the hazard better.
        away = f"({(weights - np.array(WEIGHTS)).abs().sum(axis=1).median():.4f})"
    return [f"{learner}, {observer}: median [range] over seeds", *cells, away]


def _controls_line(table: pd.DataFrame, learner: str, direction: str) -> list[str]:
    found = fits(table, learner, "default", direction)
    above = int((found["explained"] > found["chance 95%"]).sum())
    explained, chance = found["explained"].median(), found["chance 95%"].median()
    cosine = f"{found['cosine'].median():.2f}"
    above_it = f"{above} of {len(found)} seeds"
    return [learner, direction, f"{explained:.3f}", f"{chance:.3f}", above_it, cosine]


# --- figures --------------------------------------------------------------------------------------


COLOURS = {"cautious": plots.BLUE, "hurried": plots.RED, "random": plots.GREY}


def figure(table: pd.DataFrame) -> Figure:
    """Weights, learning curves and controls."""
    drawn = plots.new_figure(11, 6.2)
    (bars, other), (curve, crash), (control, last) = drawn.subplots(
        2, 3, width_ratios=[1.2, 1, 1]
    ).T
    _weight_bars(bars, table, "cautious", paper=PAPER_WEIGHTS)
    _weight_bars(other, table, "hurried")
    for learner, color in COLOURS.items():
        rows = _part(table, "stage", learner=learner)
        plots.band(crash, rows, "stage", "crash", color=color, label=learner)
        if learner == "cautious":
            plots.band(curve, rows, "stage", "return", color=color, label=learner)
    plots.rule(crash, SAFE, dotted=True)
    crash.set_ylim(0, None)
    crash.legend(fontsize=8, frameon=False)
    seeds = table.seed.nunique()
    for axes in (curve, crash):
        axes.xaxis.get_major_locator().set_params(integer=True)
    plots.tidy(curve, title="The cautious driver's return", x="updates", y="mean return")
    plots.tidy(crash, title=f"Crash rate ({seeds} seeds, mean, 98% band)", x="updates")
    _controls(control, table, "forwards", "Explained movement")
    _controls(last, table, "backwards", "The same, read backwards")
    return drawn


def _weight_bars(
    axes: Axes, table: pd.DataFrame, learner: str, *, paper: tuple[float, ...] | None = None
) -> None:
    series: list[tuple[str, str, Float]] = [
        ("real", plots.GREY, np.array([LEARNERS[learner].weights]))
    ]
    if paper is not None:
        series.append(("the paper's", plots.GREEN, np.array([paper])))
    for name in OBSERVERS:
        found = recovered(table, learner, name).to_numpy()
        series.append((plots.LABELS[name], plots.COLOURS[name], found))
    for k, (label, color, weights) in enumerate(series):
        ends = np.quantile(weights, [0, 1], axis=0) if label in plots.LABELS.values() else None
        middle = np.median(weights, axis=0)
        plots.bars(axes, k, len(series), middle, ends, label=label, color=color)
    plots.hundredths_scale(axes)
    axes.set_xticks(np.arange(len(FEATURE_NAMES)), FEATURE_NAMES)
    axes.legend(fontsize=7, frameon=False, loc="upper center")
    plots.tidy(axes, title=f"{learner.capitalize()}: weights, median and range")


def _controls(axes: Axes, table: pd.DataFrame, direction: str, title: str) -> None:
    for k, (learner, color) in enumerate(COLOURS.items()):
        found = fits(table, learner, "default", direction)
        at = k + (np.linspace(-0.25, 0.25, len(found)) if len(found) > 1 else np.zeros(1))
        axes.scatter(at, found["explained"], color=color, s=22, zorder=3)
        label = "95% point of chance" if k == 0 else None
        axes.scatter(at, found["chance 95%"], color="black", marker="_", s=40, label=label)
    axes.set_xticks(range(len(COLOURS)), list(COLOURS))
    axes.set_ylim(0, None)
    axes.legend(fontsize=7, frameon=False)
    plots.tidy(axes, title=title)


def strip_figure(table: pd.DataFrame) -> Figure:
    """The same traffic met by the cautious driver of the first seed before and after learning."""
    rows = _part(table, "stage", learner="cautious")
    rows = rows[rows.seed == rows.seed.min()].sort_values("stage")
    means = rows[[f"mean {k}" for k in range(len(PARAMETER_NAMES))]].to_numpy(dtype=float)
    films = _films([RuleDriver.from_parameters(means[t]) for t in (0, -1)])
    drawn = plots.new_figure(11, 4.2)
    labels = ("Before learning", f"After {int(rows.stage.max())} updates")
    panels = drawn.subplots(2, _FRAMES)
    for line, film, label in zip(panels, films, labels, strict=True):
        shown = np.linspace(_APPROACH, len(film) - 1, _FRAMES).round().astype(int)
        for axes, at in zip(line, shown, strict=True):
            # Without the roads that lead to the crossing.
            axes.imshow(film[at][100:320, 90:310])
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{at * PERIOD:.1f} s", fontsize=8)
        line[0].set_ylabel(label, fontsize=9)
    return drawn


def _films(drivers: list[RuleDriver]) -> list[list[Any]]:
    """The first episode (seeds 0, 1, ...) in which the first driver crashes, the last arrives."""
    env = Crossroad(render_mode="rgb_array")
    try:
        for seed in range(200):
            if [_outcome(env, driver, seed) for driver in drivers] == ["conflict", "arrived"]:
                break
        return [[env.render() for _ in _episode(env, driver, seed)] for driver in drivers]
    finally:
        env.close()


def _outcome(env: Crossroad, driver: RuleDriver, seed: int) -> str:
    for _ in _episode(env, driver, seed):
        pass
    return env.outcome


def _episode(env: Crossroad, driver: RuleDriver, seed: int) -> Iterator[None]:
    """Drive, and let the caller look on after every move."""
    observation, _ = env.reset(seed=seed)
    yield
    while env.outcome == "driving":
        observation, *_ = env.step(driver.act(observation))
        yield


STUDY = Study(
    "crossroad",
    # All observers watch the same episodes: they are no setting.
    [{"learner": list(LEARNERS), "episodes": [400], "updates": [10]}],
    run,
    claims,
    figure,
    observers=OBSERVERS,
    summary=summary,
    more_figures={"before-and-after": strip_figure},
    packages=("libsumo",),
    require=require_simulator,
)
