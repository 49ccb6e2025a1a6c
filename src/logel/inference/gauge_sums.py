"""Which combinations of the features leave every advantage at zero: found exactly, in one pass.

A reward moves no learner that follows advantages if and only if it is a potential: there is a
function f of the state with

    E[phi(s, a, s') @ v] = f(s) - gamma E[f(s')]     for all pairs (s, a), f = 0 after termination.

Constants are (f = 1 / (1 - gamma), unless episodes can be ended), combinations that are always zero
are (f = 0), and with gamma = 0 so is whatever depends on the state alone. If the length of the
episodes is the learner's own horizon, f depends on the time as well and is zero at the end.

Transitions are sampled, but shaping is paid per transition, so that the equation holds for averages
over any transitions: frequencies as they are serve better than smoothed ones. Where states are few
it is checked pair by pair: phi @ v is a potential on the pairs seen if and only if its advantages
under any one policy that takes them all vanish, and the learner's own actions, pooled, are such a
policy. Elsewhere f is sought among quadratics of the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse

from logel.data.observations import as_numbers, width
from logel.data.stage import Stage
from logel.inference.endings import Endings
from logel.inference.gauge import FeatureMoments, Gauge, orthonormal_rows
from logel.types import Array, Float
from logel.worlds.base import row_keys
from logel.worlds.critic import products

Index = npt.NDArray[np.int64]

CONSTANT = "it is constant along every trajectory"
ZERO = "it is zero along every trajectory"
DEPENDENT = f"{ZERO}, each of these features being a combination of the others"
STATE_ALONE = "it depends on the state alone, and this learner looks no further (gamma is 0)"
POTENTIAL = "it telescopes along every trajectory, as a potential of the states does"
NO_CHOICE = "what is collected of it from any time on does not depend on the actions"
NOBODY = "it has no effect for any of the learners"
SOMEBODY = "it has no effect in one group or the other"

# Beyond this many states (or states and times) the value of each by itself takes too long: one
# dense solve of that size is a second.
_MOST_STATES = 2000
_MOST_ACTIONS = 1 << 20
# What follows a pair besides a state: nothing (termination, or the horizon), or nobody saw it.
_END, _UNKNOWN = _MOST_STATES, -1
# A horizon whose discounted end is less than this is none: the pooled worlds cut there, too.
_NO_HORIZON = 1e-6
# Advantages this small, in units of the features' spread, are rounding.
_ROUNDING = 1e-9
# Numbers in an observation up to which their products, and their squares, are potentials to try:
# about 150 functions in both cases.
_MOST_CROSSED, _MOST_SQUARED, _MOST_LINEAR = 16, 75, 150
_ROWS_AT_ONCE = 8192
# Rows per unknown below which a potential would fit by accident.
_ROWS_PER_NUMBER = 3


class GaugeSums:
    """Streams stages (with features) into what their gauge needs.

    Args:
        gamma: The learner's discount factor.
        legal: Maps N observations to which actions are legal in each, (N, n_actions), or to None
            if all are: where only one is, that no other was taken means nothing.
    """

    def __init__(self, gamma: float, legal: Callable[[Array], Array | None] | None = None) -> None:
        self.gamma, self._legal = gamma, legal
        self.moments, self._endings = FeatureMoments(), Endings()
        self._coarse = False
        self._cut_lengths: set[int] = set()
        self._longest = 0
        self._states, self._actions = _Names(_MOST_STATES), _Names(_MOST_ACTIONS)
        self._cells = _Names(_MOST_STATES)
        self._forever, self._timed = _Pairs(gamma), _Pairs(gamma)
        self._rows = _Rows(gamma)

    def add(self, stage: Stage) -> None:
        """Include a stage."""
        assert stage.features is not None
        self.moments.add(stage)
        self._endings.add(stage)
        self._coarse |= stage.features.dtype == np.float32
        self._cut_lengths.update(stage.lengths[~stage.terminated].tolist())
        self._longest = max(self._longest, int(stage.lengths.max()))
        self._rows.add(stage, self._only_constants)
        if self._forever.open:
            self._add_pairs(stage, stage.features.astype(float) - self.moments.origin)

    def gauge(self, names: tuple[str, ...], *, bootstrap: bool | None) -> Gauge:
        """What no data can tell.

        Args:
            names: Of the features.
            bootstrap: Whether life goes on, for the learner, where episodes are cut off. False
                takes the length of the episodes for its own horizon. None allows for both: only
                what is silent either way.
        """
        constant = self.moments.constant_directions()
        if bootstrap is None:
            one, two = (self.gauge(names, bootstrap=b).directions for b in (True, False))
            return self._told(names, _common(one, two), constant, forever=True)
        # A horizon whose end hardly counts is none; and none is met where every episode terminates.
        forever = bootstrap or self.gamma ** min(self._cut_lengths, default=np.inf) <= _NO_HORIZON
        return self._told(names, self._potentials(forever), constant, forever=forever)

    def _add_pairs(self, stage: Stage, paid: Float) -> None:
        """Include a stage in the tables, if there can be any."""
        here, last = self._states(stage.observations), self._states(_last_observations(stage))
        # Real actions are all different: no two rows would ever be compared.
        does = self._actions(stage.actions) if stage.signature.discrete_actions else None
        if here is None or does is None or last is None:
            self._forever.close()
            self._timed.close()
            return
        ends = stage.starts + stage.lengths - 1
        after = np.roll(here, -1)
        after[ends] = _UNKNOWN if stage.last_observations is None else last
        after[ends[stage.terminated]] = _END
        known = (after != _UNKNOWN) | (self.gamma == 0)
        legal = None if self._legal is None else self._legal(stage.observations)
        forced = np.zeros(len(here), dtype=bool) if legal is None else legal.sum(axis=1) == 1
        self._forever.add(here[known], does[known], after[known], paid[known])
        self._forever.forced.update(here[forced].tolist())
        # States at different times are different states, and nothing follows the last.
        now = self._cells(np.stack([stage.times, here], axis=1))
        if now is None or not self._fixed_horizon:
            self._timed.close()
            return
        then = np.roll(now, -1)
        then[ends] = _END
        self._timed.add(now, does, then, paid, self.gamma**stage.times)
        self._timed.forced.update(now[forced].tolist())

    @property
    def _fixed_horizon(self) -> bool:
        """Whether all episodes that were cut off have one length, and no other is longer."""
        return len(self._cut_lengths) <= 1 and self._longest <= min(
            self._cut_lengths, default=self._longest
        )

    def _potentials(self, forever: bool) -> Float:
        """Directions whose features are a potential, rows."""
        pairs = self._forever if forever else self._timed
        if pairs.telling:
            # Without termination a constant is silent, and far from zero it would cost digits.
            origin = self.moments.origin * self.moments.any_terminated
            return self._null(pairs.advantages(origin))
        if forever and self._rows.telling:
            return self._null(self._rows.left())
        return np.zeros((0, len(self.moments.scale)))

    def _only_constants(self, left: Float) -> bool:
        """Whether nothing but constants can be silent any more."""
        return len(self._null(left)) <= len(self.moments.constant_directions())

    def _null(self, rows: Float) -> Float:
        """Directions in which a matrix (n, q) of features vanishes, as rows."""
        scale = self.moments.scale
        _, sizes, right = np.linalg.svd(_triangle(rows / scale))
        return np.asarray(right[sizes <= self._tolerance * np.sqrt(len(rows))] / scale)

    @property
    def _tolerance(self) -> float:
        """Size, in units of the features' spread, that rounding alone can reach."""
        # Features carry the digits of their own size, not of their spread; and solving for values
        # multiplies rounding by the horizon, once for the size of values and once for the solve.
        digits = np.finfo(np.float32 if self._coarse else np.float64).eps
        offset = float((self.moments.largest / self.moments.scale).max())
        return max(_ROUNDING, 8 * float(digits) * offset, 1e-14 / (1 - self.gamma) ** 2)

    def _told(
        self, names: tuple[str, ...], found: Float, constant: Float, *, forever: bool
    ) -> Gauge:
        rows = plain_basis([found, constant], self.moments.scale)
        reasons = tuple(
            self._endings.reason(row, names) or self._reason(row, constant, forever) for row in rows
        )
        return Gauge(names, rows, reasons, np.zeros((0, len(names))))

    def _reason(self, row: Float, constant: Float, forever: bool) -> str:
        """Why a combination is silent: the plainest reason that holds."""
        if np.linalg.norm(row - constant.T @ (constant @ row)) < 1e-6:
            largest = float(np.abs(row) @ self.moments.largest)
            if abs(float(row @ self.moments.mean)) > 1e-9 * largest:
                return CONSTANT
            return ZERO if np.count_nonzero(row) == 1 else DEPENDENT
        if self.gamma == 0:
            return STATE_ALONE
        return POTENTIAL if forever else NO_CHOICE


