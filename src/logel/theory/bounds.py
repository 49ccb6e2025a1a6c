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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logel.errors import OptionError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class MultiStepBound:
    """The two parts of the multi-step bound; their sum bounds the error of the weights.

    Attributes:
        vanishing: the part that shrinks like 1 / sqrt(m) with the number of steps m.
        bias: the part that only more episodes per stage can shrink: noise in the regressors.
    """

    vanishing: float
    bias: float

    @property
    def total(self) -> float:
        """The bound itself: the sum of both parts."""
        return self.vanishing + self.bias


@dataclass(frozen=True)
class _Spectrum:
    """What the perturbation lemma needs to know about a Jacobian and the weights.

    Attributes:
        smallest: smallest nonzero singular value (the norm divided by the condition number).
        weight_norm: norm of the weights' identified part.
        y_norm: norm of y, 0 at full column rank, where Wedin's last term vanishes.
    """

    smallest: float
    weight_norm: float
    y_norm: float

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

    M sqrt(q d) sqrt(log(2 / delta) / (2 n)) in spectral norm. The printed proof bounds the norm by
    sqrt(q d) times the largest entry, then applies Hoeffding's inequality as if that entry were
    chosen in advance. `union=True` replaces delta by delta / (q d), which makes the proof right
    whatever the dependence between the entries. (The printed value errs by a constant at most:
    McDiarmid's inequality gives M sqrt(q d / (2 n)) (sqrt(1 / 2) + sqrt(log(1 / delta))).)

    Args:
        n_episodes: n, the episodes averaged over.
        bound: M, the width of the interval that every entry of a one-episode estimate lies in.
        n_parameters: d.
        n_features: q.
        confidence: 1 - delta.
        union: whether to pay for all entries at once (valid) or for one (as printed).
    """
    entries = _positive_int(n_parameters, "n_parameters") * _positive_int(n_features, "n_features")
    delta = _delta(confidence) / (entries if union else 1)
    return _hoeffding(n_episodes, bound=bound, entries=entries, delta=delta)


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
        The bound on the Euclidean error; infinity when c <= 0, that is when the error of the
        Jacobian may reach its smallest singular value, so that the estimate could lose a
        direction of the weights altogether. `episodes_needed` says how many episodes avoid it.
    """
    matrix = _matrix(jacobian)
    error = jacobian_concentration(
        n_episodes,
        bound=bound,
        n_parameters=matrix.shape[0],
        n_features=matrix.shape[1],
        confidence=confidence,
        union=union,
    )
    return _spectrum(matrix, weights).bound(error)


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

    Policy parameters are assumed known. The remaining arguments are those of `one_step_bound`.

    Args:
        error: the Euclidean error of the weights to guarantee, positive.
        jacobian: the true Jacobian (or a plug-in estimate), shape (d, q).
        weights: the learner's weights, shape (q,).
        bound: M, see `jacobian_concentration`.
        confidence: 1 - delta.
        union: see `jacobian_concentration`; True is the valid version.
    """
    _positive(error, "error")
    matrix = _matrix(jacobian)
    spectrum = _spectrum(matrix, weights)
    n_parameters, n_features = matrix.shape

    def enough(n: int) -> bool:
        concentration = jacobian_concentration(
            n,
            bound=bound,
            n_parameters=n_parameters,
            n_features=n_features,
            confidence=confidence,
            union=union,
        )
        return spectrum.bound(concentration) <= error

    # The bound falls with n, so doubling and bisection find the exact integer, without the
    # rounding of a closed form.
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
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
    constant: float = 1.0,
    union: bool = False,
) -> MultiStepBound:
    """Error of the weights recovered from m steps of known parameters: theorem `finitesampletwo`.

    With s the error of one Jacobian (`jacobian_concentration`), the last inequality of the proof
    before its constants are merged:

        vanishing = (|w| / lambda) s (|Psi| + C s) sqrt(log(d q) / m)
        bias      = (|w| / lambda) s^2 sqrt(d q)

    The proof scales each of the m blocks by 1 / sqrt(m) (its sub-Gaussian parameters carry a
    1 / m), so here Psi is the stack of the Jacobians divided by sqrt(m) and lambda the smallest
    eigenvalue of Psi^T Psi, the *average* of the J^T J. Without that scaling the bias would vanish
    with m as well, against the paper's remark. The printed theorem also replaces s^2 by s, which
    is weaker while s < 1 and wrong beyond.

    This is a rate, not a guarantee: the theorem holds "with high probability", up to constants of
    which the paper only says that they exist. C is one of them.

    Args:
        jacobians: one Jacobian per step, shape (m, d, q).
        weights: the learner's weights, shape (q,).
        n_episodes: n, the episodes each Jacobian is estimated from.
        bound: M, see `jacobian_concentration`.
        confidence: 1 - delta, of the concentration of the Jacobians alone. With `union=True` it
            holds for all m of them together.
        constant: C.
        union: see `jacobian_concentration`.

    Returns:
        Both parts; they are infinite when the stacked Jacobians do not have full column rank.
    """
    stack = np.asarray(jacobians, dtype=np.float64)
    if stack.ndim != 3 or 0 in stack.shape or not np.isfinite(stack).all():
        raise OptionError(
            f"jacobians must be finite and have shape (m, d, q), got shape {stack.shape}."
        )
    _positive(constant, "constant")
    n_steps, n_parameters, n_features = stack.shape
    vector = _weights(weights, n_features)
    entries = n_parameters * n_features
    delta = _delta(confidence) / (n_steps * entries if union else 1)
    noise = _hoeffding(n_episodes, bound=bound, entries=entries, delta=delta)
    scaled = stack.reshape(-1, n_features) / math.sqrt(n_steps)
    singular = np.asarray(np.linalg.svd(scaled, compute_uv=False), dtype=np.float64)
    full_rank = n_steps * n_parameters >= n_features and _rank(singular, stack.size) == n_features
    if not full_rank:
        return MultiStepBound(vanishing=math.inf, bias=math.inf)
    largest, smallest = float(singular[0]), float(singular[-1])
    scale = float(np.linalg.norm(vector)) * noise / smallest**2
    rate = math.sqrt(math.log(entries) / n_steps)
    return MultiStepBound(
        vanishing=scale * (largest + constant * noise) * rate,
        bias=scale * noise * math.sqrt(entries),
    )


def gaussian_cloning_error(
    n_pairs: int,
    *,
    sigma: float,
    rank: int,
    eta: float,
    confidence: float,
    printed: bool = False,
) -> float:
    """Error of the cloned parameters of a linear Gaussian policy: lemma `MLE`.

    The printed formula is sigma sqrt((r + log(1 / delta)) / (n eta)). Two things about it:

    * The lemma calls eta the smallest singular value of S^T S, for the (n, r) matrix S of state
      features. The theorem it rests on (`fixeddesign`) divides by n: S^T S / n. The two differ by
      a factor n under the root. Only the second is right, because the covariance of the estimate
      is sigma^2 (S^T S)^-1, so `eta` here is the smallest nonzero eigenvalue of S^T S / n; if you
      have the one of S^T S itself, divide it by n.
    * The theorem hides a constant: the squared norm of the projected noise is sigma^2 times a
      chi-square variable with r degrees of freedom, whose quantile exceeds r + log(1 / delta)
      (r = 10, delta = 0.05: 18.3 against 13.0). The default uses the valid tail of Laurent and
      Massart, r + 2 sqrt(r log(1 / delta)) + 2 log(1 / delta).

    The states are taken as fixed. In a trajectory they depend on the earlier actions, which
    neither version accounts for.

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


def cloned_jacobian_error(
    n_episodes: int,
    *,
    n_pairs: int,
    horizon: int,
    gamma: float,
    bound: float,
    n_parameters: int,
    n_features: int,
    state_bound: float,
    reward_bound: float,
    sigma: float,
    rank: int,
    eta: float,
    confidence: float,
    union: bool = False,
) -> float:
    """Error of the Jacobian when the policy itself is cloned: lemma `differencesgrad`.

    `jacobian_concentration` plus (T M_S^2 M_R / ((1 - gamma) sigma^2)) times the error of the
    cloned parameters (`gaussian_cloning_error`), for the REINFORCE estimator and a linear
    Gaussian policy. The paper writes n for the number of episodes and for the number of pairs;
    here they are two arguments, and n_pairs = n_episodes gives the printed value.

    Args:
        n_episodes: the episodes the Jacobian is estimated from.
        n_pairs: the state-action pairs the policy is cloned from, usually n_episodes * horizon.
        horizon: T, steps per episode.
        gamma: discount factor, in [0, 1).
        bound: M, see `jacobian_concentration`.
        n_parameters: d.
        n_features: q.
        state_bound: M_S, bound on the Euclidean norm of the state features.
        reward_bound: M_R, bound on the Euclidean norm of the reward features.
        sigma: standard deviation of the policy's actions.
        rank: rank of the matrix of state features.
        eta: smallest nonzero eigenvalue of S^T S / n_pairs, see `gaussian_cloning_error`.
        confidence: 1 - delta.
        union: the valid version: all entries of the Jacobian, delta shared between its
            concentration and the cloning, and the valid cloning error. Otherwise as printed.
    """
    sampling, cloning = _cloned_errors(
        n_episodes,
        n_pairs=n_pairs,
        bound=bound,
        n_parameters=n_parameters,
        n_features=n_features,
        sigma=sigma,
        rank=rank,
        eta=eta,
        confidence=confidence,
        n_events=2 if union else None,
    )
    return sampling + cloning * _score_sensitivity(
        horizon=horizon,
        gamma=gamma,
        state_bound=state_bound,
        reward_bound=reward_bound,
        sigma=sigma,
    )


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

    The theorem is stated with O(...); this is the last line of its proof that has constants:

        e (|w| / (c s) + |y|) + 2 b / (c s)

    with e the error of the Jacobian (`cloned_jacobian_error`), b that of each of the two cloned
    parameter vectors (`gaussian_cloning_error`), s the smallest nonzero singular value of the
    Jacobian, c = 1 - e / s and y as in `one_step_bound`. (The proof prints the second term twice,
    before and after bounding it; it counts once.)

    Args:
        jacobian: the true Jacobian (or a plug-in estimate), shape (d, q).
        weights: the learner's weights, shape (q,).
        n_episodes: the episodes the Jacobian is estimated from.
        n_pairs: the state-action pairs each of the two policies is cloned from.
        horizon: T, steps per episode.
        gamma: discount factor, in [0, 1).
        bound: M, see `jacobian_concentration`.
        state_bound: M_S, bound on the Euclidean norm of the state features.
        reward_bound: M_R, bound on the Euclidean norm of the reward features.
        sigma: standard deviation of the policy's actions.
        rank: rank of the matrix of state features.
        eta: smallest nonzero eigenvalue of S^T S / n_pairs, see `gaussian_cloning_error`.
        confidence: 1 - delta.
        union: the valid version, with delta shared between the concentration of the Jacobian and
            the two clonings; otherwise as printed.

    Returns:
        The bound on the Euclidean error; infinity when c <= 0 (see `one_step_bound`).
    """
    matrix = _matrix(jacobian)
    sampling, cloning = _cloned_errors(
        n_episodes,
        n_pairs=n_pairs,
        bound=bound,
        n_parameters=matrix.shape[0],
        n_features=matrix.shape[1],
        sigma=sigma,
        rank=rank,
        eta=eta,
        confidence=confidence,
        n_events=3 if union else None,
    )
    sensitivity = _score_sensitivity(
        horizon=horizon,
        gamma=gamma,
        state_bound=state_bound,
        reward_bound=reward_bound,
        sigma=sigma,
    )
    return _spectrum(matrix, weights).bound(sampling + cloning * sensitivity, 2.0 * cloning)


def _cloned_errors(
    n_episodes: int,
    *,
    n_pairs: int,
    bound: float,
    n_parameters: int,
    n_features: int,
    sigma: float,
    rank: int,
    eta: float,
    confidence: float,
    n_events: int | None,
) -> tuple[float, float]:
    """Errors of the Jacobian at the true parameters and of one cloned parameter vector.

    With `n_events` they are valid, each failing with probability delta / n_events; without it
    they are as printed, each failing (so the paper says) with probability delta.
    """
    valid = n_events is not None
    share = 1.0 - _delta(confidence) / (n_events or 1)
    sampling = jacobian_concentration(
        n_episodes,
        bound=bound,
        n_parameters=n_parameters,
        n_features=n_features,
        confidence=share,
        union=valid,
    )
    cloning = gaussian_cloning_error(
        n_pairs, sigma=sigma, rank=rank, eta=eta, confidence=share, printed=not valid
    )
    return sampling, cloning


def _score_sensitivity(
    *, horizon: int, gamma: float, state_bound: float, reward_bound: float, sigma: float
) -> float:
    """How much REINFORCE moves per unit of error in the policy parameters."""
    if not 0.0 <= gamma < 1.0:
        raise OptionError(f"gamma must be in [0, 1), got {gamma}.")
    _positive_int(horizon, "horizon")
    scores = horizon * _positive(state_bound, "state_bound") ** 2 / _positive(sigma, "sigma") ** 2
    return scores * _positive(reward_bound, "reward_bound") / (1.0 - gamma)


def _hoeffding(n_episodes: int, *, bound: float, entries: int, delta: float) -> float:
    _positive_int(n_episodes, "n_episodes")
    width = _positive(bound, "bound")
    return width * math.sqrt(entries * math.log(2.0 / delta) / (2.0 * n_episodes))


def _spectrum(matrix: FloatArray, weights: ArrayLike) -> _Spectrum:
    vector = _weights(weights, matrix.shape[1])
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    rank = _rank(singular, max(matrix.shape))
    if rank == 0:
        raise OptionError("The Jacobian is zero: one step says nothing about the weights.")
    identified = right[:rank] @ vector
    y = left[:, :rank] @ (identified / singular[:rank])
    return _Spectrum(
        smallest=float(singular[rank - 1]),
        weight_norm=float(np.linalg.norm(identified)),
        y_norm=0.0 if rank == matrix.shape[1] else float(np.linalg.norm(y)),
    )


def _rank(singular: FloatArray, size: int) -> int:
    """Numerical rank, with the cut of `numpy.linalg.matrix_rank`."""
    cut = float(singular[0]) * size * float(np.finfo(np.float64).eps)
    return int((singular > cut).sum())


def _matrix(jacobian: ArrayLike) -> FloatArray:
    matrix = np.asarray(jacobian, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
        raise OptionError(
            f"jacobian must be finite and have shape (d, q), got shape {matrix.shape}."
        )
    return matrix


def _weights(weights: ArrayLike, n_features: int) -> FloatArray:
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
