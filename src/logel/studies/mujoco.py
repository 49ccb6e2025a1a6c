"""What the studies of PPO agents that learn to hop, and to reach, share.

A learner trains; its run is recorded. Observers see the later stages only, without the policy's
parameters, recover a reward each in its own way, and train an agent on it from the learner's first
policy. Agents are scored by the true reward: 0 is the learner's first return, 1 its last.

Recorded learners are kept in a folder of their own (`LOGEL_CACHE`, by default `~/.cache/logel`):
all observers of a seed watch the same one, and a study that was stopped need not train it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.folder import package_versions
from logel.data.history import LearningHistory
from logel.data.limits import optional
from logel.errors import LogelError
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import METHODS, Method, infer_reward
from logel.policies.networks import MLPGaussian
from logel.studies import plots
from logel.studies.claims import Claim, judge, markdown, mean_interval
from logel.studies.run.files import kept_learner
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.threads import limited_threads
from logel.types import Float
from logel.worlds.own_episodes import Baseline

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from logel.learners.ppo import PPOSettings
    from logel.rewards.linear import LinearReward
    from logel.rewards.sb3 import TransitionReward

OBSERVERS = ("default", "paper", "lfl", "trex")
GAMMA = 0.99
PACKAGES = ("mujoco", "gymnasium", "stable-baselines3")
# An agent succeeds that comes as far as the learner, and fails if it does not come half as far.
SUCCESS, FAILURE = 1.0, 0.5
WEIGHT_COLUMNS = ("feature", "weight", "low", "high", "truth")


@dataclass(frozen=True)
class Size:
    """How large a study is, and what differs from the paper's PPO settings."""

    updates: int
    # The first stage that the observer sees: the early ones are too noisy.
    first: int
    observer_updates: int
    ppo: tuple[tuple[str, int], ...] = ()
    # Minibatch steps of the neural baselines, in units of their own defaults.
    fit_steps: float = 1.0

    @property
    def settings(self) -> PPOSettings:
        """PPO's settings."""
        from logel.learners.ppo import PPOSettings

        return replace(PPOSettings(), **dict[str, Any](self.ppo))


SIZES = {
    "full": Size(updates=20, first=10, observer_updates=30),
    # The whole pipeline in little time: nothing it finds means anything.
    "quick": Size(
        updates=5,
        first=1,
        observer_updates=2,
        ppo=(("n_envs", 4), ("n_steps", 400), ("batch_size", 400), ("n_epochs", 4)),
        fit_steps=0.02,
    ),
}


def require_simulator() -> None:
    """Say what is not installed."""
    for package in ("mujoco", "stable_baselines3"):
        optional(package, "mujoco")


@limited_threads(1)
def run(task: Task, env: str, estimate_rows: Callable[[RewardEstimate], list[Row]]) -> list[Row]:
    """Train the learner (or find it trained), recover its reward, train an agent on it."""
    from logel.learners.ppo import train_ppo

    size = SIZES[task.text("size")]
    history, returns = recorded_learner(env, task.seed, size)
    if task.text("observer") == "learner":
        return _curve_rows(returns, returns)
    started = time.process_time()
    reward, rows = _recover(task, history.slice(size.first), env, estimate_rows)
    seconds = time.process_time() - started
    curve = train_ppo(
        env,
        size.settings,
        updates=size.observer_updates,
        # The learner's own seed would give the observer the learner's own luck.
        seed=int(task.seed_sequence().generate_state(1)[0] % 2**31),
        reward=reward,
        initial=history[0].parameters,
    )
    rows = [{**row, "seconds": seconds} if row["part"] == "fit" else row for row in rows]
    return rows + _curve_rows(curve.returns, returns)


def _curve_rows(returns: Float, learner: Float) -> list[Row]:
    scale = learner[-1] - learner[0]
    return [
        {
            "part": "curve",
            "update": u,
            "return": float(value),
            "score": float((value - learner[0]) / scale) if scale != 0 else float("nan"),
        }
        for u, value in enumerate(returns)
    ]


# --- the learner ----------------------------------------------------------------------------------


