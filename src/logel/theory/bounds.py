"""The paper's finite-sample bounds on the recovered weights, as plain functions.

Each function names the lemma or theorem of the paper's appendix that it computes. As printed,
several of them are not quite bounds, for three reasons that the functions make visible:

* Hoeffding's inequality is applied to one entry of the Jacobian and used for all d * q of them at
  once. `union=True` pays for all entries (and for all events that must hold together, where a
  theorem combines several); it is the valid version. `union=False`, the default, is the formula
  as printed.
* `bound`, the paper's M, enters Hoeffding's inequality as the *width* of the interval that the
  entries of a one-episode Jacobian estimate lie in. If all you know is |entry| <= M, pass 2 M.
* The theorems assume that the estimated and the true Jacobian have the same rank. One-hot
  features leave a direction of the weights unidentified (the gauge); the true Jacobian is then
  rank-deficient, a sampled one usually is not, and the bounds say nothing. Remove the gauge first.

`confidence` is 1 - delta throughout, and the learning rate is 1: divide delta by the rate first.
These bounds are loose, often by orders of magnitude; what they tell is how the error scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logel.errors import OptionError, check_gamma
from logel.types import Float


class MultiStepBound(NamedTuple):
    """The two parts of the multi-step bound; their sum bounds the error of the weights.

    Attributes:
        vanishing: the part that shrinks like 1 / sqrt(m) with the number of steps m.
        bias: the part that only more episodes per stage can shrink: noise in the regressors.
    """

    vanishing: float
    bias: float


@dataclass(frozen=True)
class _Spectrum:
    """What the perturbation lemma needs to know about a Jacobian and the weights."""

    shape: tuple[int, int]  # (d, q)
    smallest: float  # nonzero singular value: the norm divided by the condition number
    weight_norm: float  # of the identified part
    y_norm: float  # 0 at full column rank, where Wedin's last term vanishes

    @classmethod
    def of(cls, jacobian: ArrayLike, weights: ArrayLike) -> _Spectrum:
        matrix = _finite(jacobian, "jacobian", "(d, q)")
        d, q = matrix.shape
        vector = _weights(weights, q)
        left, singular, right = np.linalg.svd(matrix, full_matrices=False)
        rank = _rank(singular, max(d, q))
        if rank == 0:
            raise OptionError("The Jacobian is zero: one step says nothing about the weights.")
        identified = right[:rank] @ vector
        y = left[:, :rank] @ (identified / singular[:rank])
        y_norm = 0.0 if rank == q else float(np.linalg.norm(y))
        return cls((d, q), float(singular[rank - 1]), float(np.linalg.norm(identified)), y_norm)

    def bound(self, jacobian_error: float, delta_error: float = 0.0) -> float:
        """Lemma `perturbation` (Wedin) without residual, given the errors of both sides."""
        # kappa / (c |J|) = 1 / (c smallest), and c = 1 - jacobian_error / smallest.
        room = self.smallest - jacobian_error
        if room <= 0.0:
            return math.inf
        amplified = (jacobian_error * self.weight_norm + delta_error) / room
        return amplified + jacobian_error * self.y_norm


def jacobian_concentration(
    n_episodes: int,
    *,
    bound: float,
    n_parameters: int,
    n_features: int,
    confidence: float,
    union: bool = False,
) -> float:
    """How far the estimated Jacobian may be from the true one: lemma `boundgradient`.

    M sqrt(q d) sqrt(log(2 / delta) / (2 n)) in spectral norm, which is at most sqrt(q d) times the
    largest entry; the printed proof applies Hoeffding's inequality as if that entry were chosen in
    advance. `union=True` replaces delta by delta / (q d): right whatever the entries' dependence.
    (The printed value errs by a constant at most: McDiarmid's inequality gives
    M sqrt(q d / (2 n)) (sqrt(1 / 2) + sqrt(log(1 / delta))).)

    Args:
        n_episodes: n, the episodes averaged over.
        bound: M, the width of the interval that every entry of a one-episode estimate lies in.
        n_parameters: d.
        n_features: q.
        confidence: 1 - delta.
        union: whether to pay for all entries at once (valid) or for one (as printed).
    """
    shape = _positive_int(n_parameters, "n_parameters"), _positive_int(n_features, "n_features")
    return _concentration(n_episodes, shape, bound, confidence, union=union)


def one_step_bound(
    jacobian: ArrayLike,
    weights: ArrayLike,
    *,
    n_episodes: int,
    bound: float,
    confidence: float,
    union: bool = False,
) -> float:
    """Error of the weights recovered from one step of known parameters: theorem `finitesampleone`.

    e (kappa |w| / (c |J|) + |y|), with e the error of the Jacobian J (`jacobian_concentration`),
    kappa its condition number over the nonzero singular values, c = 1 - kappa e / |J| and
    y = pinv(J)^T w. The y-term vanishes when J has full column rank. The weights' component in
    the null space of J is unidentified and left out.

    Args:
        jacobian: the true Jacobian (or a plug-in estimate), shape (d, q).
        weights: the learner's weights, shape (q,).
        n_episodes: n, the episodes the Jacobian is estimated from.
        bound: M, see `jacobian_concentration`.
        confidence: 1 - delta.
        union: see `jacobian_concentration`; True is the valid version.

    Returns:
        The bound on the Euclidean error; infinity when c <= 0: the estimated Jacobian could lose a
        direction of the weights altogether. `episodes_needed` says how many episodes avoid it.
    """
    spectrum = _Spectrum.of(jacobian, weights)
    noise = _concentration(n_episodes, spectrum.shape, bound, confidence, union=union)
    return spectrum.bound(noise)


def episodes_needed(
    error: float,
    jacobian: ArrayLike,
    *,
    weights: ArrayLike,
    bound: float,
    confidence: float,
    union: bool = False,
) -> int:
    """The smallest number of episodes for which `one_step_bound` is at most `error`.

    `error` is positive, policy parameters are known, and the remaining arguments are those of
    `one_step_bound`.
    """
    _positive(error, "error")
    spectrum = _Spectrum.of(jacobian, weights)

    def enough(n: int) -> bool:
        noise = _concentration(n, spectrum.shape, bound, confidence, union=union)
        return spectrum.bound(noise) <= error

    # The bound falls with n, so doubling and bisection find the exact integer, without the
    # rounding of a closed form.
    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def multi_step_bound_terms(
    jacobians: ArrayLike,
    weights: ArrayLike,
    *,
    n_episodes: int,
    bound: float,
    confidence: float,
    union: bool = False,
) -> MultiStepBound:
    """Error of the weights recovered from m steps of known parameters: theorem `finitesampletwo`.

    With s the error of one Jacobian (`jacobian_concentration`), the last inequality of the proof
    before its constants are merged:

        vanishing = (|w| / lambda) s (|Psi| + s) sqrt(log(d q) / m)
        bias      = (|w| / lambda) s^2 sqrt(d q)

    The proof scales each of the m blocks by 1 / sqrt(m) (its sub-Gaussian parameters carry a
    1 / m), so here Psi is the stack of the Jacobians divided by sqrt(m) and lambda the smallest
    eigenvalue of Psi^T Psi, the *average* of the J^T J. Without that scaling the bias would vanish
    with m as well, against the paper's remark. The printed theorem also replaces s^2 by s, which
    is weaker while s < 1 and wrong beyond. All this is a rate, not a guarantee: it holds "with
    high probability", up to constants, taken as 1, of which the paper only says that they exist.

    Args:
        jacobians: one Jacobian per step, shape (m, d, q).
        weights: the learner's weights, shape (q,).
        n_episodes: n, the episodes each Jacobian is estimated from.
        bound: M, see `jacobian_concentration`.
        confidence: 1 - delta, of the Jacobians alone; with `union=True` of all m together.
        union: see `jacobian_concentration`.

    Returns:
        Both parts; they are infinite when the stacked Jacobians do not have full column rank.
    """
    stack = _finite(jacobians, "jacobians", "(m, d, q)")
    m, d, q = stack.shape
    vector = _weights(weights, q)
    noise = _concentration(n_episodes, (d, q), bound, confidence, union=union, m=m)
    singular = np.linalg.svd(stack.reshape(-1, q) / math.sqrt(m), compute_uv=False)
    if _rank(singular, stack.size) < q:
        return MultiStepBound(vanishing=math.inf, bias=math.inf)
    largest, smallest = float(singular[0]), float(singular[-1])
    scale = float(np.linalg.norm(vector)) * noise / smallest**2
    rate = math.sqrt(math.log(d * q) / m)
    return MultiStepBound(
        vanishing=scale * (largest + noise) * rate,
        bias=scale * noise * math.sqrt(d * q),
    )


def gaussian_cloning_error(
    n_pairs: int, *, sigma: float, rank: int, eta: float, confidence: float, printed: bool = False
) -> float:
    """Error of the cloned parameters of a linear Gaussian policy: lemma `MLE`.

    The printed formula is sigma sqrt((r + log(1 / delta)) / (n eta)). Two things about it:

    * The lemma takes eta from S^T S, for the (n, r) matrix S of state features, the theorem it
      rests on (`fixeddesign`) from S^T S / n, which differs by a factor n under the root. Only the
      second is right: the covariance of the estimate is sigma^2 (S^T S)^-1.
    * The theorem hides a constant: the squared norm of the projected noise is sigma^2 times a
      chi-square variable with r degrees of freedom, whose quantile exceeds r + log(1 / delta)
      (r = 10, delta = 0.05: 18.3 against 13.0). The default uses the valid tail of Laurent and
      Massart, r + 2 sqrt(r log(1 / delta)) + 2 log(1 / delta).

    The states are taken as fixed; that in a trajectory they depend on earlier actions, neither
    version accounts for.

    Args:
        n_pairs: n, the number of state-action pairs.
        sigma: standard deviation of the policy's actions.
        rank: r, the rank of S.
        eta: smallest nonzero eigenvalue of S^T S / n.
        confidence: 1 - delta.
        printed: use the formula as printed, which is not a bound (see above).
    """
    _positive_int(n_pairs, "n_pairs")
    _positive_int(rank, "rank")
    log_term = -math.log(_delta(confidence))
    tail = rank + log_term
    if not printed:
        tail += 2.0 * math.sqrt(rank * log_term) + log_term
    return _positive(sigma, "sigma") * math.sqrt(tail / (n_pairs * _positive(eta, "eta")))


def cloned_one_step_bound(
    jacobian: ArrayLike,
    weights: ArrayLike,
    *,
    n_episodes: int,
    n_pairs: int,
    horizon: int,
    gamma: float,
    bound: float,
    state_bound: float,
    reward_bound: float,
    sigma: float,
    rank: int,
    eta: float,
    confidence: float,
    union: bool = False,
) -> float:
    """Error of the weights recovered from one step of cloned policies: `finitesamplegeneral`.

    For the REINFORCE estimator and linear Gaussian policies. The theorem is stated with O(...);
    this is the last line of its proof that has constants:

        e (|w| / (c s) + |y|) + 2 b / (c s)

    with b the error of each of the two cloned parameter vectors (`gaussian_cloning_error`), s the
    smallest nonzero singular value of the Jacobian, c = 1 - e / s and y as in `one_step_bound`;
    e is the error of the Jacobian by lemma `differencesgrad`, `jacobian_concentration` plus
    b T M_S^2 M_R / ((1 - gamma) sigma^2). (The proof prints the second term twice, before and
    after bounding it; it counts once.)

    Args:
        jacobian: the true Jacobian (or a plug-in estimate), shape (d, q).
        weights: the learner's weights, shape (q,).
        n_episodes: the episodes the Jacobian is estimated from.
        n_pairs: the state-action pairs each policy is cloned from, usually n_episodes * horizon.
            The paper writes n for the episodes and for the pairs.
        horizon: T, steps per episode.
        gamma: discount factor, in [0, 1).
        bound: M, see `jacobian_concentration`.
        state_bound: M_S, bound on the Euclidean norm of the state features.
        reward_bound: M_R, bound on the Euclidean norm of the reward features.
        sigma: standard deviation of the policy's actions.
        rank: rank of the matrix of state features.
        eta: smallest nonzero eigenvalue of S^T S / n_pairs, see `gaussian_cloning_error`.
        confidence: 1 - delta.
        union: the valid version: all entries of the Jacobian, delta shared between its
            concentration and the two clonings, and the valid cloning error. Otherwise as printed.

    Returns:
        The bound on the Euclidean error; infinity when c <= 0 (see `one_step_bound`).
    """
    spectrum = _Spectrum.of(jacobian, weights)
    check_gamma(gamma)
    # Three events must hold together: the concentration and two clonings.
    share = 1.0 - _delta(confidence) / (3 if union else 1)
    sampling = _concentration(n_episodes, spectrum.shape, bound, share, union=union)
    cloning = gaussian_cloning_error(
        n_pairs, sigma=sigma, rank=rank, eta=eta, confidence=share, printed=not union
    )
    # How much REINFORCE moves per unit of error in the policy parameters.
    scores = _positive_int(horizon, "horizon") * _positive(state_bound, "state_bound") ** 2
    sensitivity = scores / sigma**2 * _positive(reward_bound, "reward_bound") / (1 - gamma)
    return spectrum.bound(sampling + cloning * sensitivity, 2.0 * cloning)


def _concentration(
    n_episodes: int,
    shape: tuple[int, int],
    bound: float,
    confidence: float,
    *,
    union: bool,
    m: int = 1,
) -> float:
    """Hoeffding's inequality for one entry of one Jacobian, or for all entries of m of them."""
    n, entries = _positive_int(n_episodes, "n_episodes"), shape[0] * shape[1]
    delta = _delta(confidence) / (m * entries if union else 1)
    return _positive(bound, "bound") * math.sqrt(entries * math.log(2.0 / delta) / (2.0 * n))


