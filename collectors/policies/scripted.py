"""A policy that plays a script."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from ...buffers import Layout, Spec, Tree
from ...buffers.base.number_checks import is_whole
from ...buffers.spec.spec import flatten, unflatten
from ...wrappers.ale_env import action_meanings
from ...wrappers.nes.buttons import action_set, parse_script
from .policy import not_begun

Script: TypeAlias = str | Sequence[tuple[Any, int]]
"""A text such as "NOOP 20, RIGHT+A 60", or pairs of an action, or its name, and a count."""

_Then = Literal["noop", "repeat", "loop"]
_NOOP = "NOOP"
_LONGEST = 10**9  # steps
# Names of Atari's actions, such as UPRIGHTFIRE, which no separator divides.
_JOINED = re.compile(r"(UP|DOWN)?(LEFT|RIGHT)?(FIRE)?")


class ScriptedPolicy:
    """Plays a script of actions from the beginning of each episode, in every env.

    For demonstrations, for tests of an env, and to get to a place in a game. Counts are env steps:
    under ``frame_skip=4`` a step is four frames.

    It is a `RecurrentPolicy`, whose state is the number of steps of the episode. The steps after
    a script's end are played too: record what the script covers by truncating there, or by
    collecting ``steps``.

    Args:
        script: Parts separated by commas or line ends, each an action and a number of steps:
            ``"NOOP 20, START 3, RIGHT+A 60"``. Or a list of pairs, ``[("NOOP", 20), (2, 60)]``,
            with names or actions of the space, also those of a Box.
        actions: Names of the actions: a list in the order of their numbers, a set as in `make_nes`
            (``"simple"``), or the env or envs, if they have ``get_action_meanings``. None: the
            script has actions and no names; in a text, numbers: ``"1 20, 0 5"``. Buttons may be
            in any order, and those of Atari be joined by "+": ``"UP+FIRE"``.
        then: Actions after the script's end, until the episode ends: ``"noop"``, ``"repeat"`` the
            last one, or ``"loop"``: from the script's beginning on.

    Raises:
        ValueError: The script has another form, or is empty; or, when a Collector begins with it,
            a name is unknown, an action is not in the space, or there is no no-op.

    Example:
        >>> import stepwell as sw
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> policy = sw.ScriptedPolicy("right 2, left 1", actions=["left", "right"], then="loop")
        >>> with sw.Collector(envs, policy, seed=0) as collector:
        ...     rollout = collector.rollout(steps=5)
        >>> rollout.action[:, 0].tolist()
        [1, 1, 0, 1, 1]
    """

    def __init__(
        self,
        script: Script,
        *,
        actions: str
        | Sequence[str]
        | gymnasium.Env[Any, Any]
        | VectorEnv[Any, Any, Any]
        | None = None,
        then: _Then = "noop",
    ) -> None:
        if then not in get_args(_Then):
            raise ValueError(
                f"then: expected one of {', '.join(get_args(_Then))}, got {then!r}; take one"
            )
        self._parts = _parts_of(script)
        self._ends = np.cumsum([count for _, count in self._parts])
        self._names = _names_of(actions)
        self._then = then
        self._layout: Layout = ""
        self._rows: dict[str, np.ndarray] | None = None

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Prepare the actions of this space; the generator is not needed.

        Raises:
            ValueError: A name is unknown, an action is not in the space, or there is no no-op.
        """
        chosen = [self._action(action, action_space) for action, _ in self._parts]
        if self._then == "noop":
            chosen.append(self._no_op(action_space))
        space = cast("spaces.Space[Any]", action_space)
        table = concatenate(space, chosen, cast("Any", create_empty_array(space, len(chosen))))
        self._layout = Spec.from_spaces(action_space, action_space).action
        self._rows = dict(cast("Any", flatten(self._layout, table)))

    def initial_state(self, num_envs: int, /) -> np.ndarray:
        """Steps of the episodes so far: [N] zeros."""
        return np.zeros(num_envs, np.int64)

    def __call__(
        self, observation: Any, is_first: np.ndarray, state: np.ndarray, /
    ) -> tuple[Tree, np.ndarray]:
        """The actions ``[n, ...]`` of these steps, and the state after them.

        Raises:
            ValueError: `begin` was not called.
        """
        if self._rows is None:
            raise not_begun("ScriptedPolicy")
        step = state % self._ends[-1] if self._then == "loop" else state
        part = np.searchsorted(self._ends, step, side="right")
        if self._then == "repeat":
            part = np.minimum(part, len(self._ends) - 1)
        actions = {name: rows[part] for name, rows in self._rows.items()}
        return unflatten(self._layout, actions), state + 1

    def _action(self, given: object, space: spaces.Space[Any]) -> Any:
        """An action of the space, of itself or of its name."""
        if isinstance(given, str):
            return self._named(given, space)
        action = given
        if isinstance(space, spaces.Discrete) and is_whole(given):
            action = space.dtype.type(given)
        elif isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
            action = np.asarray(given).astype(space.dtype)
        if not space.contains(action):
            raise ValueError(f"script: expected actions of {space}, got {given!r}; correct it")
        return action

    def _named(self, name: str, space: spaces.Space[Any]) -> Any:
        names, key = self._names, _key(name)
        if isinstance(space, spaces.MultiBinary) and len(names) == space.n:
            numbers = {_key(one): number for number, one in enumerate(names)}
            pressed = [numbers.get(frozenset([button]), -1) for button in key - {_NOOP}]
            if -1 not in pressed:
                bits = np.zeros(space.n, space.dtype)
                bits[pressed] = 1
                return bits
        elif isinstance(space, spaces.Discrete):
            if not names and name.isdecimal():
                return self._action(int(name), space)
            if len(names) not in (0, space.n):
                raise ValueError(
                    f"actions: expected {space.n} names, one for each action of {space}, got "
                    f"{len(names)}; give those of these envs, actions=envs"
                )
            for number, one in enumerate(names):
                if _key(one) == key:
                    return space.dtype.type(space.start + number)
        raise ValueError(self._unknown(name, space))

    def _unknown(self, name: str, space: spaces.Space[Any]) -> str:
        if not self._names:
            return (
                f"script: expected actions of {space}, got the name {name!r}, and no names of "
                f"actions; give these as actions=envs, or as a list"
            )
        upper = {one.upper(): one for one in self._names}
        near = difflib.get_close_matches(name.upper(), upper, n=1)
        return (
            f"script: expected actions out of {', '.join(self._names)} for {space}, got {name!r}; "
            f"{f'did you mean {upper[near[0]]}?' if near else 'take one of them'}"
        )

    def _no_op(self, space: spaces.Space[Any]) -> Any:
        try:
            return self._named(_NOOP, space)
        except ValueError as error:
            raise ValueError(
                f"then='noop': expected an action with the name NOOP in {space}, got none; choose "
                f"then='repeat' or then='loop'"
            ) from error