@dataclass
class _Names:
    """Numbers the different rows of arrays in the order they turn up, as long as they are few."""

    most: int
    known: dict[bytes, int] = field(default_factory=dict)
    too_many: bool = False

    def __call__(self, rows: Array) -> Index | None:
        """The number of every row, or None once there are more than `most` different ones."""
        # A continuous world shows itself in its first rows.
        if not self.too_many and len(rows) > self.most:
            self.too_many = len(np.unique(row_keys(rows[: 2 * self.most]))) > self.most
        if self.too_many:
            return None
        different, inverse = np.unique(row_keys(rows), return_inverse=True)
        number = [self.known.setdefault(key.tobytes(), len(self.known)) for key in different]
        self.too_many = len(self.known) > self.most
        return None if self.too_many else np.array(number, dtype=np.int64)[inverse.reshape(-1)]


@dataclass
class _Sums:
    """Sums of rows that share a key."""

    keys: Index = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rows: Float = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, keys: Index, rows: Float) -> None:
        """Include rows (N, c)."""
        before = self.rows if len(self.keys) else np.zeros((0, rows.shape[1]))
        self.keys, at = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        both = np.concatenate([before, rows])
        columns = [np.bincount(at, weights=c, minlength=len(self.keys)) for c in both.T]
        self.rows = np.stack(columns, axis=1)


