from pathlib import Path

import numpy as np
import pytest

from logel.envs.crossroad import network as crossroad_network
from logel.envs.crossroad.network import (
    EGO_ROAD,
    LEFT_ROAD,
    N_ROADS,
    RIGHT_ROAD,
    NetworkBuildError,
    build_network,
    find_netconvert,
    network_path,
    read_network,
    road_angle,
)
from logel.errors import OptionError


@pytest.mark.parametrize("n_roads", N_ROADS)
def test_every_road_leads_to_every_other(n_roads: int) -> None:
    network = read_network(n_roads)
    roads = range(n_roads)
    assert set(network.movements) == {(i, j) for i in roads for j in roads if i != j}


@pytest.mark.parametrize("n_roads", N_ROADS)
def test_paths_run_from_their_road_to_their_target(n_roads: int) -> None:
    for movement in read_network(n_roads).movements.values():
        assert (np.diff(movement.positions) >= 0).all()
        for road, place in ((movement.origin, -50.0), (movement.target, movement.length + 50.0)):
            x, y = movement.points([place])[0]
            away = np.angle(np.exp(1j * (np.arctan2(y, x) - road_angle(road, n_roads))))
            assert abs(away) < 0.1, movement.name
        # A metre of position is a metre on the map, give or take the rounding of curves.
        steps = np.diff(movement.points(np.arange(-20.0, movement.length + 20.0)), axis=0)
        np.testing.assert_allclose(np.hypot(*steps.T), 1.0, atol=0.1)


def test_a_left_turn_at_three_roads_meets_the_three_streams_it_must_yield_to() -> None:
    network = read_network(3)
    zones = {
        zone.other.name: zone for zone in network.zones(network.movements[EGO_ROAD, LEFT_ROAD])
    }
    # The car from the left is crossed first; the one from the right shares the target road; one
    # that turns left into our road crosses too; one that turns right into it never meets us.
    assert set(zones) == {"1-2", "2-0", "2-1"}
    assert zones["1-2"].start < zones["2-1"].start
    assert zones["2-1"].stop > network.movements[EGO_ROAD, LEFT_ROAD].length


def test_a_right_turn_at_three_roads_meets_only_the_stream_from_the_left() -> None:
    network = read_network(3)
    zones = network.zones(network.movements[EGO_ROAD, RIGHT_ROAD])
    assert [zone.other.name for zone in zones] == ["1-2"]


@pytest.mark.parametrize("n_roads", N_ROADS)
def test_paths_are_close_inside_a_zone_and_apart_before_it(n_roads: int) -> None:
    network = read_network(n_roads)
    ego = network.movements[EGO_ROAD, LEFT_ROAD]
    for zone in network.zones(ego):
        inside = ego.points(np.linspace(zone.start, zone.stop, 20))
        others = zone.other.points(np.linspace(zone.other_start, zone.other_stop, 80))
        gaps = np.linalg.norm(inside[:, None] - others[None], axis=-1)
        assert gaps.min() < 2.2
        before = ego.points([zone.start - 1.0])
        reach = zone.other.points(np.linspace(0, zone.other.length, 200))
        assert np.linalg.norm(before - reach, axis=-1).min() > 1.8


@pytest.mark.parametrize("n_roads", [2, 7])
def test_other_numbers_of_roads_are_refused(n_roads: int) -> None:
    with pytest.raises(OptionError, match="3 to 6 roads"):
        read_network(n_roads)


@pytest.mark.skipif(
    find_netconvert() is None, reason="netconvert comes with eclipse-sumo, which is not installed"
)
@pytest.mark.parametrize("n_roads", N_ROADS)
def test_the_shipped_networks_are_what_netconvert_builds(n_roads: int, tmp_path: Path) -> None:
    build_network(n_roads, tmp_path / "built.net.xml")
    assert (tmp_path / "built.net.xml").read_bytes() == network_path(n_roads).read_bytes()


def test_without_netconvert_one_sentence_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossroad_network, "find_netconvert", lambda: None)
    with pytest.raises(NetworkBuildError, match="pip install eclipse-sumo"):
        build_network(3, tmp_path / "x.net.xml")
    assert not list(tmp_path.iterdir())


def test_a_failing_netconvert_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossroad_network, "find_netconvert", lambda: "false")
    with pytest.raises(NetworkBuildError, match="netconvert failed"):
        build_network(3, tmp_path / "x.net.xml")
