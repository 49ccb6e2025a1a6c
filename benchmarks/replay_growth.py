"""How long a fit by replay takes, by the number of features and of stages.

    python -m benchmarks.replay_growth --figure docs/results/speed/replay.png    # a minute

A PPO learner (512 steps an update, ten epochs, networks 32-32) moves through random observations,
paid for half of the features; replay searches and fits as `infer_reward` has it do. Times are
processor time of one thread; whether the answer is right is asked as well.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import Check, report
from logel import MLPGaussian, Stage
from logel.data.settings import LearnerSettings
from logel.inference.gauge import direction_error
from logel.inference.method import Method
from logel.replay.batch import Batch
from logel.replay.course import Course
from logel.replay.fates import Replay
from logel.replay.fit import fit_replay
from logel.replay.learner import StackedLearner
from logel.replay.movement import Movement
from logel.replay.search import searched
from logel.studies import plots
from logel.types import Float

SEED = 1000
EPISODES, TIMES, OBSERVATIONS, ACTIONS, HIDDEN = 16, 32, 4, 2, (32, 32)
FEATURES, STAGES = (2, 5, 10, 20, 30), (5, 10, 20, 30)
USUAL_FEATURES, USUAL_STAGES = 5, 10
# Thirty features may cost so many times what two do: candidates are stacked, not looped over.
FACTOR = 15.0


class Problem:
    """A learner's course, and what it was paid."""

    def __init__(self, q: int, n_stages: int) -> None:
        rng = np.random.default_rng([SEED, q])
        self.policy = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=HIDDEN)
        settings = LearnerSettings("PPO", pi=HIDDEN, vf=HIDDEN, activation="tanh")
        learner = StackedLearner.of(settings, self.policy, OBSERVATIONS)
        assert learner is not None
        self.learner, self.mix = learner, rng.standard_normal((OBSERVATIONS + ACTIONS, q))
        self.weights = np.where(np.arange(q) < (q + 1) // 2, rng.standard_normal(q), 0.0)
        self.course = self._course(n_stages, rng)

    def _course(self, n_stages: int, rng: np.random.Generator) -> Course:
        theta, state = self.policy.initial(rng), self.learner.initial([rng])
        path, batches, movements = [theta], [], []
        for _ in range(n_stages):
            stage = self._stage(theta, rng)
            batch = Batch.of(stage, self.policy)
            batches.append(batch)
            movements.append(Movement.at(stage, self.policy, theta))
            given = torch.as_tensor(theta[None]).to(batch.inputs)
            rewards = torch.as_tensor(self.weights[None]).to(batch.features) @ batch.features.T
            with torch.no_grad():
                after, state = self.learner.update(given, state, batch, rewards, [rng])
            theta = after[0].double().numpy()
            path.append(theta)
        return Course(batches, np.stack(path), movements)

    def _stage(self, theta: Float, rng: np.random.Generator) -> Stage:
        seen = rng.standard_normal((EPISODES * TIMES, OBSERVATIONS)).astype(np.float32)
        actions = self.policy.sample(theta, seen, rng).astype(np.float32)
        return Stage(
            observations=seen,
            actions=actions,
            lengths=np.full(EPISODES, TIMES),
            terminated=np.zeros(EPISODES, dtype=bool),
            last_observations=seen[:EPISODES],
            features=np.tanh(np.concatenate([seen, actions], axis=1) @ self.mix + 0.3),
        )

    def measured(self) -> tuple[float, float]:
        """Processor time of the fit, and its direction error."""
        q = len(self.weights)
        started = time.process_time()
        replay = Replay(self.course, self.learner, seed=SEED)
        centre, _ = searched(replay, np.full((1, q), q**-0.5))
        fit = fit_replay(replay, centre, Method().n_fates)
        return time.process_time() - started, direction_error(fit.weights, self.weights)


def draw(times: dict[str, dict[int, float]], path: Path) -> None:
    """Two panels, from zero: what grows in proportion is a straight line."""
    drawn = plots.new_figure(8, 3.2)
    panels = drawn.subplots(1, 2)
    titles = {
        "features": f"seconds by features, {USUAL_STAGES} stages",
        "stages": f"seconds by stages, {USUAL_FEATURES} features",
    }
    for axes, (name, found) in zip(panels, times.items(), strict=True):
        axes.plot(list(found), list(found.values()), marker="o", color=plots.COLOURS["replay"])
        axes.set_xlim(0, None)
        axes.set_ylim(0, None)
        axes.set_xlabel(name)
        plots.tidy(axes, title=titles[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=150)


def main() -> int:
    """Measure all sizes; the exit code says whether many features cost too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path, help="draw the times there")
    figure = parser.parse_args().figure
    torch.set_num_threads(1)
    times: dict[str, dict[int, float]] = {"features": {}, "stages": {}}
    notes = []
    for name, q, n_stages in [
        *(("features", q, USUAL_STAGES) for q in FEATURES),
        *(("stages", USUAL_FEATURES, m) for m in STAGES),
    ]:
        seconds, error = Problem(q, n_stages).measured()
        times[name][q if name == "features" else n_stages] = seconds
        notes.append(
            f"{q} features, {n_stages} stages: {seconds:.1f} s, direction error {error:.2f}"
        )
        print(notes[-1], flush=True)
    if figure is not None:
        draw(times, figure)
    growth = times["features"][FEATURES[-1]] / times["features"][FEATURES[0]]
    check = Check(
        f"{FEATURES[-1]} features against {FEATURES[0]}",
        f"{growth:.1f} times the time",
        f"at most {FACTOR:.0f}",
        growth <= FACTOR,
    )
    return report("A fit by replay", [check])


if __name__ == "__main__":
    sys.exit(main())
