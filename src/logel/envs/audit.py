"""Small worlds for audits: dynamics in arrays, features of their own, rewards drawn at random.

    world = WORLDS["room"]
    weights = world.random_weights(np.random.default_rng(0))
    env = world.make(weights)                          # one Gymnasium environment
    venv = ArrayVecEnv(world, weights, n_envs=16)      # many at once, see logel.learners

A reward is `features @ weights`. At least two features pay exactly nothing, because an audit must
clear the innocent; features are of order one, so that weights can be compared. CartPole, Pendulum
and MountainCarContinuous move as Gymnasium's do. What differs is said at each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from logel.rewards.features import FunctionFeatures
from logel.types import Array, Float

# How many features pay nothing, and what the others pay before weights get unit norm. Costs are
# moderate: a learner that is mostly punished for moving learns to stand still, and shows no more.
N_UNPAID = 2
PAY, COST = (0.3, 1.0), (0.15, 0.35)


class Dynamics(Protocol):
    """How many copies of a world move at once; states are one row per copy."""

    @property
    def observation_space(self) -> Any:
        """A Box of one dimension."""

    @property
    def action_space(self) -> Any:
        """A Box of one dimension, or Discrete."""

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """States of n new episodes, shape (n, k)."""

    def step(self, states: Array, actions: Array) -> tuple[Array, Array]:
        """The next states, shape (n, k), and which of them end the episode for good, (n,)."""

    def show(self, states: Array) -> Array:
        """Observations, shape (n, ...), of the observation space's type."""


@dataclass(frozen=True, eq=False)
class AuditWorld:
    """A world, what a reward may be made of in it, and how patient its learners are.

    Attributes:
        name: Of the world.
        dynamics: How it moves.
        features: What a reward is made of.
        costs: Names of the features that only ever cost.
        bonuses: Names of those that never do.
        gamma: Discount factor of the learners.
        horizon: Episodes are cut after so many steps.
    """

    name: str
    dynamics: Dynamics
    features: FunctionFeatures
    costs: tuple[str, ...]
    gamma: float
    horizon: int
    bonuses: tuple[str, ...] = ()

    def random_weights(self, rng: np.random.Generator) -> Float:
        """A reward of unit norm in which two features, any two, pay nothing; shape (q,)."""
        names = self.features.names
        sizes = rng.uniform(*PAY, len(names)) * rng.choice([-1.0, 1.0], len(names))
        cost = np.array([name in self.costs for name in names])
        weights = np.where(cost, -rng.uniform(*COST, len(names)), sizes)
        bonus = np.array([name in self.bonuses for name in names])
        weights = np.where(bonus, np.abs(weights), weights)
        weights[rng.choice(len(names), N_UNPAID, replace=False)] = 0.0
        return np.asarray(weights / np.linalg.norm(weights))

    def make(self, weights: Float) -> gymnasium.Env[Any, Any]:
        """One environment that pays `features @ weights`, with its time limit."""
        return TimeLimit(AuditEnv(self, weights), self.horizon)