def recorded_learner(env: str, seed: int, size: Size) -> tuple[LearningHistory, Float]:
    """The learner's whole history and its mean returns, trained now unless it was before."""
    from logel.envs.mujoco import FEATURES
    from logel.learners.ppo import train_ppo
    from logel.learners.sb3 import HistoryRecorder

    made_with = {
        "size": asdict(size),
        "settings": asdict(size.settings),
        "packages": package_versions(PACKAGES),
    }

    def train(path: Path) -> list[float]:
        recorder = HistoryRecorder(path, FEATURES[env])
        found = train_ppo(env, size.settings, updates=size.updates, seed=seed, recorder=recorder)
        return [float(value) for value in found.returns]

    path, told = kept_learner(f"{env}-seed{seed}", made_with, "returns.json", train)
    returns = np.array(told, dtype=float)
    if returns.shape != (size.updates,) or not np.isfinite(returns).all():
        raise LogelError(f"{path.parent} does not hold {size.updates} returns: delete it")
    return LearningHistory.load(path), returns


# --- the observers --------------------------------------------------------------------------------


def methods() -> dict[str, Method | str]:
    """LOGEL in two ways. The paper's gets the critic baseline, without which it sees nothing."""
    paper = METHODS["paper"]
    assert isinstance(paper, Method)
    return {"default": "default", "paper": replace(paper, baseline=Baseline.CRITIC)}


def _recover(
    task: Task,
    seen: LearningHistory,
    env: str,
    estimate_rows: Callable[[RewardEstimate], list[Row]],
) -> tuple[LinearReward | TransitionReward, list[Row]]:
    """A reward from the later stages, and what there is to say about it."""
    from logel.envs.mujoco import FEATURES
    from logel.rewards.linear import LinearReward
    from logel.rewards.sb3 import NormalisedReward

    observer, size = task.text("observer"), SIZES[task.text("size")]
    policy = MLPGaussian(seen[0].observations.shape[1], seen[0].actions.shape[1])
    if observer in methods():
        method = methods()[observer]
        estimate = infer_reward(
            seen, policy, gamma=GAMMA, method=method, use_parameters=False, seed=task.seed
        )
        features: Any = FEATURES[env]
        return LinearReward.from_estimate(estimate, features), estimate_rows(estimate)
    reward: TransitionReward
    fit: Row = {"part": "fit"}
    if observer == "lfl":
        reward = _lfl(seen, policy, size, task.seed)
    else:
        from logel.baselines.trex import TrexConfig, trex

        config = TrexConfig()
        config = replace(config, n_steps=_scaled(config.n_steps, size))
        found = trex(seen, policy, gamma=GAMMA, config=config, seed=task.seed)
        reward, fit["accuracy"] = found, found.accuracy
    return NormalisedReward.from_notes(reward, seen.notes[-1]), [fit]


def _lfl(seen: LearningHistory, policy: MLPGaussian, size: Size, seed: int) -> TransitionReward:
    from logel.baselines.neural_lfl import NeuralLflConfig, neural_lfl

    config = NeuralLflConfig()
    names = ("clone_steps", "initial_steps", "shaping_steps")
    shorter: dict[str, Any] = {name: _scaled(getattr(config, name), size) for name in names}
    config = replace(config, **shorter)
    return neural_lfl(seen, policy, gamma=GAMMA, config=config, use_parameters=False, seed=seed)


def _scaled(steps: int, size: Size) -> int:
    return max(1, round(steps * size.fit_steps))


def fit_row(estimate: RewardEstimate) -> Row:
    """How well the recovered reward explains the learner's movement."""
    return {
        "part": "fit",
        "cosine": float(np.nanmedian(estimate.fit.cosines)),
        "chance": float(estimate.fit.chance),
        "status": estimate.status.name,
    }


# --- what came out --------------------------------------------------------------------------------


def curves(table: pd.DataFrame, observer: str) -> pd.DataFrame:
    """Scores of one observer, one row per seed, one column per update."""
    rows = table[(table.part == "curve") & (table.observer == observer)]
    return rows.pivot(index="seed", columns="update", values="score").sort_index()


def weights(table: pd.DataFrame, observer: str) -> pd.DataFrame:
    """The weight rows of one observer; none, but with their columns, if it finds no weights."""
    rows = table[(table.part == "weight") & (table.observer == observer)]
    return rows.reindex(columns=list(dict.fromkeys([*table.columns, *WEIGHT_COLUMNS])))


def fits(table: pd.DataFrame, observer: str) -> pd.DataFrame:
    """The fit rows of one observer."""
    return table[(table.part == "fit") & (table.observer == observer)]


