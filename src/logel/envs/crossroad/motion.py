"""How the ego vehicle moves, and how close other cars come to it: plain mechanics, no simulator."""

from __future__ import annotations

import math
from dataclasses import dataclass

from logel.envs.crossroad.network import SPEED_LIMIT, Movement, Zone

CAR_LENGTH = 5.0
MAX_TIME_GAP = 10.0
# A conflict less than a second away counts as a crash.
CONFLICT_TIME = 1.0
ACCELERATION = 2.5
_BRAKING, _HARD_BRAKING = 2.5, 7.0
# Metres before the line at which a vehicle that yields comes to stand.
_STOP_BEFORE = 0.5


@dataclass(frozen=True)
class OtherCar:
    """A car that has not yet passed the place where its path meets the ego vehicle's.

    Attributes:
        zone: That place.
        stream: Which stream of traffic it belongs to.
        position: Along its own path.
        speed: In m/s.
    """

    zone: Zone
    stream: int
    position: float
    speed: float

    @property
    def distance(self) -> float:
        """Metres to the zone, 0 inside it."""
        return max(self.zone.other_start - self.position, 0.0)

    def too_close(self, ego: float) -> bool:
        """Whether the ego vehicle is where the car is, or will be in less than a second."""
        occupied = self.zone.start < ego and ego - CAR_LENGTH < self.zone.stop
        return occupied and self.position + CONFLICT_TIME * self.speed > self.zone.other_start

    def time_gap(self, ego: float, ego_speed: float, limit: float) -> float:
        """Time between the two cars in the zone if the ego vehicle goes now, as fast as it may."""
        if ego - CAR_LENGTH > self.zone.stop:
            return MAX_TIME_GAP
        arrives = _travel_time(self.zone.start - ego, ego_speed, limit)
        speed = max(self.speed, 0.1)  # a car that stands would never come
        other_leaves = (self.zone.other_stop + CAR_LENGTH - self.position) / speed
        return max(self.distance / speed - arrives, arrives - other_leaves)


def acceleration(
    path: Movement, position: float, speed: float, *, go: bool, period: float
) -> float:
    """Acceleration of the ego vehicle until its next decision."""
    distance = -position
    # Slow down in time for the bend; speed up after it.
    if distance > 0:
        allowed = math.sqrt(path.speed**2 + 2 * _BRAKING * distance)
    else:
        allowed = path.speed if -distance < path.length else SPEED_LIMIT
    wanted = (min(allowed, SPEED_LIMIT) - speed) / period
    free = min(max(wanted, -_HARD_BRAKING), ACCELERATION)
    if go or distance <= 0:
        return free
    room = distance - _STOP_BEFORE
    needed = speed**2 / (2 * max(room, 0.1))
    if room <= speed * period:
        needed = max(needed, speed / period)
    # Braking starts when it is due, and firmly enough to be over at the line.
    return min(free, -min(needed, _HARD_BRAKING) if needed >= _BRAKING / 2 else 0.0)


def _travel_time(distance: float, speed: float, limit: float) -> float:
    """Time to cover a distance from a speed, accelerating to a limit (or braking to it at once)."""
    if distance <= 0:
        return 0.0
    if speed >= limit:
        # On the approach it rolls towards the bend at a speed between the two.
        return distance / ((speed + limit) / 2)
    ramp = (limit**2 - speed**2) / (2 * ACCELERATION)
    if distance <= ramp:
        return (math.sqrt(speed**2 + 2 * ACCELERATION * distance) - speed) / ACCELERATION
    return (limit - speed) / ACCELERATION + (distance - ramp) / limit
