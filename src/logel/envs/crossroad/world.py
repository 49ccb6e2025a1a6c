"""Driving: the ego vehicle enters a priority road through random cross traffic, simulated by SUMO.

The ego vehicle comes from a minor road and has to turn into a road with priority. Every half
second it decides: GO, or YIELD, which stops it at the line. Beyond the line there is no way back
and the action has no effect. An episode ends well when the turn is made, badly when a car comes
too close (a conflict less than a second away, or a collision), and is truncated when the time is
up.

Observation, float64 (10,), as named in `OBSERVATION_NAMES`:

    distance        metres to the stop line, negative beyond it
    speed           m/s
    acceleration    m/s^2 during the last decision period
    time gap        three, one per stream of cross traffic, in seconds: how long after the ego
                    vehicle, if it goes now, the nearest car reaches the place where their paths
                    meet, or how long it will have left it; negative when it would still be there;
                    at most 10
    distance gap    three, metres from the nearest car to that place; at most 100
    crash           1 once it happened

The streams are the traffic straight on from the left, straight on from the right, and all that
turns. Reward features are minus costs, so that weights are positive: see `CrossroadFeatures`.

SUMO keeps one simulation per process: a second open `Crossroad` is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec

from logel.envs.crossroad import motion
from logel.envs.crossroad.motion import CAR_LENGTH, MAX_TIME_GAP, OtherCar
from logel.envs.crossroad.network import (
    EGO_ROAD,
    LEFT_ROAD,
    RIGHT_ROAD,
    ROAD_LENGTH,
    SPEED_LIMIT,
    Movement,
    read_network,
)
from logel.envs.crossroad.picture import Car, add_cars, background
from logel.envs.crossroad.simulation import STEP, Simulation
from logel.errors import OptionError
from logel.types import Float

YIELD, GO = 0, 1
ACTION_NAMES = ("yield", "go")
STREAMS = ("left", "right", "turning")
OBSERVATION_NAMES = (
    "distance",
    "speed",
    "acceleration",
    *(f"time gap {stream}" for stream in STREAMS),
    *(f"distance gap {stream}" for stream in STREAMS),
    "crash",
)
TIME_GAPS, DISTANCE_GAPS = slice(3, 6), slice(6, 9)
MIN_TIME_GAP, MAX_DISTANCE_GAP = -5.0, 100.0
FEATURE_NAMES = ("time", "jerk", "slow", "crash")
# The paper's real weights; its table gives them with four digits, scaled to sum to one.
WEIGHTS = (0.0017, 0.0003, 0.0, 0.998)
TARGETS = {"left": LEFT_ROAD, "right": RIGHT_ROAD}

# In m/s: little more than a pedestrian's speed.
SLOW_SPEED = 2.0
# Far enough for a comfortable stop from the speed limit, which takes under 40 m.
START_DISTANCE = 60.0
_EGO = "ego"
# Cars keep this time from the one ahead when they enter the map.
_HEADWAY = 2.0
_STRAIGHT_SHARE = 0.9
# Standard deviation of the cars' own speed limits, as a share of the road's.
_HASTE = 0.1
# The turn is over when the ego vehicle has left the junction by its own length.
_LEFT_BEHIND = 2 * CAR_LENGTH


@dataclass(frozen=True)
class CrossroadFeatures:
    """Reward features from observations: minus time, jerk, slowness and crash.

    time: 1 for every decision. jerk: |change of acceleration| / period, in m/s^3. slow: whether
    the speed is below 2 m/s after the decision. crash: whether the decision ended in one.

    Attributes:
        period: Seconds between decisions.
    """

    period: float = 0.5
    names: tuple[str, ...] = FEATURE_NAMES

    def __call__(
        self, observations: Float, actions: npt.ArrayLike, next_observations: Float, /
    ) -> Float:
        """Features, shape (N, 4), of N transitions."""
        pairs = zip(np.atleast_2d(observations), np.atleast_2d(next_observations), strict=True)
        return np.stack([_features(before, after, self.period) for before, after in pairs])


def _features(before: Float, after: Float, period: float) -> Float:
    """Reward features of one transition, shape (4,)."""
    jerk = abs(after[2] - before[2]) / period
    return np.array([-1.0, -jerk, -float(after[1] < SLOW_SPEED), -after[9]])


class Crossroad(gymnasium.Env[Float, np.int64]):
    """The crossroad as a Gymnasium environment; see the module's description.

    `info["features"]` holds the step's reward features, shape (4,), `info["decides"]` whether the
    action had an effect, `info["outcome"]` is "driving", "arrived", "conflict", "collision" or
    "late".

    Attributes:
        weights: Reward weights, shape (4,).
        features: The features as a callable, for `infer_reward` and `LinearReward`.
        period: Seconds between decisions.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012 (Gymnasium's type)

    def __init__(
        self,
        *,
        n_roads: int = 3,
        target: str = "left",
        density: tuple[float, float] = (0.08, 0.25),
        period: float = 0.5,
        time_limit: float = 40.0,
        weights: Sequence[float] = WEIGHTS,
        render_mode: str | None = None,
    ) -> None:
        """Describe a scenario; the simulation starts with the first `reset`.

        Args:
            n_roads: Number of roads, 3 to 6.
            target: Which half of the priority road to enter: "left" or "right".
            density: Cars per second on each half of the priority road: every episode draws one
                for either, uniformly between these two.
            period: Seconds between decisions, a multiple of .1.
            time_limit: Seconds after which an episode is truncated.
            weights: Reward weights of time, jerk, slow and crash.
            render_mode: None or "rgb_array".
        """
        self._substeps = _checked_substeps(period, time_limit)
        low, high = density
        if not 0 <= low <= high <= 1 / _HEADWAY:
            raise OptionError(
                f"density must be a range within 0 and {1 / _HEADWAY:g} cars/s, but is {density}"
            )
        if target not in TARGETS:
            raise OptionError(f"target must be 'left' or 'right', but is {target!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise OptionError(f"render_mode must be None or 'rgb_array', but is {render_mode!r}")
        self.network = read_network(_whole(n_roads))
        self.period, self.time_limit, self.density = period, time_limit, (low, high)
        self.weights = np.array(weights, dtype=float)
        if self.weights.shape != (4,) or not np.isfinite(self.weights).all():
            raise OptionError(
                f"weights must be 4 finite numbers, for {', '.join(FEATURE_NAMES)}: {weights}"
            )
        self.features = CrossroadFeatures(period)
        self.render_mode = render_mode
        self.observation_space = _observation_space()
        self.action_space = gymnasium.spaces.Discrete(len(ACTION_NAMES))
        # A spec of its own lets tools rebuild the environment without a global registration.
        self.spec = EnvSpec(
            "logel/Crossroad-v0",
            entry_point="logel.envs.crossroad.world:Crossroad",
            kwargs={
                "n_roads": n_roads,
                "target": target,
                "density": density,
                "period": period,
                "time_limit": time_limit,
                "weights": tuple(weights),
            },
        )
        self._path = self.network.movements[EGO_ROAD, TARGETS[target]]
        self._zones = self.network.zones(self._path)
        self._zone_of = {zone.other.name: (zone, _stream(zone.other)) for zone in self._zones}
        self._simulation: Simulation | None = None
        self._episode: _Episode | None = None
        self._background: npt.NDArray[np.uint8] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float, dict[str, Any]]:
        """Start an episode; the same seed gives the same one, bit for bit, in any process."""
        super().reset(seed=seed)
        if self._simulation is None:
            self._simulation = Simulation(self.network.n_roads)
        self._episode = _Episode(self._draw_traffic())
        self._begin(self._episode)
        self._look()
        self._episode.observation = self._observe()
        return self._episode.observation.copy(), self._info(np.zeros(len(FEATURE_NAMES)))

    def step(self, action: np.int64 | int) -> tuple[Float, float, bool, bool, dict[str, Any]]:
        """Drive for one decision period."""
        state = self._running()
        if action not in (YIELD, GO):
            raise OptionError(f"the action must be 0 (yield) or 1 (go), but is {action!r}")
        before, start = state.observation, state.speed
        self._drive(
            state,
            motion.acceleration(
                self._path, state.position, start, go=action == GO, period=self.period
            ),
        )
        state.acceleration = (state.speed - start) / self.period
        if state.outcome == "driving" and state.steps * STEP >= self.time_limit - 1e-9:
            state.outcome = "late"
        after = state.observation = self._observe()
        features = _features(before, after, self.period)
        terminated = state.outcome == "arrived" or _crashed(state)
        reward = float(self.weights @ features)
        return after.copy(), reward, terminated, state.outcome == "late", self._info(features)

    @property
    def outcome(self) -> str:
        """How the current or last episode stands; see `info["outcome"]`."""
        return self._running(finished=True).outcome

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The crossroad from above, shape (400, 400, 3): roads, conflict zones, cars."""
        if self.render_mode is None:
            return None
        state, vehicle = self._running(finished=True), self._sumo.vehicle
        cars = []
        for name in vehicle.getIDList():
            x, y = vehicle.getPosition(name)[:2]
            cars.append(Car(x, y, vehicle.getAngle(name), ego=name == _EGO))
        if self._background is None:
            zones = [self._path.part(zone.start, zone.stop) for zone in self._zones]
            self._background = background(self.network, zones)
        return add_cars(self._background, cars, crashed=_crashed(state))

    def close(self) -> None:
        """Stop the simulation, so that another environment may open one."""
        if self._simulation is not None:
            self._simulation.close()
        self._simulation, self._episode = None, None

    @property
    def _sumo(self) -> Any:
        assert self._simulation is not None, "an episode has a simulation"
        return self._simulation.sumo

    def _drive(self, state: _Episode, acceleration: float) -> None:
        """Move everybody on by one decision period."""
        sumo, start = self._sumo, state.speed
        self._add_cars(state, until=state.steps * STEP + self.period)
        if start == 0 and acceleration == 0:
            # Who stands cannot run into anybody: one call for the whole period saves time.
            sumo.vehicle.setSpeed(_EGO, 0.0)
            state.steps += self._substeps
            sumo.simulationStep((state.steps + 1) * STEP)
            self._look()
            return
        # Far from the line nobody can be in its way: one look at the end is enough.
        far = state.position + (start + motion.ACCELERATION * self.period) * self.period < 0
        for k in range(self._substeps):
            # Braking ends in a standstill, not in reverse.
            sumo.vehicle.setSpeed(_EGO, max(0.0, start + acceleration * STEP * (k + 1)))
            sumo.simulationStep()
            state.steps += 1
            if not far or k == self._substeps - 1:
                self._look()
            if state.outcome != "driving":
                break

    def _running(self, *, finished: bool = False) -> _Episode:
        state = self._episode
        if state is None or (state.outcome != "driving" and not finished):
            raise OptionError("no episode is running: call reset() first")
        return state

    def _draw_traffic(self) -> deque[_Arrival]:
        """The traffic of an episode, in order of arrival, from the environment's own numbers.

        The roads are filled already when the episode begins: a car that would have come before is
        put where it would be by now.
        """
        cars: list[_Arrival] = []
        minor = [r for r in range(self.network.n_roads) if r not in (LEFT_ROAD, RIGHT_ROAD)]
        for origin, opposite in ((LEFT_ROAD, RIGHT_ROAD), (RIGHT_ROAD, LEFT_ROAD)):
            rate = self.np_random.uniform(*self.density)
            if rate <= 0:
                continue
            # The first may already be 20 m from the junction.
            time = -(ROAD_LENGTH - 20.0) / SPEED_LIMIT
            while True:
                # A stream of this rate in which no two cars are closer than the least headway.
                time += _HEADWAY + self.np_random.exponential(1 / rate - _HEADWAY)
                if time >= self.time_limit:
                    break
                straight = self.np_random.random() < _STRAIGHT_SHARE
                target = opposite if straight else minor[self.np_random.integers(len(minor))]
                # Two standard deviations: nobody crawls, nobody races.
                haste = float(np.clip(self.np_random.normal(1.0, _HASTE), 0.8, 1.2))
                cars.append(_Arrival(time, f"{origin}.{len(cars)}", f"{origin}-{target}", haste))
        return deque(sorted(cars, key=lambda car: car.time))

    def _begin(self, state: _Episode) -> None:
        """Put the simulation back to its start, fill the roads, and place the ego vehicle."""
        assert self._simulation is not None
        self._simulation.restart()
        sumo = self._sumo
        for movement in self.network.movements.values():
            sumo.route.add(movement.name, [f"in{movement.origin}", f"out{movement.target}"])
        self._add_cars(state, until=0.0)
        start = -self._path.offsets[f"in{EGO_ROAD}_0"] - START_DISTANCE
        sumo.vehicle.add(_EGO, self._path.name, departPos=f"{start:.2f}", departSpeed="max")
        sumo.simulationStep()
        # SUMO's own care is switched off: the vehicle does as told, into a crash if need be.
        sumo.vehicle.setSpeedMode(_EGO, 32)

    def _add_cars(self, state: _Episode, *, until: float) -> None:
        """Hand the simulation the cars that arrive up to a time."""
        vehicle = self._sumo.vehicle
        while state.cars and state.cars[0].time <= until:
            car = state.cars.popleft()
            depart = f"{max(car.time, 0.0):.1f}"
            place = f"{max(0.0, -car.time * SPEED_LIMIT):.2f}"
            vehicle.add(car.name, car.route, depart=depart, departPos=place, departSpeed="max")
            vehicle.setSpeedFactor(car.name, car.haste)
            state.routes[car.name] = car.route

    def _look(self) -> None:
        """Read the simulation: where everybody is, and whether that is too close."""
        state, vehicle = self._running(), self._sumo.vehicle
        lane = vehicle.getLaneID(_EGO)
        state.position = self._path.offsets[lane] + vehicle.getLanePosition(_EGO)
        state.speed = vehicle.getSpeed(_EGO)
        if self._sumo.simulation.getCollidingVehiclesNumber() and any(
            _EGO in (collision.collider, collision.victim)
            for collision in self._sumo.simulation.getCollisions()
        ):
            state.outcome = "collision"
            return
        state.approaching = self._approaching(state)
        if any(car.too_close(state.position) for car in state.approaching):
            state.outcome = "conflict"
        elif state.position >= self._path.length + _LEFT_BEHIND:
            state.outcome = "arrived"

    def _approaching(self, state: _Episode) -> list[OtherCar]:
        """All cars that have not passed their zone."""
        vehicle, found = self._sumo.vehicle, []
        for name in vehicle.getIDList():
            if name in state.passed or name == _EGO:
                continue
            known = self._zone_of.get(state.routes[name])
            if known is None:
                state.passed.add(name)
                continue
            zone, stream = known
            position = zone.other.offsets[vehicle.getLaneID(name)] + vehicle.getLanePosition(name)
            if position - CAR_LENGTH > zone.other_stop:
                state.passed.add(name)
                continue
            found.append(OtherCar(zone, stream, position, vehicle.getSpeed(name)))
        return found

    def _observe(self) -> Float:
        state = self._running(finished=True)
        times, distances = [MAX_TIME_GAP] * len(STREAMS), [MAX_DISTANCE_GAP] * len(STREAMS)
        for car in state.approaching:
            gap = car.time_gap(state.position, state.speed, self._path.speed)
            times[car.stream] = min(times[car.stream], gap)
            distances[car.stream] = min(distances[car.stream], car.distance)
        return np.array(
            [
                -state.position,
                state.speed,
                state.acceleration,
                *(max(gap, MIN_TIME_GAP) for gap in times),
                *distances,
                float(_crashed(state)),
            ]
        )

    def _info(self, features: Float) -> dict[str, Any]:
        state = self._running(finished=True)
        return {"features": features, "outcome": state.outcome, "decides": state.position < 0}


@dataclass(frozen=True)
class _Arrival:
    """A car that will come: when, its name, its route, and its speed relative to the limit."""

    time: float
    name: str
    route: str
    haste: float


@dataclass
class _Episode:
    """What changes during an episode."""

    cars: deque[_Arrival]
    routes: dict[str, str] = field(default_factory=dict)
    observation: Float = field(default_factory=lambda: np.zeros(len(OBSERVATION_NAMES)))
    passed: set[str] = field(default_factory=set)
    approaching: list[OtherCar] = field(default_factory=list)
    position: float = -START_DISTANCE
    speed: float = SPEED_LIMIT
    acceleration: float = 0.0
    steps: int = 0
    outcome: str = "driving"


def _crashed(state: _Episode) -> bool:
    return state.outcome in ("conflict", "collision")


def _stream(movement: Movement) -> int:
    straight = {(LEFT_ROAD, RIGHT_ROAD): 0, (RIGHT_ROAD, LEFT_ROAD): 1}
    return straight.get((movement.origin, movement.target), 2)


def _observation_space() -> gymnasium.Space[Float]:
    low = [-ROAD_LENGTH, 0.0, -20.0, *[MIN_TIME_GAP] * 3, *[0.0] * 3, 0.0]
    high = [ROAD_LENGTH, 30.0, 20.0, *[MAX_TIME_GAP] * 3, *[MAX_DISTANCE_GAP] * 3, 1.0]
    box: Any = gymnasium.spaces.Box(np.array(low), np.array(high), dtype=np.float64)
    space: gymnasium.Space[Float] = box
    return space


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise OptionError(f"the number of roads must be a whole number, but is {value!r}")
    return int(value)


def _checked_substeps(period: float, time_limit: float) -> int:
    """Moments of the simulation between two decisions."""
    substeps = round(period / STEP)
    if substeps < 1 or abs(substeps * STEP - period) > 1e-9:
        raise OptionError(f"period must be a positive multiple of {STEP} s, but is {period}")
    if not time_limit >= period:
        raise OptionError(f"time_limit must be at least one period, but is {time_limit}")
    return substeps
