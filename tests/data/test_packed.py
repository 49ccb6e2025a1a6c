"""Arrays that grow by rows."""

from __future__ import annotations

import numpy as np
import pytest

from logel.data.packed import Packed


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_rows_are_those_that_were_added(shape: tuple[int, ...]) -> None:
    made = np.random.default_rng(0).normal(size=(50, *shape))
    packed, at = Packed(), 0
    for n in [1, 1, 3, 0, 20, 25]:
        packed.add(made[at : at + n])
        at += n
    assert len(packed) == 50
    np.testing.assert_array_equal(packed.rows, made)


def test_what_was_given_stays_as_it_was() -> None:
    packed = Packed()
    packed.add([1.0, 2.0])
    before = packed.rows
    for _ in range(100):
        packed.add([3.0])
    assert before.tolist() == [1.0, 2.0] and packed.rows.sum() == 303


def test_no_digit_is_lost_to_what_came_first() -> None:
    packed = Packed()
    packed.add(np.array([0.5], dtype=np.float32))
    packed.add(np.array([0.1]))
    assert packed.rows.tolist() == [0.5, 0.1]
    whole = Packed()
    whole.add([2**60 + 1])
    assert whole.rows.tolist() == [2**60 + 1]


def test_there_is_little_room_beyond_what_is_needed() -> None:
    packed = Packed()
    for _ in range(1000):
        packed.add(np.zeros((1, 4)))
    assert packed.rows.base is not None and packed.rows.base.nbytes <= 1.3 * packed.rows.nbytes
