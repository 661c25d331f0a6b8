"""The results of one env, checked before anything is made of them, and copies of them."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.core import ActType, ObsType
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from ..buffers.base import native
from ..buffers.spec.exact_values import (
    BadValue,
    exactly,
    numbers_in,
    one_flag,
    one_number,
    part_of,
    shown,
)

Reset: TypeAlias = "tuple[Any, dict[str, Any]]"
Step: TypeAlias = "tuple[Any, float, bool, bool, dict[str, Any]]"

_ADAPT = "adapt an env of the old API with stepwell.from_gym"
_NO_SUCH_KEYWORD = re.compile(r"\breset\(\) got an unexpected keyword argument")
_NUMBERS = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary


class _Leaf(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    name: str


_Plan: TypeAlias = "dict[str, _Plan] | tuple[_Plan, ...] | _Leaf | None"


class EnvResults:
    """Checks the results of one env: its form, and that each value is stored as it is."""

    # A result that is as the space declares is passed on as it is; one of another dtype is cast,
    # where that changes no value; see `exact_values`. Values without a fixed shape, as texts, are
    # left to `FixedSpaces`. ``name`` says in errors which env it is: "env 3". What cannot be stored
    # is a BadValue. Resets of an env ``in_same_step`` mode come with the last row in their infos.

    def __init__(self, space: spaces.Space[Any], name: str, *, in_same_step: bool = False) -> None:
        self._name, self._in_same_step = name, in_same_step
        self._plan = _plan_of(space, f"{name}: observation")
        is_plain = isinstance(self._plan, _Leaf)
        self._dtype = self._plan.dtype if is_plain else None  # type: ignore[union-attr]
        self._shape = self._plan.shape if is_plain else None  # type: ignore[union-attr]
        self.step: Callable[[Any], Step] = self.stepping((_AsGiven(),), 0)
        """Checks what a `step` returned."""

    def call_reset(
        self,
        reset: Callable[..., Any],
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Call a `reset`; what it returns is not checked. BadValue: it takes no seed."""
        try:
            return reset(seed=seed, options=options)
        except TypeError as error:
            if _NO_SUCH_KEYWORD.search(str(error)) is None and all(
                map(_takes_both, _layers(reset))
            ):
                raise
            raise BadValue(
                f"{self._name}: expected reset(seed=..., options=...), got a reset that does not "
                f"take them ({error}); {_ADAPT}"
            ) from error

    def reset(self, result: Any) -> Reset:
        """Check what a `reset` returned: observation and info."""
        observation, info = reset_of(result, self._name)
        if self._in_same_step and (taken := {"final_obs", "final_info"} & info.keys()):
            raise BadValue(
                f"{self._name}: info: expected a reset's keys other than final_obs and final_info, "
                f"which have the last row in SAME_STEP mode, got {', '.join(sorted(taken))}; "
                f"rename it in a wrapper, or use autoreset mode NEXT_STEP"
            )
        return self.observation(observation), info

    def stepping(self, envs: Sequence[Any], place: int) -> Callable[[Any], Step]:
        """A function that takes a step of ``envs[place]``, as it is then, and checks the result."""
        # It raises `BadValue` if they are no five values, or one cannot be stored as it is. Some
        # envs take a microsecond a step: nearly all results pass in one call, without an attribute.
        dtype, shape, others = self._dtype, self._shape, self._step
        if native.core is not None:
            return native.core.stepping(envs, place, native.forms_of((dtype, shape)), others)

        def step(action: Any) -> Step:
            result = envs[place].step(action)
            if type(result) is tuple and len(result) == 5:
                observation, reward, terminated, truncated, info = result
                if (
                    type(observation) is np.ndarray
                    and observation.dtype is dtype  # faster than ==, which is asked of the others
                    and observation.shape == shape
                    and type(reward) is float
                    and type(terminated) is bool
                    and type(truncated) is bool
                    and type(info) is dict
                ):
                    return result
            return others(result)

        return step

    def _step(self, result: Any) -> Step:
        observation, reward, terminated, truncated, info = step_of(result, self._name)
        if type(reward) is not float:
            reward = one_number(reward, f"{self._name}: reward")
        if type(terminated) is not bool:
            terminated = one_flag(terminated, f"{self._name}: terminated")
        if type(truncated) is not bool:
            truncated = one_flag(truncated, f"{self._name}: truncated")
        return self.observation(observation), reward, terminated, truncated, info

    def observation(self, value: Any) -> Any:
        """Check an observation: its structure and shape, and that its dtype can hold the values."""
        return _fitted(self._plan, value, f"{self._name}: observation")


