"""Requests of a learner as plain data: sequences, transitions or whole episodes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

import numpy as np

from ..base.number_checks import check_whole
from ..storage.episode_filter import Where

if TYPE_CHECKING:  # loaded when something is drawn
    from .batch import Batch, TransitionBatch

Draw: TypeAlias = Literal["steps", "distinct", "episodes", "ends", "recent", "newest", "priorities"]
"""The way items are drawn.

``"steps"``: uniformly over all items. ``"distinct"``: the same, without repeats in a batch.
``"episodes"``: an episode uniformly, then uniformly within it. ``"ends"``: uniformly over the items
that reach the row with which the env ended an episode. ``"recent"``: the newer of two uniform
draws, so that the k-th oldest of n has the probability (2 k - 1) / n^2. ``"newest"``: items not
returned in this mode yet, the oldest first, so that every stored row comes about once; uniformly
where none is left. ``"priorities"``: in proportion to priorities, by first row; see
`SequenceReplayBuffer.update_priorities`.
"""

Borders: TypeAlias = Literal["inside", "cross", "pad_after", "pad_before"]
"""The behaviour of sequences at the borders of episodes.

``"inside"``: it is part of one episode. ``"cross"``: it continues with the stream's next episode,
marked by ``is_first``. ``"pad_after"``: it begins at any row, and after the episode's last row
come rows of zeros where ``mask`` is False. ``"pad_before"``: it ends at any row, and such rows
come before the episode's first row.
"""

Align: TypeAlias = Literal["arrival", "transition"]
"""The reward and flags in row t, next to ``observation[:, t]`` and the action chosen from it:
``"arrival"`` for those that came with the observation, ``"transition"`` for the results of the
action."""

Goals: TypeAlias = Literal["future", "final", "episode"]
"""The row whose achieved goal takes the place of a desired goal.

