"""What every rule, and every world that rules ask, owes."""

from __future__ import annotations

import numpy as np

from logel.rules.rule import Rule
from logel.types import Float
from logel.worlds.base import World

_STEP = 1e-6


def check_world(world: World, policies: Float) -> None:
    """A world's likelihoods, landscapes and features agree with each other.

    Args:
        world: Pooled from all stages.
        policies: Parameters of every stage, shape (m + 1, d).
    """
    assert policies.shape == (world.n_stages, world.n_parameters)
    world = world.at(policies[:-1])
    weights = np.linspace(-1.0, 1.0, world.n_features)
    for t in (0, len(policies) - 1):
        observation = world.observe(t, policies[t])
        slope = _slope(lambda x, t=t: world.log_likelihood(_put(policies, t, x)), policies[t])
        np.testing.assert_allclose(observation.score, slope, rtol=1e-4, atol=1e-4)
        vector = np.ones(world.n_parameters)
        assert vector @ observation.information_times(vector) >= 0
    for landscape in (world.gradient, world.natural):
        found = landscape(policies[:-1], weights)
        m, d = policies[:-1].shape
        assert found.design.shape == (m, d, world.n_features)
        assert np.linalg.eigvalsh(found.noise).min() > -1e-9 * np.abs(found.noise).max()
    basis = np.diag(np.linspace(1.0, 3.0, world.n_features))
    other = world.with_features(basis).at(policies[:-1]).gradient(policies[:-1], weights)
    here = world.gradient(policies[:-1], basis @ weights)
    np.testing.assert_allclose(
        other.design @ weights, here.design @ (basis @ weights), rtol=1e-5, atol=1e-8
    )


def check_rule(rule: Rule, policies: Float, *, parameters: Float | None = None) -> None:
    """A rule's predictions, derivatives and noise agree with each other.

    Args:
        rule: In a world.
        policies: Parameters of every stage's policy, shape (m + 1, d).
        parameters: Weights and nuisance parameters to try, shape (q + k,).
    """
    rule = rule.refreshed(policies)
    states = rule.from_policy(policies)
    np.testing.assert_allclose(rule.as_policy(states), policies, atol=1e-9)
    if parameters is None:
        parameters = np.concatenate([np.linspace(-0.5, 1.0, rule.n_features), rule.nuisance_mean])
    before = states[:-1]
    prediction = rule.predict(before, parameters)
    np.testing.assert_allclose(
        prediction.following, rule.following(before, parameters), rtol=1e-9, atol=1e-9
    )
    m, d = before.shape
    assert prediction.design.shape == (m, d, len(parameters))
    assert (np.linalg.eigvalsh(prediction.shape) > 0).all(), "noise must not vanish anywhere"
    # What depends on the weights is linear in them, at the design that goes with these weights
    # (Adam's own size depends on them: a derivative would say something else).
    q = rule.n_features
    without = np.concatenate([np.zeros(q), parameters[q:]])
    # Fits start from no weights at all.
    start = rule.predict(before, without)
    assert np.isfinite(start.design).all(), "the design at weights of zero is not finite"
    assert (np.linalg.eigvalsh(start.shape) > 0).all(), "no noise at weights of zero"
    np.testing.assert_allclose(
        prediction.following - start.following,
        prediction.design[:, :, :q] @ parameters[:q],
        rtol=1e-6,
        atol=1e-9,
        err_msg="the step is not the design times the weights",
    )
    for j in range(q, len(parameters)):
        move = _STEP * np.eye(len(parameters))[j]
        up, down = (rule.following(before, parameters + s * move) for s in (1, -1))
        np.testing.assert_allclose(
            prediction.design[:, :, j],
            (up - down) / (2 * _STEP),
            rtol=1e-4,
            atol=1e-6,
            err_msg=f"derivative w.r.t. nuisance parameter {j - q}",
        )
    known = rule.predict(before, parameters, states_known=True)
    np.testing.assert_allclose(known.following, prediction.following, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(known.design, prediction.design, rtol=1e-9, atol=1e-9)
    rates = rule.rates_of(parameters, m)
    assert rates.shape == (m,) and (rates > 0).all()


def _put(path: Float, t: int, x: Float) -> Float:
    changed = path.copy()
    changed[t] = x
    return changed


def _slope(function, x: Float) -> Float:  # type: ignore[no-untyped-def]
    moves = _STEP * np.eye(len(x))
    return np.array([(function(x + e) - function(x - e)) / (2 * _STEP) for e in moves])