class _AsGiven:
    """An env whose action is the result of its step."""

    @staticmethod
    def step(result: Any) -> Any:
        return result


def reset_of(result: Any, name: str) -> Reset:
    """Observation and info of what a `reset` returned; an info of None is an empty one."""
    if isinstance(result, tuple | list) and len(result) == 2:
        observation, info = result
        if type(info) is dict or isinstance(info, Mapping | None):
            return observation, info or {}  # type: ignore[return-value]
    got = f"{len(result)} values" if isinstance(result, tuple) else shown(result)
    if isinstance(result, tuple) and len(result) == 2:
        got = f"two of which the second is {shown(result[1])}"
    raise BadValue(
        f"{name}: expected reset to return (observation, info), got {got}; correct it, or {_ADAPT}"
    )


def step_of(result: Any, name: str) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """The five values of what a `step` returned; an info of None is an empty one."""
    if isinstance(result, tuple | list) and len(result) == 5:
        info: Any = result[4]
        if info is None or isinstance(info, Mapping):
            observation, reward, terminated, truncated, _ = result
            return observation, reward, terminated, truncated, info or {}  # type: ignore[return-value]
        raise BadValue(f"{name}: expected an info that is a dict, got {shown(info)}; correct it")
    got = f"{len(result)} values" if isinstance(result, tuple | list) else shown(result)
    raise BadValue(
        f"{name}: expected step to return (observation, reward, terminated, truncated, info), got "
        f"{got}; correct it, or {_ADAPT}"
    )