class AuditEnv(gymnasium.Env[Any, Any]):
    """One copy of a world, without time limit."""

    def __init__(self, world: AuditWorld, weights: Float) -> None:
        self.world, self.weights = world, weights
        self.observation_space = world.dynamics.observation_space
        self.action_space = world.dynamics.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, Any]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.states = self.world.dynamics.start(1, self.np_random)
        return self.world.dynamics.show(self.states)[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Act."""
        dynamics, actions = self.world.dynamics, np.asarray(action)[None]
        before = dynamics.show(self.states)
        self.states, ended = dynamics.step(self.states, actions)
        after = dynamics.show(self.states)
        reward = self.world.features(before, actions, after) @ self.weights
        return after[0], float(reward[0]), bool(ended[0]), False, {}


def _closeness(offsets: Array, sharpness: float = 2.0) -> Float:
    """1 at a place, falling to nothing around it; offsets of shape (..., k)."""
    return np.asarray(np.exp(-sharpness * np.square(offsets).sum(axis=-1)), dtype=np.float64)


# --- the room -------------------------------------------------------------------------------------

ROOM_PLACES = {"east": (0.7, 0.0), "west": (-0.7, 0.0), "north": (0.0, 0.7), "south": (0.0, -0.7)}


class Room:
    """The robot of `examples/reward_hacking.py`: drives about a square, entered anywhere."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """Anywhere."""
        return rng.uniform(-1.0, 1.0, (n, 2))

    def step(self, states: Array, actions: Array) -> tuple[Array, Array]:
        """Drive a little; walls stop."""
        return np.clip(states + 0.1 * actions, -1.0, 1.0), np.zeros(len(states), dtype=bool)

    def show(self, states: Array) -> Array:
        """Where the robot is."""
        return states.astype(np.float32)


def room_features(observations: Array, actions: Array, next_observations: Array) -> Float:
    """Closeness to four places, and energy."""
    offsets = next_observations[:, None] - np.array(list(ROOM_PLACES.values()))
    return np.column_stack([_closeness(offsets), np.square(actions).mean(axis=1)])


# --- CartPole -------------------------------------------------------------------------------------

# Metres from the centre and radians from upright at which an episode ends. Gymnasium's twelve
# degrees end a beginner's episode after twenty steps, in which a cart gets nowhere.
TRACK, LEAN = 2.4, 0.5
# Gymnasium's constants: gravity, half the pole's length, masses, force, seconds per step.
_GRAVITY, _LENGTH, _POLE, _TOTAL, _FORCE, _TAU = 9.8, 0.5, 0.1, 1.1, 10.0, 0.02
CARTPOLE = ("left", "right", "upright", "speed", "push")


class CartPole:
    """Gymnasium's CartPole, which begins anywhere in the middle and may lean further."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """Anywhere within a metre, nearly upright and at rest."""
        return rng.uniform(-1.0, 1.0, (n, 4)) * (1.0, 0.05, 0.05, 0.05)

    def step(self, states: Array, actions: Array) -> tuple[Array, Array]:
        """Push left (0) or right (1)."""
        speed, angle, turning = states[:, 1:].T
        force = np.where(np.asarray(actions) == 1, _FORCE, -_FORCE)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + _POLE * _LENGTH * turning**2 * sine) / _TOTAL
        fall = (_GRAVITY * sine - cosine * push) / (
            _LENGTH * (4.0 / 3.0 - _POLE * cosine**2 / _TOTAL)
        )
        drive = push - _POLE * _LENGTH * fall * cosine / _TOTAL
        moved = states + _TAU * np.stack([speed, drive, turning, fall], axis=1)
        return moved, (np.abs(moved[:, 0]) > TRACK) | (np.abs(moved[:, 2]) > LEAN)

    def show(self, states: Array) -> Array:
        """Position, speed, angle, and how fast it turns."""
        return states.astype(np.float32)


def cartpole_features(observations: Array, actions: Array, next_observations: Array) -> Float:
    """Closeness to places a metre left and right, uprightness, the cart's speed, push right."""
    x, speed, angle = next_observations[:, :3].T.astype(np.float64)
    columns = (
        *(_closeness((x - place)[:, None]) for place in (-1.0, 1.0)),
        _closeness(angle[:, None], 20.0),
        np.abs(speed),
        2.0 * np.asarray(actions) - 1.0,
    )
    return np.column_stack(columns)


# --- Pendulum -------------------------------------------------------------------------------------

# A quarter of Gymnasium's gravity: with all of it a pendulum must be swung for long before it gets
# anywhere but down, which no learner finds out in a dozen updates.
PENDULUM_GRAVITY = 2.5
PENDULUM = ("up", "left", "right", "speed", "torque")


class Pendulum:
    """Gymnasium's Pendulum, with less gravity; states are angle and speed."""

    observation_space = spaces.Box(
        np.array([-1.0, -1.0, -8.0], np.float32), np.array([1.0, 1.0, 8.0], np.float32)
    )
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """Any angle, slowly."""
        return rng.uniform(-1.0, 1.0, (n, 2)) * (np.pi, 1.0)

    def step(self, states: Array, actions: Array) -> tuple[Array, Array]:
        """Turn for a twentieth of a second."""
        angle, speed = states.T
        pull = 1.5 * PENDULUM_GRAVITY * np.sin(angle) + 3.0 * np.asarray(actions, float)[:, 0]
        faster = np.clip(speed + 0.05 * pull, -8.0, 8.0)
        moved = np.stack([angle + 0.05 * faster, faster], axis=1)
        return moved, np.zeros(len(states), dtype=bool)

    def show(self, states: Array) -> Array:
        """Cosine and sine of the angle from upright, and speed."""
        angle, speed = states.T
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)


def pendulum_features(observations: Array, actions: Array, next_observations: Array) -> Float:
    """Height, closeness to either side, squared speed and torque in units of ordinary ones."""
    tip, speed = next_observations[:, :2], next_observations[:, 2].astype(np.float64)
    columns = (
        tip[:, 0],
        *(_closeness(tip - np.array([0.0, side])) for side in (1.0, -1.0)),
        np.square(speed / 4.0),
        np.square(np.asarray(actions, float)[:, 0]) / 2.0,
    )
    return np.column_stack(columns)


# --- MountainCarContinuous ------------------------------------------------------------------------

# Gymnasium's constants: the track's ends, its goal, and the speed limit.
_LEFT, _RIGHT, _GOAL, _FAST = -1.2, 0.6, 0.45, 0.07
# Where observations are centred, and their units: networks hardly see a speed of .07.
_MIDDLE, _HALF = -0.3, 0.9
MOUNTAIN_PLACES = {"goal": 0.4, "left hill": -1.1, "valley": -0.5}