def score_claim(
    table: pd.DataFrame, claim: str, observer: str, *, over: str | None = None, **wanted: Any
) -> Iterator[Claim]:
    """A claim about scores at the end, if those it is about have been computed."""
    if not {observer, over or observer} <= set(table.observer):
        return
    values = curves(table, observer).iloc[:, -1]
    statistic = "normalised score at the end"
    if over is not None:
        values = (values - curves(table, over).iloc[:, -1]).dropna()
        statistic += f", minus that of {over}"
    yield judge(claim, values, statistic=statistic, observer=observer, **wanted)


def agent_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """How agents trained on LOGEL's rewards do."""
    for name in ("paper", "default"):
        yield from score_claim(table, "comes as far as the learner", name, above=SUCCESS)
        for other in ("lfl", "trex"):
            claim = f"does better than {other}"
            yield from score_claim(table, claim, name, over=other, above=0.0)


def summary(table: pd.DataFrame) -> str:
    """Scores and weights as Markdown."""
    present = set(table.observer)
    scores = [_score_cells(table, name) for name in ("learner", *OBSERVERS) if name in present]
    found = [
        [name, str(feature).replace("|", r"\|"), *_weight_cells(rows)]
        for name in ("default", "paper")
        for feature, rows in weights(table, name).groupby("feature", sort=False)
    ]
    return (
        markdown(["observer", "runs", "score at the end", "best score", "seconds"], scores)
        + "\nMean ± half a 98% interval; seconds of processor time to recover the reward.\n\n"
        + markdown(
            ["observer", "feature", "weight: median [range]", "truth", "intervals with the truth"],
            found,
        )
    )


def _score_cells(table: pd.DataFrame, name: str) -> list[str]:
    found, fit = curves(table, name), fits(table, name)
    seconds = f"{fit.seconds.median():.0f}" if len(fit) else ""
    ends, best = _interval(found.iloc[:, -1]), _interval(found.max(axis=1))
    return [name, str(len(found)), ends, best, seconds]


def _weight_cells(rows: pd.DataFrame) -> list[str]:
    low, middle, high = rows.weight.quantile([0, 0.5, 1])
    cells = [f"{middle:.4g} [{low:.4g}, {high:.4g}]", "", ""]
    if rows.truth.notna().all():
        inside = (rows.low <= rows.truth) & (rows.truth <= rows.high)
        cells[1:] = [f"{rows.truth.iloc[0]:.4g}", f"{inside.sum()} of {len(rows)}"]
    return cells


def _interval(values: pd.Series[float]) -> str:
    mean, low, high = mean_interval(values)
    return f"{mean:.2f} ± {(high - low) / 2:.2f}" if len(values) > 1 else f"{mean:.2f}"


def draw_curves(axes: Axes, table: pd.DataFrame, environment: str, *, columns: int) -> None:
    """Scores of learner and agents, update by update."""
    rows = table[table.part == "curve"]
    counts = rows.groupby("observer").seed.nunique()
    most = int(counts.max())
    for name in ("learner", *OBSERVERS):
        part = rows[rows.observer == name]
        if len(part):
            fewer = f" (runs: {counts[name]})" if counts[name] < most else ""
            label = "the learner" if name == "learner" else plots.LABELS[name]
            color = plots.COLOURS[name]
            plots.band(axes, part, "update", "score", color=color, label=label + fewer)
    # Bands of few runs are wide beyond measure: what matters is where the means are.
    means = rows.groupby(["observer", "update"]).score.mean()
    axes.set_ylim(min(-1.0, means.min() - 0.5), max(2.0, means.max() + 0.5))
    plots.rule(axes, 1.0, dotted=True)
    plots.rule(axes, 0.0, dotted=True)
    legend_below(axes, columns)
    axes.locator_params(axis="x", integer=True)
    runs = f"{most} run" + "s" * (most > 1)
    plots.tidy(
        axes,
        title=f"{environment}: agents on recovered rewards",
        x="update",
        y=f"normalised score ({runs}, 98% bands)",
    )


def legend_below(axes: Axes, columns: int) -> None:
    """A legend below the axes, for what is drawn goes everywhere."""
    where = (0.5, -0.17)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=where, ncols=columns, frameon=False)


# A study lacks only its name, what it runs, claims and draws.
study = partial(
    Study,
    cases=[{"observer": ("learner", *OBSERVERS)}],
    observers=OBSERVERS,
    quick=True,
    summary=summary,
    packages=PACKAGES,
    require=require_simulator,
)
