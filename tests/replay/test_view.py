"""Steps in a linear model around a centre: what they say, and what they do not explain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.replay.view import View
from logel.types import Float

TRUTH = np.array([0.5, -1.0, 0.2])
STEPS, FATES, WIDTH = 20, 4, 10


def view_of(
    seed: int, *, chance: float = 0.0, misfit: float = 0.0, at: Float = 0.8 * TRUTH
) -> View:
    """A linear learner seen from a centre; chance and misfit in shares of the squared movement."""
    rng = np.random.default_rng(seed)
    effects = rng.standard_normal((STEPS, 3, WIDTH)) / WIDTH**0.5
    moved = np.einsum("q,tqd->td", TRUTH, effects)
    size = (moved**2).sum(axis=1).mean() ** 0.5

    def noise(share: float, *shape: int) -> Float:
        return size * (share / WIDTH) ** 0.5 * rng.standard_normal((*shape, WIDTH))

    steps = moved + noise(chance, STEPS) + noise(misfit, STEPS)
    middles = np.einsum("q,tqd->td", at, effects)[:, None] + noise(chance, STEPS, FATES)
    return View(list(steps), 0.1 * size**2, at, at, middles, effects)


def test_a_linear_learner_is_understood_at_once() -> None:
    view = view_of(1000)
    np.testing.assert_allclose(view.found, TRUTH, rtol=0.01)
    # A fifth of the way is missing, which weights explain.
    assert view.beyond_chance(np.zeros(3)) == pytest.approx(0.04 / 1.1, rel=0.2)
    assert view.misfit < 0.001
    there = view.corrected(view.found, view_of(1000, at=view.found).middles)
    assert there.loss < view.loss - 3
    assert there.misfit == pytest.approx(0.0003)
    assert np.sqrt(np.diag(there.covariance)).max() < 0.01
    share = there.shares[0]
    assert share.cosine == pytest.approx(1.0, abs=1e-3)
    assert share.predicted == pytest.approx(share.moved, rel=0.02)


def test_what_nothing_explains_is_measured_and_widens_everything() -> None:
    plain, odd = (view_of(1000, chance=0.02, misfit=share, at=TRUTH) for share in (0.0, 0.2))
    assert plain.misfit < 0.01
    # Of movement, chance, misfit, and the tenth that is added to all.
    assert odd.misfit == pytest.approx(0.2 / 1.32, rel=0.25)
    sure, unsure = (np.sqrt(np.diag(view.covariance)) for view in (plain, odd))
    assert (unsure > 2 * sure).all()
    # What is the same at all steps does not average out over more of them.
    again = replace(
        odd,
        observed=[*odd.observed] * 4,
        middles=np.concatenate([odd.middles] * 4),
        effects=np.concatenate([odd.effects] * 4),
    )
    assert (np.sqrt(np.diag(again.covariance)) > 0.8 * unsure).all()


def test_intervals_hold_what_they_promise() -> None:
    off = np.array([
        (view.found - TRUTH) / np.sqrt(np.diag(view.covariance))
        for view in (view_of(seed, chance=0.1, at=TRUTH) for seed in range(1000, 1100))
    ])  # fmt: skip
    # Independent steps count twice (jackknife and fates): wider than need be, by a root of two.
    assert 0.45 < np.sqrt((off**2).mean()) < 1.05
    assert abs(off.mean()) < 0.15


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_corrected_effects_foretell_what_was_seen_and_little_else(seed: int) -> None:
    view = view_of(seed, chance=0.01)
    rng = np.random.default_rng(seed)
    wrong = replace(view, effects=view.effects + 0.05 * rng.standard_normal(view.effects.shape))
    centre = view.centre + 0.3 * rng.standard_normal(3)
    shift = centre - view.centre
    middles = view.middles + np.einsum("q,tqd->td", shift, view.effects)[:, None]
    right = wrong.corrected(centre, middles)
    np.testing.assert_array_equal(right.centre, centre)
    if wrong.distance(centre)[0] <= 0.1:
        # Too near to tell anything but noise.
        np.testing.assert_array_equal(right.effects, wrong.effects)
        return
    seen = (middles - view.middles).mean(axis=1)
    np.testing.assert_allclose(np.einsum("q,tqd->td", shift, right.effects), seen, atol=1e-10)
    # Nothing is learnt about shifts that have nothing to do with that one.
    along = wrong.precision(centre) @ shift
    aside = np.cross(along, rng.standard_normal(3))
    foretold = [np.einsum("q,tqd->td", aside, one.effects) for one in (wrong, right)]
    np.testing.assert_allclose(*foretold, atol=1e-8 * np.abs(aside).max())


def test_centres_go_no_farther_than_effects_are_known() -> None:
    view = view_of(1000, at=np.array([0.1, 0.1, 0.1]))
    shift, whole = view.towards_found() - view.centre, view.found - view.centre
    assert 0 < shift @ whole < 0.9 * whole @ whole
    np.testing.assert_allclose(np.cross(shift, whole), 0, atol=1e-12)
    assert np.linalg.norm(shift) <= 0.5 * np.linalg.norm(view.centre) + 1e-12
    near = view_of(1000, at=0.9 * TRUTH)
    np.testing.assert_array_equal(near.towards_found(), near.found)


def test_who_went_too_far_goes_half_as_far_from_then_on() -> None:
    view = view_of(1000, at=0.2 * TRUTH)
    there = view.corrected(view.towards_found(), view.middles)
    tried, _ = view.distance(there.centre)
    after = view.learning_from(there)
    assert after.distance(after.towards_found())[0] == pytest.approx(0.5 * tried)
    # So do those that begin from a better centre later on.
    later = after.corrected(after.towards_found(), view.middles)
    assert later.reach == after.reach == pytest.approx(0.5 * tried)


def test_candidates_differ_as_much_in_all_directions() -> None:
    view = view_of(1000)
    flat = replace(view, effects=view.effects * np.array([1.0, 1e-3, 1.0])[:, None])
    for one in (view, flat):
        root = one.root(one.centre)
        np.testing.assert_allclose(one.precision(one.centre) @ root @ root.T, np.eye(3), atol=1e-6)
        # Where effects are small, candidates stay near all the same.
        assert np.linalg.norm(root, axis=0).max() <= 0.3 * np.linalg.norm(one.centre)
