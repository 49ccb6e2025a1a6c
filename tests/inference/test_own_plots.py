"""What estimates and histories draw of themselves."""

from __future__ import annotations

import numpy as np
import pytest

from estimates import example
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import OptionError
from logel.learners.tabular import SoftValueIteration, observe

Figure = pytest.importorskip("matplotlib.figure").Figure


def test_an_estimate_draws_weights_movement_and_rates() -> None:
    estimate = example()
    axes = list(Figure().subplots(1, 3))
    assert estimate.plot(axes) == axes
    weights, movement, rates = axes
    names = [label.get_text() for label in weights.get_yticklabels()]
    order = np.argsort(-np.abs(estimate.weights))[::-1]
    assert names == [estimate.feature_names[j] for j in order]
    np.testing.assert_array_equal(weights.lines[0].get_xdata(), estimate.weights[order])
    assert len(movement.patches) == len(estimate.learning_rates)
    np.testing.assert_array_equal(rates.lines[0].get_ydata(), estimate.learning_rates)
    assert "95% interval" in weights.get_xlabel()
    with pytest.raises(OptionError, match="3 panels to draw, but 2 axes"):
        estimate.plot(axes[:2])


def test_a_history_draws_what_it_knows() -> None:
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    history = observe(world, SoftValueIteration(), weights=weights, n_steps=3, n_episodes=5)
    features, lengths = history.plot(list(Figure().subplots(1, 2)))
    assert len(features.lines) == 5 and len(lengths.lines[0].get_ydata()) == 4
    assert {text.get_text() for text in features.get_legend().get_texts()} == {*world.feature_names}


def test_without_axes_pyplot_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = len(pyplot.get_fignums())
    axes = example().plot()
    assert len(axes) == 3 and len(pyplot.get_fignums()) == before + 1
    pyplot.close(axes[0].figure)
