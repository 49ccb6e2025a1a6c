import itertools

import numpy as np
import pytest

from logel.data.stage import Episode
from logel.errors import OptionError
from logel.learners.pgpe import (
    PGPE,
    Search,
    describe,
    discounted_return,
    learn,
    random_walk,
    watch,
)


def start(k: int = 2, sigma: float = 1.0) -> Search:
    return Search(np.zeros(k), np.full(k, sigma))


def test_the_update_is_the_mean_of_mirrored_differences() -> None:
    # Derived by hand: for a linear return c . x, a pair's half difference is c . o, and the
    # gradient is the sample covariance of the offsets times c, whatever the seeds add.
    c = np.array([2.0, -1.0])
    calls: list[tuple[np.ndarray, int]] = []

    def earned(parameters: np.ndarray, seed: int) -> float:
        calls.append((parameters, seed))
        return float(c @ parameters) + seed % 17

    learner = PGPE(n_pairs=4, n_episodes=3, learning_rate=0.5)
    _, after = itertools.islice(learner.run(earned, start(), np.random.default_rng(0)), 2)
    assert len(calls) == 4 * 3 * 2
    offsets = np.stack([calls[6 * i][0] for i in range(4)])
    np.testing.assert_allclose(after.mean, 0.5 * (offsets.T @ offsets / 4) @ c)
    np.testing.assert_array_equal(after.sigma, [1, 1])


def test_both_members_of_a_pair_meet_the_same_random_numbers() -> None:
    calls: list[tuple[np.ndarray, int]] = []

    def earned(parameters: np.ndarray, seed: int) -> float:
        calls.append((parameters, seed))
        return 0.0

    learner = PGPE(n_pairs=2, n_episodes=3)
    list(itertools.islice(learner.run(earned, start(), np.random.default_rng(0)), 2))
    for pair in (calls[:6], calls[6:]):
        assert [seed for _, seed in pair[:3]] == [seed for _, seed in pair[3:]]
        np.testing.assert_allclose(pair[0][0], -pair[3][0])


def test_it_climbs_a_noisy_hill_in_units_of_sigma() -> None:
    top, unit = np.array([3.0, -40.0]), np.array([1.0, 20.0])

    def earned(parameters: np.ndarray, seed: int) -> float:
        noise = np.random.default_rng(seed).normal()
        return float(-(((parameters - top) / unit) ** 2).sum() + noise)

    learner = PGPE(learning_rate=0.2)
    path = list(
        itertools.islice(
            learner.run(earned, Search(np.zeros(2), unit), np.random.default_rng(1)), 30
        )
    )
    distances = [np.linalg.norm((search.mean - top) / unit) for search in path]
    assert distances[0] > 3 and max(distances[-5:]) < 0.7


def test_sigma_narrows_on_a_peak_and_widens_in_a_trough_when_adapted() -> None:
    for sign in (-1.0, 1.0):

        def earned(parameters: np.ndarray, seed: int, sign: float = sign) -> float:
            return sign * float((parameters**2).sum())

        learner = PGPE(n_pairs=50, learning_rate=1e-9, sigma_rate=0.05)
        runs = learner.run(earned, start(), np.random.default_rng(0))
        sigma = list(itertools.islice(runs, 6))[-1].sigma
        assert (sigma < 0.8).all() if sign < 0 else (sigma > 1.2).all()


def test_sigma_stays_positive() -> None:
    learner = PGPE(sigma_rate=100.0, learning_rate=1e-9)
    runs = learner.run(lambda p, s: -float((p**2).sum()), start(), np.random.default_rng(0))
    assert all((search.sigma > 0).all() for search in itertools.islice(runs, 5))


def rollout(parameters: np.ndarray, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    x = parameters + rng.normal(size=(4, 2))
    return Episode(x, np.zeros(4, dtype=int), x, terminated=True)


def test_discounted_return_is_summed_by_hand() -> None:
    episode = Episode(np.zeros((3, 1)), np.zeros(3, dtype=int), [[1.0], [2.0], [4.0]])
    assert discounted_return(episode, np.array([3.0]), 0.5) == pytest.approx(3 * (1 + 1 + 1))
    with pytest.raises(OptionError, match="no features"):
        discounted_return(Episode(np.zeros((3, 1)), np.zeros(3, dtype=int)), np.ones(1), 0.5)


def test_a_learner_earns_more_and_is_recorded_without_its_parameters() -> None:
    weights = np.array([1.0, -1.0])
    path = learn(
        PGPE(learning_rate=0.3),
        rollout,
        start=start(),
        weights=weights,
        gamma=0.9,
        n_steps=6,
        seed=3,
    )
    history = watch(
        path,
        rollout,
        n_episodes=30,
        feature_names=("a", "b"),
        seed=4,
        metadata=describe(PGPE()),
    )
    assert len(history) == 7 and history.parameters() is None
    earned = [
        np.mean([discounted_return(e, weights, 0.9) for e in stage.episodes]) for stage in history
    ]
    assert earned[-1] > earned[0] + 3
    assert history.metadata["learner"] == "PGPE" and history.feature_names == ("a", "b")
    again = watch(path, rollout, n_episodes=30, feature_names=("a", "b"), seed=4)
    np.testing.assert_array_equal(again[3].observations, history[3].observations)


def test_a_random_walk_has_steps_of_one_length_in_units_of_sigma() -> None:
    unit = np.array([1.0, 10.0])
    path = random_walk(Search(np.zeros(2), unit), length=0.5, n_steps=8, seed=2)
    steps = np.diff([search.mean / unit for search in path], axis=0)
    np.testing.assert_allclose(np.linalg.norm(steps, axis=1), 0.5)
    assert len(path) == 9


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: PGPE(n_pairs=0), "n_pairs"),
        (lambda: PGPE(learning_rate=0.0), "learning_rate"),
        (lambda: PGPE(sigma_rate=-1.0), "sigma_rate"),
        (lambda: Search(np.zeros(2), np.zeros(2)), "sigma must be positive"),
        (lambda: Search(np.zeros(2), np.ones(3)), "one length"),
        (lambda: Search(np.array([np.nan]), np.ones(1)), "finite"),
    ],
)
def test_bad_choices_are_refused(make: object, expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        make()  # type: ignore[operator]


def test_nothing_to_learn_or_watch_is_refused() -> None:
    with pytest.raises(OptionError, match="n_steps"):
        learn(PGPE(), rollout, start=start(), weights=np.ones(2), gamma=0.9, n_steps=0)
    with pytest.raises(OptionError, match="n_episodes"):
        watch([start()], rollout, n_episodes=0, feature_names=("a", "b"))