def _parts_of(script: object) -> list[tuple[Any, int]]:
    """The actions and counts of a script."""
    if isinstance(script, str):
        parts: list[Any] = list(parse_script(script, "script", "steps"))
    elif isinstance(script, list | tuple):
        parts = list(cast("Sequence[Any]", script))
    else:
        raise ValueError(
            f"script: expected a text such as 'NOOP 20, RIGHT+A 60' or a list of pairs such as "
            f"[('NOOP', 20), (3, 60)], got {type(script).__name__}; give one of them"
        )
    for part in parts:
        is_pair = isinstance(part, list | tuple) and len(cast("Sequence[Any]", part)) == 2
        if not is_pair or not is_whole(part[1]) or part[1] < 1:
            raise ValueError(
                f"script: expected pairs of an action and a number of steps, at least 1, such as "
                f"('NOOP', 20), got {part!r}; correct it"
            )
    total = sum(count for _, count in parts)
    if not 1 <= total <= _LONGEST:
        raise ValueError(
            f"script: expected 1 to {_LONGEST:,} steps in all, got {total:,}; make it "
            f"{'longer' if total < 1 else 'shorter'}"
        )
    return [(action, int(count)) for action, count in parts]


def _names_of(actions: object) -> tuple[str, ...]:
    """The names of actions, in the order of their numbers; empty where none are given."""
    if actions is None:
        return ()
    if isinstance(actions, str):
        return action_set(actions).meanings
    if isinstance(actions, VectorEnv | gymnasium.Env):
        names = _names_in(actions)
        if names:
            return names
    elif isinstance(actions, list | tuple):
        given = tuple(cast("Sequence[object]", actions))
        if given and all(isinstance(one, str) for one in given):
            return cast("tuple[str, ...]", given)
    raise ValueError(
        f"actions: expected a list of names, a set such as 'simple', or envs with "
        f"get_action_meanings, got {actions!r}; give the list"
    )


def _names_in(envs: VectorEnv[Any, Any, Any] | gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """The names that envs know; empty for none."""
    if isinstance(envs, gymnasium.Env):
        return tuple(action_meanings(envs))
    inner: Any = envs.unwrapped
    if hasattr(inner, "ale"):  # ale-py's own vector env
        return tuple(action.name for action in inner.ale.get_action_set())
    try:
        return tuple(inner.call("get_action_meanings")[0])
    except AttributeError:
        return ()


def _key(name: str) -> frozenset[str]:
    """The buttons in a name, in no order: those of "UPRIGHTFIRE" are FIRE, RIGHT and UP."""
    found: set[str] = set()
    for part in name.upper().split("+"):
        match = _JOINED.fullmatch(part)
        found.update(filter(None, match.groups()) if match else [part])
    return frozenset(found)
