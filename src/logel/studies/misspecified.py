"""What the estimate says when an assumption is wrong: one row for each, and the right ones beside.

Small random tables. In every row one thing is not as the observer takes it to be; the same world,
reward and random numbers are behind all rows of a seed. Where coverage suffers the status has to
warn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.tabular import TabularMDP, feature_jacobian, random_mdp, softmax_policy
from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.learners.tabular import GPOMDPLearner, Snapshot, observe
from logel.policies.base import Policy
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import judge_estimate
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STATES, ACTIONS, FEATURES, GAMMA = 10, 3, 4, 0.9
STEPS, EPISODES, HORIZON, RATE = 15, 30, 15, 1.0
ENTROPY, MOMENTUM, WRONG_GAMMA = 0.3, 0.8, 0.05
# Coverage below which a row has to warn, and how often.
COVERED, WARNED = 0.85, 0.85
CASES = (
    "nothing wrong",
    "gamma .05 too low",
    "gamma .05 too high",
    "bonus withdrawn",
    "momentum",
    "entropy bonus",
    "small clones",
    "partial observation",
    "missing feature",
)
CLONED = ("small clones", "partial observation")


@dataclass(frozen=True, eq=False)
class _Ascent:
    """Exact policy gradients in a table, with what real learners add to them.

    Attributes:
        change: Step from which on the weights are `later`.
        later: Shape (q,).
        momentum: Share of the last step that is made again.
        entropy: Weight of the entropy of the actions.
    """

    change: int
    later: Float
    momentum: float = 0.0
    entropy: float = 0.0

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        sampled = GPOMDPLearner(n_episodes=EPISODES, horizon=HORIZON)
        theta = np.zeros(mdp.n_states * (mdp.n_actions - 1))
        step = np.zeros_like(theta)
        for t in count():
            policy = softmax_policy(theta, n_states=mdp.n_states, n_actions=mdp.n_actions)
            yield Snapshot(policy)
            wanted = weights if t < self.change else self.later
            gradient = sampled._sampled(mdp, wanted, policy, rng)
            if self.entropy:
                surprise = -np.log(np.maximum(policy, np.finfo(float).tiny))
                bonus = TabularMDP(mdp.transitions, surprise[:, :, None], mdp.initial, mdp.gamma)
                jacobian = feature_jacobian(bonus, theta, horizon=HORIZON)
                gradient = gradient + self.entropy * jacobian[:, 0]
            step = self.momentum * step + (1 - self.momentum) * RATE * gradient
            theta = theta + step


def run(task: Task) -> list[Row]:
    """One learner, inferred from with one wrong assumption."""
    case = task.text("case")
    ignoring, known = ("case", "known"), bool(task.setting["known"])
    rng, seed = task.rng(ignoring=ignoring), task.seed_sequence(ignoring=ignoring)
    mdp = random_mdp(
        rng, n_states=STATES, n_actions=ACTIONS, n_features=FEATURES, gamma=GAMMA, branching=4
    )
    mdp = _correlated(mdp)
    truth = rng.standard_normal(FEATURES)
    # What nobody names is as large as all the rest.
    truth[-1] = np.linalg.norm(truth[:-1]) * np.sign(truth[-1]) * (case == "missing feature")
    later = truth * np.where(np.arange(FEATURES) == np.abs(truth).argmax(), 0.0, 1.0)
    learner = _Ascent(
        change=STEPS // 2 if case == "bonus withdrawn" else STEPS + 1,
        later=later,
        momentum=MOMENTUM if case == "momentum" else 0.0,
        entropy=ENTROPY if case == "entropy bonus" else 0.0,
    )
    seen = {"n_episodes": EPISODES, "horizon": HORIZON, "seed": seed, "parameters": known}
    history = observe(mdp, learner, weights=truth, n_steps=STEPS, **seen)  # type: ignore[arg-type]
    history, policy = _as_taken(case, history, rng)
    wrong = {"gamma .05 too low": -WRONG_GAMMA, "gamma .05 too high": WRONG_GAMMA}
    estimate = infer_reward(
        history, policy, gamma=GAMMA + wrong.get(case, 0.0), method="default", seed=task.seed
    )
    row = judge_estimate(estimate, truth[:-1])
    warns = estimate.status not in (Status.OK, Status.RANK_DEFICIENT)
    return [{"warns": warns, **row}]


def _correlated(mdp: TabularMDP) -> TabularMDP:
    """The last feature, which nobody names, goes along with the first."""
    features = np.array(mdp.features)
    features[..., -1] = 0.6 * features[..., 0] + 0.8 * features[..., -1]
    return replace(mdp, features=features, feature_names=())


def _as_taken(
    case: str, history: LearningHistory, rng: np.random.Generator
) -> tuple[LearningHistory, Policy]:
    """What the observer has, and the family it takes the policies to be of."""
    named = [_named(stage) for stage in history]
    if case == "partial observation":
        # Two states look alike.
        return _history([_halved(stage) for stage in named]), TabularSoftmax(STATES // 2, ACTIONS)
    if case == "small clones":
        shown = rng.standard_normal((STATES, 4))
        return _history(named), LinearSoftmax(4, ACTIONS, feature_map=lambda o: shown[o])
    return _history(named), TabularSoftmax(STATES, ACTIONS)


def _named(stage: Stage) -> Stage:
    """Without the last feature."""
    assert stage.features is not None
    return replace(stage, features=stage.features[:, :-1])


def _halved(stage: Stage) -> Stage:
    """Neighbouring states look alike."""
    assert stage.last_observations is not None
    last = stage.last_observations // 2
    return replace(stage, observations=stage.observations // 2, last_observations=last)


def _history(stages: list[Stage]) -> LearningHistory:
    return LearningHistory.from_stages(stages, metadata={"gamma": GAMMA})


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Where coverage falls below .85 the status warns."""
    for (case, known), rows in table.groupby(["case", "known"], sort=False):
        sound = [1.0 if w else float(c) for w, c in zip(rows.warns, rows.coverage, strict=True)]
        yield judge(
            f"{case}, parameters {'known' if known else 'hidden'}: covers or warns",
            sound,
            statistic="coverage of 95% intervals, 1 where the status warns",
            above=COVERED,
        )