class MountainCar:
    """Gymnasium's MountainCarContinuous, entered anywhere and seen in units of order one."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """Anywhere before the goal, at any moderate speed."""
        places, speeds = rng.uniform(-1.1, 0.3, n), rng.uniform(-0.03, 0.03, n)
        return np.stack([places, speeds], axis=1)

    def step(self, states: Array, actions: Array) -> tuple[Array, Array]:
        """Drive; at the goal the episode ends."""
        force = np.clip(np.asarray(actions, float)[:, 0], -1.0, 1.0)
        speed = states[:, 1] + 0.0015 * force - 0.0025 * np.cos(3 * states[:, 0])
        speed = np.clip(speed, -_FAST, _FAST)
        place = np.clip(states[:, 0] + speed, _LEFT, _RIGHT)
        speed = np.where((place == _LEFT) & (speed < 0), 0.0, speed)
        return np.stack([place, speed], axis=1), (place >= _GOAL) & (speed >= 0)

    def show(self, states: Array) -> Array:
        """Position and speed, both between -1 and 1."""
        return ((states - (_MIDDLE, 0.0)) / (_HALF, _FAST)).astype(np.float32)


def mountain_car_features(observations: Array, actions: Array, next_observations: Array) -> Float:
    """Closeness to the goal's hill, the other hill and the valley; squared speed and force."""
    place = next_observations[:, 0].astype(np.float64) * _HALF + _MIDDLE
    columns = (
        *(_closeness((place - at)[:, None], 10.0) for at in MOUNTAIN_PLACES.values()),
        np.square(next_observations[:, 1].astype(np.float64)) * 2.0,
        np.square(np.asarray(actions, float)[:, 0]),
    )
    return np.column_stack(columns)


# --- the grid -------------------------------------------------------------------------------------

GRID_SIZE = 8
# Stay, up, down, left, right, as changes of (column, row).
MOVES = np.array([(0, 0), (0, 1), (0, -1), (-1, 0), (1, 0)])
# Corners that places fill, this many cells wide and high.
CORNER = 3
GRID = ("south-west", "south-east", "north-west", "north-east", "moving")


class Grid:
    """A room of cells in which one stays or goes to a neighbour; coordinates are shown."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(len(MOVES))

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """In any cell."""
        return rng.integers(GRID_SIZE, size=(n, 2))

    def step(self, states: Array, actions: Array) -> tuple[Array, Array]:
        """Walls stop."""
        moved = np.clip(states + MOVES[np.asarray(actions)], 0, GRID_SIZE - 1)
        return moved, np.zeros(len(states), dtype=bool)

    def show(self, states: Array) -> Array:
        """Column and row, from -1 to 1."""
        return (2.0 * states / (GRID_SIZE - 1) - 1.0).astype(np.float32)


def grid_features(observations: Array, actions: Array, next_observations: Array) -> Float:
    """Whether the step led into each corner, and whether it was one."""
    cells = np.rint((next_observations + 1.0) * (GRID_SIZE - 1) / 2)
    west, south = (cells < CORNER).T
    east, north = (cells >= GRID_SIZE - CORNER).T
    corners = (south & west, south & east, north & west, north & east)
    return np.column_stack([*corners, np.asarray(actions) != 0]).astype(np.float64)


def _world(
    name: str,
    dynamics: Dynamics,
    function: Callable[[Array, Array, Array], Float],
    names: tuple[str, ...],
    *,
    costs: tuple[str, ...],
    gamma: float,
    horizon: int,
    bonuses: tuple[str, ...] = (),
) -> AuditWorld:
    features = FunctionFeatures(function, names)
    return AuditWorld(name, dynamics, features, costs, gamma, horizon, bonuses)


WORLDS: dict[str, AuditWorld] = {
    world.name: world
    for world in (
        _world(
            "room",
            Room(),
            room_features,
            (*ROOM_PLACES, "energy"),
            costs=("energy",),
            gamma=0.9,
            horizon=50,
        ),
        _world(
            "cartpole",
            CartPole(),
            cartpole_features,
            CARTPOLE,
            costs=("speed",),
            # Who is punished for standing falls at once, and there is little else to see.
            bonuses=("upright",),
            gamma=0.95,
            horizon=100,
        ),
        _world(
            "pendulum",
            Pendulum(),
            pendulum_features,
            PENDULUM,
            costs=("speed", "torque"),
            gamma=0.95,
            horizon=100,
        ),
        _world(
            "mountaincar",
            MountainCar(),
            mountain_car_features,
            (*MOUNTAIN_PLACES, "speed", "force"),
            costs=("speed", "force"),
            gamma=0.95,
            horizon=100,
        ),
        _world("grid", Grid(), grid_features, GRID, costs=("moving",), gamma=0.9, horizon=40),
    )
}
"""The worlds by name."""
