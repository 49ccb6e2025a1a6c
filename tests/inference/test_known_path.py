"""Noise sizes of known steps, and what control leaves open."""

from __future__ import annotations

import numpy as np

from logel.envs import lqr
from logel.envs.parametric import LinearControl
from logel.inference.gauge import Gauge
from logel.inference.infer import infer_reward
from logel.inference.known_path import _step_sizes
from logel.inference.path import left_open
from logel.learners.gradient_ascent import GradientAscent, observe_parametric


def test_noise_runs_with_the_squared_rate_and_a_power_of_time() -> None:
    rates = np.array([0.3, 0.1, 0.2, 0.4, 0.1, 0.2])
    exact = rates**2 * (1.0 + np.arange(6)) ** -1.5
    np.testing.assert_allclose(_step_sizes(7.0 * exact, rates), exact / exact.mean())


def test_a_step_that_strays_hardly_counts_for_less() -> None:
    misfit = np.ones(41)
    misfit[20] = 50.0
    sizes = _step_sizes(misfit, np.ones(41))
    np.testing.assert_allclose(sizes[20], sizes[[19, 21]].mean(), rtol=0.01)


def test_rare_jumps_do_not_shrink_what_they_are_worth() -> None:
    # One step in ten comes by a rare place, and moves the learner by ten: its drift is one. Sizes
    # smoothed over neighbours made .1 of it: they trust the steps in which nobody came by.
    rng = np.random.default_rng(0)
    moved = 10.0 * (rng.random((400, 160)) < 0.1)
    found = []
    for row in moved:
        weights = 1 / _step_sizes((row - row.mean()) ** 2, np.ones(160))
        found.append(weights @ row / weights.sum())
    assert abs(np.mean(found) - 1) < 0.1


def test_features_open_either_way_are_named() -> None:
    gauge = Gauge(("state", "effort"), np.zeros((0, 2)), "", np.zeros((0, 2)))
    angle = np.linspace(-1.2, 1.2, 201)
    draws = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    (note,) = left_open(gauge, draws)
    assert "'effort' (-0.91 to 0.91)" in note and "'state'" not in note
    assert left_open(gauge, draws[90:111]) == ()
    # Where all is open there is no reward to speak of.
    everywhere = np.linspace(-3.1, 3.1, 201)
    assert left_open(gauge, np.stack([np.cos(everywhere), np.sin(everywhere)], axis=1)) == ()


def test_effort_is_left_open_where_a_gain_starts_at_zero() -> None:
    world = LinearControl(lqr.point_mass(), sigma=0.3)
    history = observe_parametric(
        world,
        GradientAscent(0.001, exact=True),
        weights=[1.0, 0.3, 0.2],
        n_steps=4,
        n_episodes=60,
        seed=1001,
        parameters=True,
    )
    # At a gain of zero effort is as small as it gets: its gradient is nothing.
    assert np.abs(world.jacobian(np.zeros(2))[:, 2]).max() == 0
    found = infer_reward(history, world.policy, gamma=world.gamma)
    low, high = found.interval()[2]
    assert low < -0.5 and high > 0.5
    assert found.status.name == "UNEXPLAINED" or any("'-effort^2'" in n for n in found.notes)
