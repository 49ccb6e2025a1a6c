"""The search for a reward that nobody named: look, dictionary, the learner's rule, answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import IdentificationError, check_gamma
from logel.inference.dictionary import Dictionary, shifted, widened
from logel.inference.functions import function_steps
from logel.inference.gauge import FeatureMoments
from logel.inference.hidden_path import hear_path
from logel.inference.hidden_replay import hear_replay
from logel.inference.masked import allowing
from logel.inference.method import METHODS, Coordinates, Method
from logel.inference.null import shortness
from logel.inference.passes import basis_sums, stage_parameters
from logel.inference.single import Heard, judged
from logel.inference.unexplained import Unexplained
from logel.inference.watched import Look, Watched
from logel.policies.base import Policy
from logel.policies.choose import choose_common_policy
from logel.replay.learner import Learner
from logel.rules.functions import LARGEST_WIDTH, Basis, StateFeatures
from logel.threads import limited_threads
from logel.types import FeatureFunction, Float, Progress
from logel.workers import Executor, Workers, opened
from logel.worlds.known import KnownWorld, known_world

_NOT_REPLAYED = (
    "without the learner's own episodes its update is not replayed beside the dictionary: mirror "
    "descent stands for it, and what a lagging critic does may look hidden"
)


@limited_threads()
def find_unexplained(
    history: LearningHistory,
    weights: Float,
    config: Mapping[str, Any],
    policy: Policy | None = None,
    *,
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    learner: Learner | None = None,
    world: KnownWorld | Any = None,
    progress: Progress | None = None,
    workers: int | Workers | Executor = 1,
) -> Unexplained:
    """See `RewardEstimate.unexplained`; `weights` and `config` are the estimate's."""
    if len(history) < 2:
        raise IdentificationError("one stage shows no learning: there is nothing to explain")
    if policy is None:
        policy = choose_common_policy({"history": history}, "auto", known=use_parameters)
    history, policy, features = allowing(history, policy, features)
    gamma, seed = check_gamma(float(config["gamma"])), int(config.get("seed", 0))
    report = progress or (lambda what, done, total: None)
    watched = Watched(
        *(history, policy, gamma, features, use_parameters, False, seed, report),
        world=None if world is None else known_world(world, policy)[0],
    )
    with opened(workers) as run:
        return _found(replace(watched, run=run), _method(config), weights, learner)


def _found(
    watched: Watched, method: Method, weights: Float, learner: Learner | None
) -> Unexplained:
    """What is heard beside the named features."""
    history, policy, look = watched.history, watched.policy, watched.look
    dictionary = Dictionary.of(watched.stages(), policy)
    wide = widened(watched, dictionary)
    notes: tuple[str, ...] = ()
    if method.coordinates is Coordinates.PATH:
        heard = hear_path(watched, wide, look, method)
    elif method.coordinates is not Coordinates.REPLAY:
        heard = _in_functions(wide, look, METHODS["mirror"])
    elif history.own_episodes and look.parameters is not None:
        heard = hear_replay(watched, wide, method, look.parameters, weights, learner)
    else:
        heard, notes = _in_functions(wide, look, METHODS["mirror"]), (_NOT_REPLAYED,)
    return _answer(heard, wide, dictionary, look, notes)


def _method(config: Mapping[str, Any]) -> Method:
    """What the estimate was made by, as far as it matters here."""
    coordinates = Coordinates(config["coordinates"])
    named = next(m for m in METHODS.values() if m.coordinates is coordinates)
    models = config.get("models")
    return replace(named, models=None if models is None else tuple(models))


def _in_functions(wide: Watched, look: Look, method: Method) -> Heard:
    """Policies as functions, which mirror descent moves along advantages."""
    gauge = look.gauge(bootstrap=method.bootstrap)
    wide = shifted(wide, look.seen.moments.offset())
    parameters, path = stage_parameters(wide, look, method)
    steps = function_steps(
        # Advantages need two groups of episodes; nobody asks for intervals.
        basis_sums(wide, _basis(wide, look), parameters, replace(method, n_groups=4)),
        n_groups=look.groups(4),
        pool=method.pool,
        prior_strength=None if path is None else method.clone.prior_strength,
        rates=wide.history.learning_rates,
    )
    q, p = gauge.identified.shape
    k = (wide.history.signature.n_features or 0) - q
    both = np.zeros((q + k, p + k))
    both[:q, :p], both[q:, p:] = gauge.identified, np.eye(k)
    rates = wide.history.learning_rates
    r = np.ones(steps.steps.n_steps) if rates is None else rates
    grams = steps.steps.projected(both).grams()
    square, inner = r[:, None, None] ** 2 * grams[:, :-1, :-1], r[:, None] * grams[:, :-1, -1]
    weights = np.linalg.pinv(square[:, :p, :p].sum(axis=0), hermitian=True) @ inner[:, :p].sum(0)
    moved = float(grams[:, -1, -1].sum())
    singles = judged(square, inner, gauge.identified, moved=moved, seed=wide.seed)
    return Heard(singles, "mirror", float(np.linalg.norm(weights)))


def _basis(wide: Watched, look: Look) -> Basis:
    """Functions that see as much of the world as they may."""
    basis = Basis.choose(wide.policy, StateFeatures.AUTO, look.scale)
    if basis.states is not StateFeatures.LINEAR:
        return basis
    finer = replace(basis, states=StateFeatures.QUADRATIC)
    return finer if finer.width <= LARGEST_WIDTH else basis


def _answer(
    heard: Heard, wide: Watched, elements: Dictionary, look: Look, notes: tuple[str, ...]
) -> Unexplained:
    """What was heard, beside what was visited."""
    singles, q = heard.singles, len(look.names)
    moments = FeatureMoments()
    for stage in wide.stages():
        moments.add(stage)
    top = int(np.argmax(singles.odds))
    spread = np.sqrt(np.maximum(np.diag(moments.scatter), 1e-300))
    size = max(heard.size, 1e-300)
    if look.parameters is not None or heard.rule == "mirror":
        notes = (*notes, *shortness(len(wide.history) - 1))
    if elements.left_out:
        notes = (*notes, f"{elements.left_out} states that were entered least are left out")
    return Unexplained(
        gain=singles.gain,
        names=elements.names,
        centres=elements.centres,
        discrete=elements.discrete,
        shares=singles.shares,
        amounts=singles.amounts / size,
        errors=singles.errors / size,
        feature_names=look.names,
        alike=singles.alike[top],
        correlations=moments.scatter[q + top, :q] / spread[:q] / spread[q + top],
        entangled=float(singles.entangled[top]),
        rule=heard.rule,
        notes=notes,
    )