class _Pairs:
    """Features and what follows, summed by state and action."""

    def __init__(self, gamma: float) -> None:
        self.gamma, self.open = gamma, True
        self.paid, self.led = _Sums(), _Sums()
        self.discounts: dict[int, float] = {}
        self.forced: set[int] = set()  # states where one action is all there is

    def close(self) -> None:
        """Forget everything: there are too many states."""
        self.open = False
        self.paid, self.led = _Sums(), _Sums()

    def add(
        self, here: Index, does: Index, after: Index, paid: Float, discounts: Float | None = None
    ) -> None:
        """Include rows: state, action, what followed, features; the discount goes by state."""
        if not self.open:
            return
        pair = here * _MOST_ACTIONS + does
        self.paid.add(pair, np.concatenate([paid, np.ones((len(paid), 1))], axis=1))
        # With gamma = 0 it does not matter what followed, nor whether anyone saw it.
        after = np.where(after == _UNKNOWN, _END, after)
        self.led.add(pair * (_END + 1) + after, np.ones((len(paid), 1)))
        if discounts is not None:
            self.discounts.update(zip(here.tolist(), discounts.tolist(), strict=True))

    @property
    def telling(self) -> bool:
        """Whether most was seen in states where more than one action was taken.

        One action alone cannot be compared with others. A state seen once, as all are in a
        continuous world, would make anything a potential. States with one legal action do not
        count: nobody could have taken another. With gamma = 0 states seen again tell as well: what
        one action alone pays there depends on the state alone.
        """
        if len(self.paid.keys) == 0:
            return False
        states, state, actions = self._layout()
        forced = np.isin(states, list(self.forced))[state]
        visits = self.paid.rows[:, -1]
        several = actions[state] > 1
        again = (self.gamma == 0) & (np.bincount(state, weights=visits) > 1)[state]
        told = visits[several | again].sum()
        return bool(several.any() and told >= visits[~forced].sum() / 2)

    def _layout(self) -> tuple[Index, Index, Index]:
        """States acted in, the state of every pair among them, and how many pairs each has."""
        states, state, counts = np.unique(
            self.paid.keys // _MOST_ACTIONS, return_inverse=True, return_counts=True
        )
        return states, state.reshape(-1), counts

    def advantages(self, origin: Float) -> Float:
        """Of every feature in every pair, under the pooled actions, shape (n_pairs, q).

        Values of states nobody acted in are free: what they could explain is taken out. The origin
        is what was subtracted from the features.
        """
        states, state, _ = self._layout()
        n = len(states)
        visits = self.paid.rows[:, -1]
        paid = self.paid.rows[:, :-1] / visits[:, None] + origin
        leads, n_free = self._transitions(states, visits)
        shares = scipy.sparse.csr_matrix(
            (visits / np.bincount(state, weights=visits)[state], (state, np.arange(len(state)))),
            shape=(n, len(state)),
        )
        now = np.concatenate([paid, np.zeros((len(paid), n_free))], axis=1)
        if n_free:
            now[:, paid.shape[1] :] = self.gamma * leads[:, n:].toarray()
        system = np.eye(n) - self.gamma * (shares @ leads[:, :n]).toarray()
        values = np.linalg.solve(system, shares @ now)
        found = now + self.gamma * (leads[:, :n] @ values) - values[state]
        if self.discounts:
            found *= np.array([self.discounts[int(s)] for s in states])[state][:, None]
        return _without(found[:, : paid.shape[1]], found[:, paid.shape[1] :])

    def _transitions(self, states: Index, visits: Float) -> tuple[scipy.sparse.csr_matrix, int]:
        """Frequencies of the next state, (n_pairs, n + n_free), acted in or free."""
        pair, after = np.divmod(self.led.keys, _END + 1)
        row = np.searchsorted(self.paid.keys, pair)
        going = after != _END
        free = np.setdiff1d(after[going], states)
        order = np.concatenate([states, free])
        column = np.argsort(order)[np.searchsorted(np.sort(order), after[going])]
        share = self.led.rows[going, 0] / visits[row[going]]
        shape = (len(visits), len(order))
        return scipy.sparse.csr_matrix((share, (row[going], column)), shape=shape), len(free)