def _rank(singular: NDArray[np.floating], size: int) -> int:
    """Numerical rank, with the cut of `numpy.linalg.matrix_rank`."""
    cut = float(singular[0]) * size * float(np.finfo(np.float64).eps)
    return int((singular > cut).sum())


def _finite(values: ArrayLike, name: str, shape: str) -> Float:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != shape.count(",") + 1 or 0 in array.shape or not np.isfinite(array).all():
        raise OptionError(f"{name} must be finite and have shape {shape}, got shape {array.shape}.")
    return array


def _weights(weights: ArrayLike, n_features: int) -> Float:
    vector = np.asarray(weights, dtype=np.float64)
    if vector.shape != (n_features,) or not np.isfinite(vector).all():
        raise OptionError(
            f"weights must be {n_features} finite numbers, one per column of the Jacobian, "
            f"got {vector!r}."
        )
    return vector


def _delta(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise OptionError(
            f"confidence is a probability strictly between 0 and 1 (0.95, not 95 or 0.05 for "
            f"delta), got {confidence}."
        )
    return 1.0 - confidence


def _positive(value: float, name: str) -> float:
    if not (value > 0.0 and math.isfinite(value)):
        raise OptionError(f"{name} must be a positive finite number, got {value}.")
    return value


def _positive_int(value: int, name: str) -> int:
    if value < 1:
        raise OptionError(f"{name} must be at least 1, got {value}.")
    return value
