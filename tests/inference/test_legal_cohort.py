"""Several learners where not all is legal, in a world that is known, through one inference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from logel import (
    Episode,
    KnownWorld,
    LearningHistory,
    Method,
    TabularSoftmax,
    compare_groups,
    infer_group,
    infer_reward,
)
from logel.envs.tree_maze import TreeMaze
from logel.errors import HistoryError, OptionError
from logel.inference.watched import Company, Watched
from logel.learners.forager import Forager
from logel.policies.choose import choose_common_policy
from logel.worlds.table import TabularWorld

MAZE = TreeMaze(2)
TOLD = TabularSoftmax(MAZE.n_nodes, 3, legal=MAZE.legal)
FREE = TabularSoftmax(MAZE.n_nodes, 3)
WORLD = KnownWorld(MAZE.successors, terminal=[MAZE.port])
QUICK = Method.named("joint", models=("gradient",), heats=((6, np.inf),))
GAMMA = 0.9


@cache
def animal(seed: int, *, masks: bool = False) -> LearningHistory:
    bouts = Forager((4.0, 0.2, -0.2), "gradient", 0.15).bouts(
        MAZE, 100, np.random.default_rng(seed)
    )
    episodes = [
        Episode(
            bout.observations,
            bout.actions,
            bout.features,
            bout.terminated,
            MAZE.legal[bout.observations[:-1]] if masks else None,
        )
        for bout in bouts
    ]
    return LearningHistory.from_sessions(episodes, windows=4, feature_names=MAZE.names)


def animals(*seeds: int, masks: bool = False) -> dict[str, LearningHistory]:
    return {f"animal {seed}": animal(seed, masks=masks) for seed in seeds}


def watched(history: LearningHistory, world: KnownWorld | None) -> Watched:
    return Watched(history, TOLD, GAMMA, None, False, True, 0, lambda *a: None, world=world)


@pytest.mark.parametrize("world", [None, WORLD], ids=["counted", "known"])
def test_the_common_world_knows_what_is_legal_and_what_was_given(world: KnownWorld | None) -> None:
    company = Company(tuple(watched(h, world) for h in animals(1000, 1001).values()), True)
    basis = np.eye(len(MAZE.names))
    own = company.pool(company.members[1].stages(), basis)
    pooled = company.world(own, basis, None, None, 0)
    # Where there is a choice, all three ways are legal.
    assert isinstance(own, TabularWorld) and isinstance(pooled, TabularWorld)
    assert pooled.n_states == MAZE.n_junctions and pooled.barred is None
    np.testing.assert_array_equal(pooled.counts, own.counts)
    # There and back takes two moves.
    certain = np.isin(pooled.transitions, [0.0, GAMMA, 1.0]).all()
    assert certain == (world is not None)
    # Where it is known, what anyone saw adds nothing to where moves lead.
    assert np.array_equal(pooled.transitions, own.transitions) == (world is not None)


def test_learners_share_a_reward_in_a_known_world_of_legal_actions() -> None:
    told = infer_reward(animals(1000, 1001), TOLD, gamma=GAMMA, method=QUICK, world=WORLD)
    assert told.weights[0] > 0.7
    recorded = infer_reward(
        animals(1000, 1001, masks=True), FREE, gamma=GAMMA, method=QUICK, world=WORLD
    )
    np.testing.assert_allclose(recorded.weights, told.weights, atol=0.05)


def test_a_common_table_is_as_wide_as_the_masks_and_reads_them() -> None:
    both = animals(1000, 1001, masks=True)
    table = choose_common_policy(both, "auto")
    assert isinstance(table, TabularSoftmax) and table.n_actions == 3
    found = infer_reward(both, table, gamma=GAMMA, method=QUICK)
    told = infer_reward(animals(1000, 1001), TOLD, gamma=GAMMA, method=QUICK)
    np.testing.assert_allclose(found.weights, told.weights, atol=0.1)


def test_groups_take_a_known_world() -> None:
    group = infer_group(animals(1000, 1001), TOLD, gamma=GAMMA, method=QUICK, world=WORLD)
    assert group.mean.weights[0] > 0.7
    contrast = compare_groups(
        *(animals(1000, 1001), animals(1002, 1003)),
        TOLD,
        gamma=GAMMA,
        method=QUICK,
        world=WORLD,
    )
    low, high = contrast.interval(0.95)[0]
    assert low < 0 < high


def test_masks_of_two_learners_that_disagree_name_the_learner() -> None:
    other = animal(1001, masks=True)
    stages = []
    for stage in other:
        assert stage.action_masks is not None
        stages.append(replace(stage, action_masks=np.ones_like(stage.action_masks)))
    both = {"tame": animal(1000, masks=True), "wild": LearningHistory.from_stages(stages)}
    with pytest.raises(
        HistoryError, match=r"wild: stage 0, .* in state .* are legal, but elsewhere"
    ):
        infer_reward(both, FREE, gamma=GAMMA, method=QUICK)


def test_masks_of_one_learner_alone_are_refused_in_a_common_world() -> None:
    both = {"one": animal(1000, masks=True), "two": animal(1001)}
    with pytest.raises(OptionError, match="one has action_masks, but two has none"):
        infer_reward(both, FREE, gamma=GAMMA, method=QUICK)


def test_moves_that_a_known_world_calls_impossible_are_noted_by_learner() -> None:
    wrong = np.array(MAZE.successors)
    state = int(animal(1001)[0].observations[0])
    action = int(animal(1001)[0].actions[0])
    wrong[state, action] = state
    lax = KnownWorld(wrong, terminal=[MAZE.port], tolerated=0.9)
    found = infer_reward(
        animals(1000, 1001), TOLD, gamma=GAMMA, method=QUICK, world=lax, intervals=False
    )
    assert any(note.startswith("animal 1001: ") and "impossible" in note for note in found.notes)
    with pytest.raises(HistoryError, match=r"animal 100[01]: stage 0, .*impossible"):
        infer_reward(
            animals(1000, 1001),
            TOLD,
            gamma=GAMMA,
            method=QUICK,
            world=replace(lax, tolerated=0.0),
        )