class _Rows:
    """Transitions as rows [x(s) - gamma x(s'), phi], x quadratic in the observation; factored.

    The triangular factor of an orthogonal factorisation is all that is kept: its last block is
    what no potential among the x explains. It can only grow, so that reading may stop as soon as it
    is known to have no null space.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma, self.count, self.settled = gamma, 0, False
        self.factor: Float | None = None
        self.widths: tuple[int, ...] = ()
        self.units: tuple[Float, Float] | None = None

    def add(self, stage: Stage, nothing: Callable[[Float], bool]) -> None:
        """Include a stage, up to where `nothing` says of `left` that no null space is to come."""
        known = np.ones(stage.n_steps, dtype=bool)
        if stage.last_observations is None and self.gamma > 0:
            known[stage.starts + stage.lengths - 1] = stage.terminated
        rows = np.flatnonzero(known)
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            if self.settled:
                return
            block = self._block(stage, rows[at : at + _ROWS_AT_ONCE])
            before = np.zeros((0, block.shape[1])) if self.factor is None else self.factor
            self.factor = _triangle(np.concatenate([before, block]))
            self.count += len(block)
            self.settled = self._width == self.widths[-1] and nothing(self.left())

    def _block(self, stage: Stage, rows: Index) -> Float:
        """Some rows of a stage whose outcome is known."""
        assert stage.features is not None
        states = self._functions(stage.observations, rows)
        if self.gamma > 0:
            after = self._functions(stage.observations, np.minimum(rows + 1, stage.n_steps - 1))
            episode = np.searchsorted(stage.starts, rows, side="right") - 1
            ends = rows + 1 == stage.starts[episode] + stage.lengths[episode]
            after[ends] = self._functions(_last_observations(stage), episode[ends])
            going = ~(ends & stage.terminated[episode])
            states = states - self.gamma * going[:, None] * after
        return np.concatenate([states, stage.features[rows].astype(float)], axis=1)

    def _functions(self, observations: Array, rows: Index) -> Float:
        """One, coordinates, products of two of them: as many as are worth it."""
        n, o = len(rows), width(observations)
        parts = [np.ones((n, 1))]
        if o <= _MOST_LINEAR:
            z = self._coordinates(as_numbers(observations[rows]))
            parts.append(z)
        if o <= _MOST_SQUARED:
            parts.append(products(z, most=_MOST_CROSSED))
        self.widths = tuple(np.cumsum([part.shape[1] for part in parts]).tolist())
        return np.concatenate(parts, axis=1)

    def _coordinates(self, observations: Float) -> Float:
        """Quadratics are the same functions in any units: those of the first rows do."""
        if self.units is None:
            spread = observations.std(axis=0)
            self.units = observations.mean(axis=0), np.where(spread > 0, spread, 1.0)
        centre, scale = self.units
        return (observations - centre) / scale

    @property
    def _width(self) -> int:
        """Functions of the state for which there are rows enough; 0 if for none."""
        if self.factor is None:
            return 0
        q = self.factor.shape[1] - self.widths[-1]
        fit = [w for w in self.widths if self.count >= _ROWS_PER_NUMBER * (w + q)]
        return max(fit, default=0)

    @property
    def telling(self) -> bool:
        """Whether there are rows enough for any potential, and not all were ruled out."""
        return not self.settled and self._width > 0

    def left(self) -> Float:
        """What no potential explains of the features, shape (q, q), of the size of one row each."""
        assert self.factor is not None
        width = self._width
        q = self.factor.shape[1] - self.widths[-1]
        chosen = np.concatenate([self.factor[:, :width], self.factor[:, -q:]], axis=1)
        return np.asarray(_triangle(chosen)[width:, width:] * np.sqrt(q / self.count))


def _triangle(rows: Float) -> Float:
    """The square triangular factor of a matrix (n, k), shape (k, k)."""
    n, k = rows.shape
    padded = np.concatenate([rows, np.zeros((max(k - n, 0), k))])
    return np.asarray(np.linalg.qr(padded, mode="r"))


def _last_observations(stage: Stage) -> Array:
    """The state each episode ended in; where nobody saw it, any that was seen."""
    last = stage.last_observations
    return stage.observations[stage.starts] if last is None else last


def _without(rows: Float, others: Float) -> Float:
    """What the columns of a second matrix cannot explain of the first's."""
    if others.shape[1] == 0:
        return rows
    basis, triangle, _ = scipy.linalg.qr(others, mode="economic", pivoting=True)
    sizes = np.abs(np.diagonal(triangle))
    basis = basis[:, : int((sizes > 1e-10 * sizes.max(initial=0.0)).sum())]
    return np.asarray(rows - basis @ (basis.T @ rows))


