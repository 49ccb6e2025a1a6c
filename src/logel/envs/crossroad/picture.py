"""The crossroad seen from above, as an array of pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from logel.envs.crossroad.network import Network
from logel.types import Float

Image = npt.NDArray[np.uint8]
SIZE, VIEW = 400, 45.0
_LANE_WIDTH, _ROAD_EDGE = 3.2, 0.3
_GRASS, _EDGE, _ROAD = (222, 230, 214), (245, 245, 245), (120, 124, 130)
_ZONE, _LINE = (240, 196, 60), (250, 250, 250)
_EGO, _CAR, _CRASHED = (0, 114, 178), (50, 50, 55), (213, 94, 0)


@dataclass(frozen=True)
class Car:
    """A car to be drawn.

    Attributes:
        x: Of the middle of its front bumper, in metres.
        y: The same.
        heading: In degrees clockwise from north, as SUMO has it.
        ego: Whether it is the ego vehicle.
    """

    x: float
    y: float
    heading: float
    ego: bool


def background(network: Network, zones: Iterable[Float]) -> Image:
    """Roads, stop lines, and conflict zones (polylines on the ego vehicle's path).

    Returns:
        Shape (400, 400, 3); the middle of the junction is in the middle, 90 m across.
    """
    image = np.empty((SIZE, SIZE, 3), dtype=np.uint8)
    image[:] = _GRASS
    paths = [m.part(-2 * VIEW, m.length + 2 * VIEW) for m in network.movements.values()]
    for width, colour in ((_LANE_WIDTH / 2 + _ROAD_EDGE, _EDGE), (_LANE_WIDTH / 2 + 0.1, _ROAD)):
        for path in paths:
            image[_near(path, width)] = colour
    for movement in network.movements.values():
        # The stop line, across the lane.
        end, before = movement.points([0.0, -0.5])
        across = np.array([-(end - before)[1], (end - before)[0]]) / 0.5 * (_LANE_WIDTH / 2)
        image[_near(np.stack([end - across, end + across]), 0.25)] = _LINE
    for zone in zones:
        near = _near(zone, 0.9)
        image[near] = (0.6 * image[near] + 0.4 * np.array(_ZONE)).astype(np.uint8)
    return image


def add_cars(image: Image, cars: Iterable[Car], *, crashed: bool = False) -> Image:
    """A copy of the picture with cars in it."""
    image = image.copy()
    for car in cars:
        colour = _CAR if not car.ego else _CRASHED if crashed else _EGO
        image[_body(car, 5.0, 1.8)] = colour
        image[_body(car, 1.0, 1.4)] = tuple(min(255, c + 90) for c in colour)
    return image


@cache
def _pixels() -> tuple[Float, Float]:
    """Coordinates of the pixels' middles in metres."""
    line = (np.arange(SIZE) + 0.5) / SIZE * 2 * VIEW - VIEW
    x, y = np.meshgrid(line, -line)
    return x, y


def _near(path: Float, width: float) -> npt.NDArray[np.bool_]:
    """Pixels closer to a polyline than a width."""
    x, y = _pixels()
    near = np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in pairwise(path):
        dx, dy = bx - ax, by - ay
        square = dx * dx + dy * dy
        if square > 0:
            along = np.clip(((x - ax) * dx + (y - ay) * dy) / square, 0, 1)
            near |= (x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2 < width**2
    return near


def _body(car: Car, length: float, width: float) -> npt.NDArray[np.bool_]:
    """Pixels of a car, or of the first metres behind its front bumper."""
    x, y = _pixels()
    angle = math.radians(90 - car.heading)
    forward = (x - car.x) * math.cos(angle) + (y - car.y) * math.sin(angle)
    sideways = -(x - car.x) * math.sin(angle) + (y - car.y) * math.cos(angle)
    return (forward <= 0) & (forward >= -length) & (np.abs(sideways) <= width / 2)
