"""How a replayed learner is named: its settings, and its rates as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sb3_runs import run_of
from stable_baselines3 import PPO

from logel.replay.learner import DEFAULTS, StackedLearner, described
from logel.replay.sb3 import SB3Learner, learner_for


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([], "0.0003"),
        ([None, None], "0.0003"),
        ([1e-3, 1e-3], "0.001"),
        ([3e-4, 1e-4, 1e-5], "0.0003 to 1e-5"),
        ([1e-5, 2e-4, 3e-4], "1e-5 to 0.0003"),
        ([1e-4, 5e-4, 1e-4], "between 0.0001 and 0.0005"),
        # What nobody can read apart is one rate.
        ([3e-4, 2.999e-4], "0.0003"),
    ],
)
def test_rates_are_those_of_the_stages(rates: list[float | None], words: str) -> None:
    notes = [{} if rate is None else {"learning_rate": rate} for rate in rates]
    found = described("PPO", DEFAULTS["PPO"], notes)
    assert found == f"PPO (10 epochs, rate {words}, lambda 0.95)"


def falling(progress: float) -> float:
    return 4e-4 * progress


def test_a_schedule_is_named_from_its_first_update_to_its_last(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_epochs": 2, "batch_size": 12, "learning_rate": falling}
    run = run_of(PPO, tmp_path, n_updates=4, **options)
    fast, note = learner_for(run.settings, run.policy, 3, notes=run.history.notes)
    assert isinstance(fast, StackedLearner) and note is None
    # Stable-Baselines3 asks its schedule after each of the four rollouts.
    assert fast.words == "PPO (2 epochs, rate 0.0003 to 0, lambda 0.95)"
    slow = SB3Learner(run.model, run.settings, run.history.notes)
    assert slow.words == f"{fast.words} by its own code"