``"future"``: uniformly one of those after the transition's first row, up to the last stored row of
its episode. ``"final"``: that last row. ``"episode"``: uniformly any stored row of the episode
but its first one: a goal counts as achieved by the step that leads to it.
"""


class Hindsight(NamedTuple):
    """Relabelled goals: some transitions get a goal that was achieved later in their episode.

    Hindsight experience replay: Andrychowicz et al., 2017, arXiv:1707.01495. It needs observations
    of a Dict space with ``achieved_goal`` and ``desired_goal`` of one shape and dtype. In a
    relabelled transition both observations have the new ``desired_goal``, and the reward is that of
    the new goal: ``compute_reward`` is called once for the batch, by the thread that draws. All
    else is as stored, ``terminated`` and ``discount`` too.

    Args:
        compute_reward: Returns the rewards [n] for ``(achieved_goal, desired_goal, infos)``: arrays
            ``[n, ...]``, nested like the goals, and a list of n dicts of the stored info fields.
            ``achieved_goal`` and ``infos`` are those after the step, as in ``env.compute_reward``.
        strategy: The goals: ``"future"``, ``"final"`` or ``"episode"``; see `Goals`.
        n_sampled_goal: Relabelled transitions for each one that keeps its goal, a number >= 0: with
            4, four of five are relabelled. Of a batch to which that does not apply exactly the
            number is rounded up or down at random.

    Example:
        >>> import numpy as np
        >>> def compute_reward(achieved_goal, desired_goal, infos):
        ...     return -(np.abs(achieved_goal - desired_goal).max(axis=-1) > 0.05).astype(float)
        >>> Transitions(256, relabel=Hindsight(compute_reward)).relabel.strategy
        'future'
    """

    compute_reward: Callable[[Any, Any, list[Mapping[str, Any]]], Any]
    strategy: Goals = "future"
    n_sampled_goal: float = 4


BatchT = TypeVar("BatchT", bound="Batch | TransitionBatch")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class BatchRequest(Protocol[BatchT_co]):
    """A request: `Sequences`, `Transitions` or `Episodes`."""

    @property
    def batch_type(self) -> type[BatchT_co]:
        """The type of the batches."""
        ...


class Sequences(NamedTuple):
    """Sequences of rows; see `SequenceReplayBuffer.sample_sequences` for the arguments."""

    batch_size: int
    length: int
    borders: Borders = "inside"
    draw: Draw = "steps"
    align: Align = "arrival"
    burn_in: int = 0
    stack: bool = False
    fields: Sequence[str] | None = None
    state: Sequence[str] = ()
    time_major: bool = False
    beta: float = 0.4
    where: Where | None = None

    @property
    def batch_type(self) -> type[Batch]:
        """The type of the batches."""
        from .batch import Batch

        return Batch


class Transitions(NamedTuple):
    """Transitions; see `SequenceReplayBuffer.sample_transitions` for the arguments."""

    batch_size: int
    n_step: int = 1
    gamma: float = 0.99
    draw: Draw = "steps"
    stack: bool = True
    fields: Sequence[str] | None = None
    beta: float = 0.4
    where: Where | None = None
    relabel: Hindsight | None = None

    @property
    def batch_type(self) -> type[TransitionBatch]:
        """The type of the batches."""
        from .batch import TransitionBatch

        return TransitionBatch


class Episodes(NamedTuple):
    """Whole episodes; see `SequenceReplayBuffer.sample_episodes` for the arguments."""

    batch_size: int
    align: Align = "arrival"
    stack: bool = False
    fields: Sequence[str] | None = None
    time_major: bool = False
    where: Where | None = None

    @property
    def batch_type(self) -> type[Batch]:
        """The type of the batches."""
        from .batch import Batch

        return Batch


Request: TypeAlias = "Sequences | Transitions | Episodes"


_MEANT = {
    "length": "T chunk_len horizon seq_len seq_length sequence_length steps",
    "n_step": "multi_step n_step_return n_steps nstep",
    "batch_size": "B batch n num num_samples size",
    "steps": "max_steps n n_steps num_steps timesteps total_steps total_timesteps",
    "episodes": "max_episodes n_episodes num_episodes",
    "capacity": "buffer_size max_size maxlen n size",
    "capacity_bytes": "max_bytes",
    "path": "dir directory file folder root",
    "priority_alpha": "alpha",
    "gamma": "discount discount_factor",
    "where": "condition filter filter_meta",
    "fields": "columns keys",
    "draw": "mode prioritized priority sampler",
    "rng": "generator random_state seed",
    "burn_in": "burnin warmup",
}
# Values of `draw`, `borders` and `align`.
_VALUES = {
    "steps": "random uniform",
    "distinct": "unique without_replacement",
    "newest": "last latest online",
    "priorities": "per prioritised prioritized priority proportional",
    "inside": "none strict",
    "pad_after": "pad padded post right",
    "pad_before": "left pre",
}


def let_through(owner: type, *names: str) -> None:
    """Let calls without arguments that these methods need reach `refuse_keywords` in them."""
    for method in (getattr(owner, name) for name in names):
        method.__signature__ = inspect.signature(method)  # to readers they are required
        method.__defaults__ = (None,) * (method.__code__.co_argcount - 1)


def refuse_keywords(
    method: str, wrong: Mapping[str, object], known: Sequence[str], more: Sequence[object] = ()
) -> None:
    """Refuse keyword arguments that a method does not have, with the name that was meant."""
    if more:  # arguments that were given without their names
        raise TypeError(
            f"{method}: expected the names of the arguments {', '.join(known)}, got "
            f"{', '.join(map(repr, more))}; did you mean {known[0]}={more[0]!r}?"
        )
    for name, value in wrong.items():
        meant = [right for right in known if name in _MEANT.get(right, "").split()]
        cure = f"did you mean {meant[0]}?" if meant else "leave it out"
        raise TypeError(
            f"{method}: expected the arguments {', '.join(known)}, got {name}={value!r}; {cure}"
        )


def check_priority_alpha(alpha: float) -> None:
    """Refuse an exponent of priorities that is not a number from 0 to 20."""
    if not (_is_number(alpha) and 0 <= alpha <= 20):
        raise ValueError(
            f"priority_alpha: expected a number from 0 to 20, got {alpha!r}; 0 draws uniformly, 1 "
            f"in proportion to the priorities"
        )


def check_new_priority(priority: float | None) -> None:
    """Refuse a priority of new items that is neither None nor a number from 0 to 1e13."""
    if priority is not None and not (_is_number(priority) and 0 <= priority <= 1e13):
        raise ValueError(
            f"new_priority: expected a number from 0 to 1e13, or None for the largest priority "
            f"that is stored, got {priority!r}"
        )


def check_request(request: Request) -> None:
    """Refuse a request that is invalid for any data."""
    check_whole("batch_size", request.batch_size, 1)
    if not isinstance(request, Transitions):
        _check_one_of("align", request.align, get_args(Align))
    if not isinstance(request, Episodes):
        _check_draw(request.draw, request.beta, request.where)
    if isinstance(request, Sequences):
        _check_sequences(request)
    elif isinstance(request, Transitions):
        check_whole("n_step", request.n_step, 1)
        if not (_is_number(request.gamma) and 0 <= request.gamma <= 1):
            raise ValueError(f"gamma: expected a number from 0 to 1, got {request.gamma!r}")
        if request.relabel is not None:
            _check_hindsight(request.relabel)


def _check_sequences(request: Sequences) -> None:
    check_whole("length", request.length, 1)
    check_whole("burn_in", request.burn_in, 0)
    _check_one_of("borders", request.borders, get_args(Borders))
    if request.borders == "cross":
        if request.draw in ("episodes", "ends"):
            raise ValueError(
                f"draw={request.draw!r}: expected sequences that lie in one episode, got "
                f'borders="cross"; draw "steps" or "recent", or leave borders out'
            )
        if request.where is not None:
            raise ValueError(
                'where: expected sequences that lie in one episode, got borders="cross"; leave one '
                "of the two out"
            )
    elif request.borders != "inside" and request.draw == "newest":
        raise ValueError(
            f'draw="newest": expected borders "inside" or "cross", got {request.borders!r}; what '
            f"is padded now may have rows later: leave borders out"
        )


def require_request(request: object, others: Mapping[str, object] | None = None) -> None:
    """Refuse an object that is not a request; ``others`` are keywords that were given."""
    if not isinstance(request, Sequences | Transitions | Episodes):
        raise TypeError(
            f"request: expected Sequences, Transitions or Episodes, got "
            f"{', '.join(others or [type(request).__name__])}; "
            f"sample(32) of other libraries is sample_transitions(32)"
        )


def _check_draw(draw: str, beta: float, where: Where | None) -> None:
    _check_one_of("draw", draw, get_args(Draw))
    if where is not None and draw in ("newest", "priorities"):
        raise ValueError(
            f"where: expected a draw without a state, got draw={draw!r}; leave one of the two out"
        )
    if not (_is_number(beta) and 0 <= beta < float("inf")):
        raise ValueError(f"beta: expected a number >= 0, got {beta!r}")


def _check_hindsight(relabel: Hindsight) -> None:
    if not isinstance(relabel, Hindsight):
        raise ValueError(
            f"relabel: expected Hindsight(compute_reward), got {type(relabel).__name__}; make one"
        )
    if not callable(relabel.compute_reward):
        raise ValueError(
            f"compute_reward: expected a function of achieved_goal, desired_goal and infos, got "
            f"{relabel.compute_reward!r}; pass env.unwrapped.compute_reward"
        )
    _check_one_of("strategy", relabel.strategy, get_args(Goals))
    number = relabel.n_sampled_goal
    if not (_is_number(number) and number >= 0):
        raise ValueError(f"n_sampled_goal: expected a number >= 0, got {number!r}")


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return is_number and not isinstance(value, bool)


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if isinstance(value, str) and value in allowed:
        return
    text = str(value).lower()
    meant = [each for each in allowed if text in _VALUES.get(each, "").split()]
    meant += difflib.get_close_matches(text, allowed, 1, 0.7)
    cure = f"; did you mean {meant[0]}?" if meant else ""
    raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}{cure}")