def common_gauge(gauges: Sequence[Gauge]) -> Gauge:
    """What is silent for each of several learners; reasons that all of them share are kept."""
    first, *others = gauges
    rows = first.directions
    for other in others:
        rows = _common(rows, other.directions)
    if len(rows) == first.n:
        return first
    rows = plain_basis([rows], np.ones(len(first.feature_names)))
    return Gauge(first.feature_names, rows, NOBODY, first.weak[:0])


def either_gauge(one: Gauge, two: Gauge) -> Gauge:
    """What is silent for one of two."""
    rows = orthonormal_rows(np.concatenate([one.directions, two.directions]), tolerance=1e-4)
    if len(rows) == one.n:
        return one
    if len(rows) == two.n:
        return two
    rows = plain_basis([rows], np.ones(len(one.feature_names)))
    return Gauge(one.feature_names, rows, SOMEBODY, one.weak[:0])


def _common(one: Float, two: Float) -> Float:
    """Directions in the spans of both sets of orthonormal rows."""
    if min(len(one), len(two)) == 0:
        return np.zeros((0, one.shape[1]))
    left, cosines, _ = np.linalg.svd(one @ two.T)
    return np.asarray(left[:, : len(cosines)][:, cosines > 1 - 1e-6].T @ one)


def plain_basis(found: Sequence[Float], scale: Float) -> Float:
    """Orthonormal rows with the span of several sets of rows, of few features each if possible.

    Rotating the rows of a null space among each other changes nothing but how they read. Reduced
    to echelon form, in units of the features' spread, each names the features it needs and no
    others; rows that share none stay as they are when they are made orthogonal.
    """
    sets = [orthonormal_rows(rows * scale) for rows in found]
    # The sets come from different computations: what they share they share up to rounding.
    rows = orthonormal_rows(np.concatenate(sets), tolerance=1e-4)
    pivots: list[int] = []
    for _ in range(len(rows)):
        open_rows = np.setdiff1d(np.arange(len(rows)), pivots)
        row, column = np.unravel_index(np.abs(rows[open_rows]).argmax(), rows[open_rows].shape)
        pivot = int(open_rows[row])
        rows[pivot] /= rows[pivot, column]
        others = np.arange(len(rows)) != pivot
        rows[others] -= np.outer(rows[others, column], rows[pivot])
        pivots.append(pivot)
    rows = np.where(np.abs(rows) < 1e-8, 0.0, rows) / scale
    order = np.lexsort([(rows != 0).argmax(axis=1), np.count_nonzero(rows, axis=1)])
    result: list[Float] = []
    for row in rows[order]:
        for _ in range(2):  # once more against rounding
            for other in result:
                row = row - other * (other @ row)
        result.append(row / np.linalg.norm(row))
    return np.array(result).reshape(-1, len(scale))
