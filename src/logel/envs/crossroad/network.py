"""The crossroad's roads: how they are built, read, and where paths through them conflict.

Road 0 is the ego vehicle's minor road, coming from the south; roads 1 (to its left) and 2 (to its
right) are the two halves of the priority road; roads 3, 4, 5 are further minor roads on the far
side. The networks are shipped; SUMO's netconvert is needed only to build them again. Nothing here
imports the simulator.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from logel.errors import LogelError, OptionError
from logel.types import Float

N_ROADS = (3, 4, 5, 6)
EGO_ROAD, LEFT_ROAD, RIGHT_ROAD = 0, 1, 2
ROAD_LENGTH = 150.0
# Cars that have left the junction matter no more: their roads are short, to save time.
_EXIT_LENGTH = 60.0
SPEED_LIMIT = 13.89
# Two cars side by side, 1.8 m wide each, with a hand's breadth on either side.
_BODY_WIDTH = 2.2
_SAMPLING = 0.25
# A conflict may reach a car's length beyond the junction, where two streams have just merged.
_BEYOND = 5.0
_FOLDER = Path(__file__).parent / "networks"


class NetworkBuildError(LogelError):
    """netconvert is missing or failed."""


def network_path(n_roads: int) -> Path:
    """The shipped network with this many roads."""
    if n_roads not in N_ROADS:
        raise OptionError(f"a crossroad has 3 to 6 roads, but {n_roads} were asked for")
    return _FOLDER / f"crossroad-{n_roads}.net.xml"


def road_angle(road: int, n_roads: int) -> float:
    """Direction in which a road leaves the junction, in radians; 0 is east."""
    fixed = {EGO_ROAD: 1.5 * math.pi, LEFT_ROAD: math.pi, RIGHT_ROAD: 0.0}
    if road in fixed:
        return fixed[road]
    return math.pi * (road - 2) / (n_roads - 2)


def build_network(n_roads: int, path: Path) -> None:
    """Build a network of 3 to 6 roads with SUMO's netconvert; the same bytes every time."""
    program = find_netconvert()
    if program is None:
        raise NetworkBuildError(
            "netconvert is not installed; install it with: pip install eclipse-sumo==1.28.0"
        )
    network_path(n_roads)
    with tempfile.TemporaryDirectory() as folder:
        nodes, edges, out = (Path(folder) / name for name in ("nodes.xml", "edges.xml", "out.xml"))
        nodes.write_text(_nodes(n_roads))
        edges.write_text(_edges(n_roads))
        command = [program, "--node-files", str(nodes), "--edge-files", str(edges)]
        command += ["--output-file", str(out), "--no-turnarounds", "true"]
        command += ["--offset.disable-normalization", "true", "--precision", "3"]
        command += ["--junctions.internal-link-detail", "12"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode != 0 or not out.is_file():
            raise NetworkBuildError(f"netconvert failed: {found.stderr.strip() or 'no message'}")
        # The comment on top has the date and the folder; without it equal networks are equal files.
        tree = ElementTree.parse(out)
    ElementTree.indent(tree, space=" ")
    tree.write(path, encoding="utf-8", xml_declaration=True)


def find_netconvert() -> str | None:
    """The netconvert of this environment, else the one on the PATH, else None."""
    beside = Path(sys.executable).parent / "netconvert"
    return str(beside) if beside.is_file() else shutil.which("netconvert")


def _nodes(n_roads: int) -> str:
    lines = ['<node id="c" x="0" y="0" type="priority"/>']
    for road in range(n_roads):
        angle = road_angle(road, n_roads)
        for name, length in (("from", ROAD_LENGTH), ("to", _EXIT_LENGTH)):
            x, y = (length * f(angle) for f in (math.cos, math.sin))
            lines.append(f'<node id="{name}{road}" x="{x:.3f}" y="{y:.3f}"/>')
    return f"<nodes>{''.join(lines)}</nodes>"


def _edges(n_roads: int) -> str:
    lines = []
    for road in range(n_roads):
        rank = 10 if road in (LEFT_ROAD, RIGHT_ROAD) else 1
        common = f'numLanes="1" speed="{SPEED_LIMIT}" priority="{rank}"'
        lines.append(f'<edge id="in{road}" from="from{road}" to="c" {common}/>')
        lines.append(f'<edge id="out{road}" from="c" to="to{road}" {common}/>')
    return f"<edges>{''.join(lines)}</edges>"


@dataclass(frozen=True, eq=False)
class Movement:
    """A path through the junction, from one road to another.

    Positions along it are in metres from the stop line, negative before it.

    Attributes:
        origin: Road it comes from.
        target: Road it leads to.
        offsets: Position at which each lane of the path starts, by lane name.
        shape: The middle of the path as a polyline, shape (k, 2).
        positions: Position of every point of the polyline, shape (k,).
        length: Length of the part inside the junction.
        speed: Speed limit inside the junction, in m/s.
    """

    origin: int
    target: int
    offsets: dict[str, float]
    shape: Float
    positions: Float
    length: float
    speed: float

    @property
    def name(self) -> str:
        """Name of its route in the simulation."""
        return f"{self.origin}-{self.target}"

    def points(self, positions: Sequence[float] | Float) -> Float:
        """Places on the path, shape (k, 2)."""
        return np.stack([np.interp(positions, self.positions, c) for c in self.shape.T], axis=-1)

    def part(self, start: float, stop: float) -> Float:
        """The polyline between two positions."""
        inside = (self.positions > start) & (self.positions < stop)
        return self.points([start, *self.positions[inside], stop])


@dataclass(frozen=True)
class Zone:
    """Where two paths come so close that cars on both would touch.

    Attributes:
        other: The other movement.
        start: Where it begins on the ego vehicle's path.
        stop: Where it ends on the ego vehicle's path.
        other_start: Where it begins on the other path.
        other_stop: Where it ends on the other path.
    """

    other: Movement
    start: float
    stop: float
    other_start: float
    other_stop: float


@dataclass(frozen=True, eq=False)
class Network:
    """A crossroad.

    Attributes:
        n_roads: Number of roads.
        movements: Every path through the junction, by (origin, target).
        junction: Outline of the junction, shape (k, 2).
    """

    n_roads: int
    movements: dict[tuple[int, int], Movement]
    junction: Float

    def zones(self, ego: Movement) -> list[Zone]:
        """The conflicts of a movement with all movements from other roads."""
        found = []
        for other in self.movements.values():
            if other.origin != ego.origin and (zone := _conflict(ego, other)) is not None:
                found.append(zone)
        return found


@cache
def read_network(n_roads: int) -> Network:
    """Read a shipped network."""
    root = ElementTree.parse(network_path(n_roads)).getroot()
    lanes = {lane.attrib["id"]: lane.attrib for lane in root.iterfind("edge/lane")}
    links = {
        (link.attrib["from"], link.attrib["to"]): link.attrib
        for link in root.iterfind("connection")
    }
    movements = {}
    for (start, end), link in links.items():
        if start.startswith("in") and end.startswith("out"):
            inner = _inner_lanes(link["via"], end, links)
            movement = _movement(int(start[2:]), int(end[3:]), inner, lanes)
            movements[movement.origin, movement.target] = movement
    outline = root.find("junction[@id='c']")
    assert outline is not None
    return Network(n_roads, dict(sorted(movements.items())), _points(outline.attrib["shape"]))


def _inner_lanes(via: str, end: str, links: dict[tuple[str, str], dict[str, str]]) -> list[str]:
    """The lanes inside the junction; paths that wait for others on the way have two."""
    lanes = [via]
    while (following := links.get((lanes[-1].rpartition("_")[0], end), {}).get("via")) is not None:
        lanes.append(following)
    return lanes


def _movement(
    origin: int, target: int, inner: list[str], lanes: dict[str, dict[str, str]]
) -> Movement:
    names = [f"in{origin}_0", *inner, f"out{target}_0"]
    lengths = [float(lanes[name]["length"]) for name in names]
    offsets = np.cumsum([-lengths[0], *lengths[:-1]])
    shapes, places = [], []
    for name, offset, length in zip(names, offsets, lengths, strict=True):
        shape = _points(lanes[name]["shape"])
        along = np.cumsum([0.0, *np.hypot(*np.diff(shape, axis=0).T)])
        shapes.append(shape)
        # SUMO's lengths differ from its shapes' by millimetres; positions follow the lengths.
        places.append(offset + along * (length / along[-1]))
    return Movement(
        origin=origin,
        target=target,
        offsets=dict(zip(names, offsets.tolist(), strict=True)),
        shape=np.concatenate(shapes),
        positions=np.maximum.accumulate(np.concatenate(places)),
        length=float(sum(lengths[1:-1])),
        speed=min(float(lanes[name]["speed"]) for name in inner),
    )


def _points(text: str) -> Float:
    return np.array([[float(x) for x in pair.split(",")[:2]] for pair in text.split()])


def _conflict(ego: Movement, other: Movement) -> Zone | None:
    mine = np.arange(0.0, ego.length + _BEYOND, _SAMPLING)
    theirs = np.arange(0.0, other.length + _BEYOND, _SAMPLING)
    gaps = np.linalg.norm(ego.points(mine)[:, None] - other.points(theirs)[None], axis=-1)
    close = gaps < _BODY_WIDTH
    if not close.any():
        return None
    ours, others = mine[close.any(axis=1)], theirs[close.any(axis=0)]
    return Zone(other, float(ours[0]), float(ours[-1]), float(others[0]), float(others[-1]))