def _plan_of(space: spaces.Space[Any], name: str) -> _Plan:
    if isinstance(space, spaces.Dict):
        return {key: _plan_of(part, f"{name}[{key!r}]") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(_plan_of(part, f"{name}[{place}]") for place, part in parts)
    if isinstance(space, _NUMBERS):
        return _Leaf(np.dtype(space.dtype), space.shape or (), name)
    return None


def _fitted(plan: _Plan, value: Any, name: str) -> Any:
    if type(plan) is _Leaf:
        dtype, shape, name = plan
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value
        if type(value) is int and shape == () and dtype == np.int64 and abs(value) < 2**63:
            return value  # as most Discrete observations
        return exactly(value, dtype, shape, name)
    if type(plan) is dict:
        more = [*value] if isinstance(value, Mapping) and len(value) > len(plan) else []
        if more:
            raise BadValue(
                f"{name}: expected the keys {[*plan]}, which the space declares, got {more}; "
                f"declare all, or leave the others out in a wrapper"
            )
        return {
            key: _fitted(part, part_of(value, key, name), f"{name}[{key!r}]")
            for key, part in plan.items()
        }
    if type(plan) is tuple:
        if not hasattr(value, "__len__") or len(value) != len(plan):
            raise BadValue(
                f"{name}: expected a tuple of {len(plan)}, got {shown(value)}; correct the env"
            )
        return tuple(
            _fitted(part, part_of(value, place, name), f"{name}[{place}]")  # type: ignore[arg-type]
            for place, part in enumerate(plan)
        )
    return value


def _layers(reset: Any) -> Iterator[Any]:
    """A `reset`, and those that it calls where it is a wrapper's."""
    yield reset
    given = reset.args[:1] if isinstance(reset, partial) else ()
    layer: Any = given[0] if given else getattr(reset, "__self__", None)
    while isinstance(layer, gymnasium.Wrapper):
        layer = layer.env
        yield layer.reset


def _takes_both(reset: Any) -> bool:
    """True unless it is known to refuse ``seed`` or ``options``."""
    try:
        inspect.signature(reset).bind(seed=None, options=None)
    except TypeError:
        return False
    except ValueError:  # not known
        return True
    return True


def owned_observation(
    space: spaces.Space[Any], observation: object, where: str = "observation"
) -> Any:
    """Copy an observation after checking its structure, shapes and dtypes against the space."""
    # Its arrays may have any strides, the copies are C-contiguous. Values are not compared with the
    # bounds of a Box; those without a fixed shape, as texts, are copied unchecked. ``where`` is its
    # name in error messages.
    value: Any = observation
    got, otherwise = type(value).__qualname__, ""
    if isinstance(space, spaces.Dict):
        if isinstance(value, Mapping):
            if value.keys() == space.keys():
                return {
                    key: owned_observation(part, value[key], f"{where}[{key!r}]")
                    for key, part in space.items()
                }
            got = str(list(value))
        expected = f"a dict of {list(space)}"
    elif isinstance(space, spaces.Tuple):
        if isinstance(value, tuple | list):
            if len(value) == len(space.spaces):
                return tuple(
                    owned_observation(part, one, f"{where}[{index}]")
                    for index, (part, one) in enumerate(zip(space.spaces, value, strict=True))
                )
            got = f"one of {len(value)}"
        expected = f"a tuple of {len(space.spaces)}"
    elif isinstance(space, spaces.Discrete):
        number = np.asarray(value)
        if number.shape == () and number.dtype.kind in "iu":
            if space.start <= int(number) < space.start + space.n:
                return int(number)
        expected, got = f"a whole number in {space}", repr(value)
    elif space.shape is None:  # texts, sequences, graphs, which `FixedSpaces` checks
        return copy.deepcopy(value)
    else:
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype == space.dtype and value.shape == space.shape:
                return owned_array(numbers_in(value, where))
            got = f"{value.dtype} {value.shape}"
        expected = f"an array {space.dtype} {space.shape}"
        otherwise = ", or convert the observation in a wrapper"
    raise ValueError(
        f"{where} does not fit the env's space: expected {expected}, got {got}; correct the env's "
        f"space{otherwise}"
    )


def owned_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a C-contiguous copy of an array of any strides."""
    # NumPy copies an image with reversed channels (nes-py's) pixel by pixel; copying channel by
    # channel takes a quarter of the time.
    if array.ndim != 3 or array.shape[-1] > 4 or array.flags.c_contiguous:
        return np.array(array, order="C")
    copy = np.empty(array.shape, array.dtype)
    for channel in range(array.shape[-1]):
        copy[..., channel] = array[..., channel]
    return copy


def owned_info(info: object) -> dict[str, Any]:
    """Copy an info, as `owned_value` does; None is an empty one."""
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise ValueError(
            f"info is invalid: expected a dict, got {type(info).__qualname__}; correct the env"
        )
    return cast("dict[str, Any]", owned_value(cast("Mapping[str, object]", info)))


def owned_value(value: Any) -> Any:
    """Copy arrays, and dicts, lists and tuples of them; other objects are not copied."""
    if isinstance(value, np.ma.MaskedArray):
        return value.copy()  # with its mask
    if isinstance(value, np.ndarray):
        return owned_array(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, Mapping):
        return {key: owned_value(part) for key, part in cast("Mapping[str, Any]", value).items()}
    if type(value) in (list, tuple):  # a named tuple could not be rebuilt from its parts
        return type(value)(owned_value(part) for part in value)
    return value


class RecordedWrapper(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
    """A wrapper that records its arguments, with which it can be made again."""

    def __init__(
        self, env: gymnasium.Env[ObsType, ActType], arguments: Mapping[str, Any] | None = None
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, **(arguments or {}))
        super().__init__(env)


class AdaptedEnv(gymnasium.Env[Any, Any]):
    """An env around one of another library, which is stepped between a reset and an end."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._is_over: bool | None = None  # None: not reset yet
        self._is_closed = False

    def close(self) -> None:
        """Close the env, once."""
        if not self._is_closed:
            self._is_closed = True
            close = getattr(self._inner, "close", None)  # of an env that draws nothing
            if close is not None:
                close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedEnvironmentError(
                "the env is closed: expected an open one, got one after close(); build it again"
            )

    def _check_begun(self) -> None:
        self._check_open()
        if self._is_over is not False:
            when = "before the first reset" if self._is_over is None else "after the episode's end"
            raise ResetNeeded(
                f"step came {when}: expected reset first, got step; call reset() and go on"
            )


def is_of(env: object, package: str, kind: str) -> bool:
    """True for an object of a class of that name, also a derived one, without an import."""
    return any(
        one.__name__ == kind and one.__module__.partition(".")[0] == package
        for one in type(env).__mro__
    )


def layers_of(env: Any, *names: str) -> Iterator[Any]:
    """An env and those that it wraps, which are attributes with these names, outermost first."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = next((one for name in names if (one := getattr(env, name, None)) is not None), None)