def summary(table: pd.DataFrame) -> str:
    """One line per wrong assumption."""
    lines = [
        "| wrong | parameters | runs | error | coverage | width | warns "
        "| coverage if it does not |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (case, known), rows in table.groupby(["case", "known"], sort=False):
        silent = rows[~rows.warns.astype(bool)]
        kept = f"{silent.coverage.mean():.2f}" if len(silent) else ""
        numbers = [rows[c].mean() for c in ("error", "coverage", "width")]
        said = " | ".join(f"{n:.2f}" for n in (*numbers, rows.warns.astype(float).mean()))
        seen = "known" if known else "hidden"
        lines.append(f"| {case} | {seen} | {len(rows)} | {said} | {kept} |")
    return "\n".join(lines) + "\n"


def figure(table: pd.DataFrame) -> Figure:
    """Coverage and warnings, row by row."""
    drawn = plots.new_figure(9, 3.8)
    axes = drawn.subplots(1, 1)
    table = table.assign(
        case=table.case + table.known.map({True: ", known", False: ", hidden"}),
        warns=table.warns.astype(float),
    )
    cases = list(dict.fromkeys(table.case))
    rows = table.groupby("case")[["coverage", "warns"]]
    means = rows.mean().loc[cases]
    axes.scatter(means.coverage, range(len(cases)), label="coverage of 95% intervals")
    axes.scatter(means.warns, range(len(cases)), marker="x", label="share that warns")
    axes.axvline(COVERED, color="0.4", lw=1, ls=":")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncol=2)
    plots.tidy(axes, title="One wrong assumption")
    return drawn


STUDY = Study(
    "misspecified",
    [
        {"case": list(CASES), "known": [False]},
        # The others are about what is cloned.
        {"case": [case for case in CASES if case not in CLONED], "known": [True]},
    ],
    run,
    claims,
    figure,
    summary=summary,
)
