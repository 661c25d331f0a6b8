"""A list of all that the facts of a store may ask for when its envs are made again.

Facts come from a file, which a stranger may have written. Wrappers and their arguments are those of
the list below, each with the range in which it does no harm. Arguments of envs are code of many
packages: only those with well-known names have a range here, and the process in which the env is
made has bounds of memory and time (`lanes`).
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from ...buffers.base.number_checks import is_whole
from ...wrappers.atari_settings import LARGEST
from ...wrappers.make_vector_env import find_spec
from ...wrappers.recipe import read_spec

CURE = "say how to make one env (env=..., --env module:callable)"

_LONGEST_TEXT, _LONGEST_NAME, _MOST_WRAPPERS = 1 << 16, 200, 32
_MOST_SKIPPED = 1000  # steps of the env in one step, through all wrappers
_MOST_STACKED = 1024  # observations that all wrappers keep
_MOST_PIXELS = 4096  # rows or columns of a picture
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class _Rule(NamedTuple):
    """The values that an argument may have."""

    words: str  # they, in words
    take: Callable[[Any], Any]  # the argument as the wrapper wants it; raises ValueError for others


def _rule(words: str, is_right: Callable[[Any], bool]) -> _Rule:
    def take(value: Any) -> Any:
        if not is_right(value):
            raise ValueError
        return value

    return _Rule(words, take)


def _whole(low: int, high: int) -> _Rule:
    return _rule(
        f"a whole number from {low:,} to {high:,}", lambda v: is_whole(v) and low <= v <= high
    )


def _one_of(*values: object) -> _Rule:
    words = " or ".join(map(repr, values))
    return _rule(words, lambda v: any(v is one or (v == one and type(v) is str) for one in values))


def _or(*rules: _Rule) -> _Rule:
    def take(value: Any) -> Any:
        for rule in rules:
            try:
                return rule.take(value)
            except ValueError:
                pass
        raise ValueError

    return _Rule(" or ".join(rule.words for rule in rules), take)


def _several(rule: _Rule, least: int, most: int) -> _Rule:
    """A tuple, which older stores have as a list."""

    def take(value: Any) -> Any:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            raise ValueError
        return tuple(map(rule.take, value))

    count = f"{least}" if least == most else f"{least} to {most}"
    return _Rule(f"{count} times {rule.words}", take)


def _numbers_in(value: object) -> Iterator[float]:
    """All numbers in nested lists and tables."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _numbers_in(one)
    elif isinstance(value, int | float):
        yield value


def _is_limit(value: object) -> bool:
    """A number, or an array of a size that a file can have spelled out."""
    if isinstance(value, list):
        return all(map(_is_limit, value))
    is_array = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"
    return is_array or (isinstance(value, int | float) and not isinstance(value, bool))


_FLAG, _NONE = _one_of(True, False), _one_of(None)
_SKIP, _STACK, _NOOPS = _whole(1, _MOST_SKIPPED), _whole(1, _MOST_STACKED), _whole(0, 1000)
_SIDE = _whole(1, _MOST_PIXELS)
_SIZE, _BINS, _LENGTH = _several(_SIDE, 2, 2), _whole(1, 1024), _whole(1, 1 << 24)
_CHANCE = _rule("a number from 0 to 1", lambda v: isinstance(v, int | float) and 0 <= v <= 1)
_NUMBER = _rule("a number", lambda v: isinstance(v, int | float | np.number))
_LIMIT = _rule("a number or an array of numbers", _is_limit)
_WEIGHTS = _or(
    _several(_NUMBER, 1, 1024),
    _rule("an array of so many", lambda v: isinstance(v, np.ndarray) and 1 <= v.size <= 1024),
)
_NAME = _rule("a short text", lambda v: isinstance(v, str) and len(v) <= _LONGEST_NAME)
_NAMES = _rule("names or numbers", lambda v: isinstance(v, list | tuple) and all(map(_is_key, v)))
_DTYPE = _rule(
    "a dtype of numbers", lambda v: isinstance(v, type) and issubclass(v, np.number | np.bool_)
)
_LENGTHS = _rule(
    "a dict of whole numbers from 1 to 65,536",
    lambda v: isinstance(v, Mapping) and all(is_whole(n) and 1 <= n <= 1 << 16 for n in v.values()),
)
_POOL, _PADDING = _one_of("max", "none"), _one_of("zero", "repeat")


def _is_key(value: object) -> bool:
    return is_whole(value) or (isinstance(value, str) and len(value) <= _LONGEST_NAME)


_Arguments = Mapping[str, _Rule]
# The wrappers that a store may name, with their arguments: those that change what an env returns,
# begin anew at a reset, and neither write files nor open windows.
_WRAPPERS: Mapping[str, Mapping[str, _Arguments]] = {
    "gymnasium.wrappers": {
        "AddRenderObservation": {"render_only": _FLAG, "render_key": _NAME, "obs_key": _NAME},
        "AddWhiteNoise": {"probability_of_noise_per_pixel": _CHANCE, "is_noise_grayscale": _FLAG},
        "AtariPreprocessing": {
            "noop_max": _NOOPS,
            "frame_skip": _SKIP,
            "screen_size": _or(_SIDE, _SIZE),
            "terminal_on_life_loss": _FLAG,
            "grayscale_obs": _FLAG,
            "grayscale_newaxis": _FLAG,
            "scale_obs": _FLAG,
        },
        "Autoreset": {},
        "ClipAction": {},
        "ClipReward": {"min_reward": _or(_LIMIT, _NONE), "max_reward": _or(_LIMIT, _NONE)},
        "DelayObservation": {"delay": _whole(0, _MOST_STACKED)},
        "DiscretizeAction": {"bins": _or(_BINS, _several(_BINS, 1, 64)), "multidiscrete": _FLAG},
        "DiscretizeObservation": {
            "bins": _or(_BINS, _several(_BINS, 1, 64)),
            "multidiscrete": _FLAG,
        },
        "DtypeObservation": {"dtype": _DTYPE},
        "FilterObservation": {"filter_keys": _NAMES},
        "FlattenObservation": {},
        "FrameStackObservation": {
            "stack_size": _STACK,
            "padding_type": _or(_one_of("reset", "zero"), _LIMIT),
        },
        "GrayscaleObservation": {"keep_dim": _FLAG},
        "JaxToNumpy": {},
        "ObstructView": {
            "obstructed_pixels_ratio": _CHANCE,
            "obstruction_width": _SIDE,
            "is_noise_grayscale": _FLAG,
        },
        "OrderEnforcing": {"disable_render_order_enforcing": _FLAG},
        "PassiveEnvChecker": {},
        "RecordEpisodeStatistics": {"buffer_length": _whole(1, 1 << 20), "stats_key": _NAME},
        "RepeatAction": {"num_repeats": _SKIP},
        "RescaleAction": {"min_action": _LIMIT, "max_action": _LIMIT},
        "RescaleObservation": {"min_obs": _LIMIT, "max_obs": _LIMIT},
        "ReshapeObservation": {"shape": _or(_LENGTH, _several(_LENGTH, 0, 8))},
        "ResizeObservation": {"shape": _SIZE},
        "StickyAction": {
            "repeat_action_probability": _CHANCE,
            "repeat_action_duration": _or(_SKIP, _several(_SKIP, 2, 2)),
        },
        "TimeAwareObservation": {
            "flatten": _FLAG,
            "normalize_time": _FLAG,
            "dict_time_key": _NAME,
        },
        "TimeLimit": {"max_episode_steps": _whole(1, 1 << 62)},
    },
    "stepwell.wrappers": {
        "AleFrameSkip": {
            "skip": _SKIP,
            "pool": _POOL,
            "max_frames": _or(_whole(1, LARGEST), _NONE),
        },
        "ClipReward": {"limit": _LIMIT},
        "Crop": dict.fromkeys(("top", "bottom", "left", "right"), _whole(0, _MOST_PIXELS)),
        "EmulatorSeed": {},
        "EpisodicLife": {},
        "FireReset": {},
        "FixedSpaces": {"lengths": _or(_LENGTHS, _NONE)},
        "FrameSkip": {"skip": _SKIP, "pool": _POOL},
        "FrameStack": {"size": _STACK, "padding": _PADDING},
        "Grayscale": {},
        "NoopStart": {"noop_max": _NOOPS, "noop_action": _whole(0, 1 << 16)},
        "Resize": {"size": _SIZE},
        "SeededResets": {},
        "SignReward": {},
        "VectorReward": {"weights": _WEIGHTS},
    },
}
# They go on over a reset: with sums over all episodes, or with the frames of the one before.
_REMEMBERING = ("NormalizeObservation", "NormalizeReward", "MaxAndSkipObservation")
# Their arguments are attributes of a spec, and not among its wrappers.
_IN_SPEC = ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker")
# What multiplies: through all wrappers, and the env's own.
_SKIPPING = ("skip", "frame_skip", "frameskip", "num_repeats")
_STACKING = ("size", "stack_size", "delay")  # of FrameStack, FrameStackObservation, ...

_BOOT = _rule("a boot script", lambda v: isinstance(v, str) and len(v) <= 4096)
_GAME: _Arguments = {
    "frame_skip": _SKIP,
    "noop_max": _NOOPS,
    "frame_stack": _or(_STACK, _NONE),
    "size": _or(_SIZE, _NONE),
}
_RECIPES: Mapping[str, _Arguments] = {
    "make_atari": _GAME,
    "make_nes": {
        **_GAME,
        "game": _rule("the tables of a RAM map", lambda v: isinstance(v, Mapping)),
        "boot": _or(_BOOT, _several(_BOOT, 1, 64), _NONE),
    },
}


def _modest(most: int) -> _Rule:
    words = f"numbers up to {most:,}"
    return _rule(words, lambda v: all(abs(n) <= most for n in _numbers_in(v) if n == n))


# Arguments of envs that have the same meaning in many packages.
_OF_ENVS: _Arguments = {
    **dict.fromkeys(_SKIPPING, _modest(_MOST_SKIPPED)),
    "noop_max": _modest(1000),
    **dict.fromkeys(
        (
            *("size", "width", "height", "shape", "map_size", "grid_size", "num_rooms", "bins"),
            *("screen_size", "screen_width", "screen_height", "image_size", "img_size"),
            *("obs_size", "obs_width", "obs_height", "render_size", "resolution"),
            *("render_width", "render_height", "window_width", "window_height"),
        ),
        _modest(_MOST_PIXELS),
    ),
    "frame_stack": _modest(_MOST_STACKED),
}


def check_recipe(recipe: Mapping[str, Any]) -> None:
    """Check the settings of `make_atari` and `make_nes`, as far as they may do harm."""
    maker = str(recipe.get("maker"))
    for name, rule in _RECIPES[maker].items():
        if name in recipe:
            _taken(f"the envs cannot be made again: recipe of {maker}", name, recipe[name], rule)


def recorded_id(facts: Mapping[str, object]) -> str | None:
    """The id of the env spec in the facts, if there is one."""
    try:
        return read_spec(str(facts.get("env_spec"))).id
    except Exception:  # of any kind, as the text is
        return None


def checked_spec(text: str, module: object = None) -> EnvSpec:
    """The env spec of a file, of which only what is registered and in the list is accepted."""
    # ``module`` registers the id, as the store says: for the message.
    try:
        if len(text) > _LONGEST_TEXT:
            raise ValueError("too long")
        found = read_spec(text)
        if len(found.id) > _LONGEST_NAME:
            raise ValueError("too long")
    except Exception as error:  # of any kind, as the text is
        expected = f"one of gymnasium's, in at most {_LONGEST_TEXT:,} characters"
        got = f"{text[:80]!r} ({type(error).__name__})"
        raise _refusal("env spec", expected, got) from None
    if ":" in found.id:
        raise _refusal("env spec", "a plain id", repr(found.id))
    try:
        known = find_spec(found.id)
    except ValueError as error:
        raise ValueError(_not_registered(found, module) or f"{error}; or {CURE}") from None
    if known.entry_point != found.entry_point:
        expected = f"the entry point {known.entry_point!r}, under which it is registered"
        raise _refusal(f"env {found.id}", expected, shortened(found.entry_point))
    return dataclasses.replace(
        known,
        kwargs=_checked_kwargs(found),
        max_episode_steps=_checked_limit(found, known),
        disable_env_checker=True,
        additional_wrappers=_checked_wrappers(found, known),
    )


def _not_registered(found: EnvSpec, module: object) -> str | None:
    """The message for an id of a module that was not imported: with the command that does it."""
    if not isinstance(module, str):  # not noted: the package of its entry point, most likely
        module = str(found.entry_point).partition(":")[0].partition(".")[0]
        module = "" if module in sys.modules else module
    if not _MODULE.fullmatch(module) or len(module) > _LONGEST_NAME or module == "__main__":
        return None
    full = f"{module}:{found.id}"
    return (
        f"env {found.id}: expected an id that is registered, got one that is not; a module that "
        f"only the store names is not imported: if you trust {module}, import it, or name it with "
        f"the id (env={full!r}, --env {full})"
    )


def _checked_kwargs(found: EnvSpec) -> dict[str, Any]:
    if not isinstance(found.kwargs, dict):
        raise _refusal(f"env {found.id}", "arguments in a dict", f"{found.kwargs!r:.80}")
    kwargs = {**found.kwargs}
    if kwargs.get("render_mode") == "human":
        del kwargs["render_mode"]
    for name, value in kwargs.items():
        if name in _OF_ENVS:
            _taken(f"env {found.id}", name, value, _OF_ENVS[name])
    return kwargs


def _checked_limit(found: EnvSpec, known: EnvSpec) -> int | None:
    """The time limit: that of the registered spec, or a lower one."""
    steps = found.max_episode_steps
    limits = [one.kwargs for one in known.additional_wrappers if one.name == "TimeLimit"]
    given = [known.max_episode_steps, *(kwargs["max_episode_steps"] for kwargs in limits if kwargs)]
    most = min((one for one in given if one is not None), default=None)
    is_limit = steps is None or (is_whole(steps) and steps >= 1)
    if not is_limit or (most is not None and (steps is None or steps > most)):
        most_words = "" if most is None else f" up to {most:,}, with which it is registered"
        expected = f"a whole number of max_episode_steps{most_words}"
        raise _refusal(f"env {found.id}", expected, shortened(steps))
    return steps


def _checked_wrappers(found: EnvSpec, known: EnvSpec) -> tuple[WrapperSpec, ...]:
    own = tuple(one for one in known.additional_wrappers if one.name not in _IN_SPEC)
    first, others = found.additional_wrappers[: len(own)], found.additional_wrappers[len(own) :]
    if [one.name for one in first] != [one.name for one in own]:
        expected = f"the wrappers with which it is registered, {[one.name for one in own]}"
        raise _refusal(f"env {found.id}", expected, shortened([one.name for one in first]))
    if len(others) > _MOST_WRAPPERS:
        raise _refusal(f"env {found.id}", f"at most {_MOST_WRAPPERS} wrappers", f"{len(others):,}")
    checked = tuple(map(_checked_wrapper, others))
    arguments = [(one.name, one.kwargs or {}) for one in checked]
    # Each may be within its range and all together too much: they multiply from wrapper to wrapper.
    skips = [
        max((abs(n) for n in _numbers_in(kwargs.get(name))), default=1)
        for _, kwargs in [("", found.kwargs), *arguments]
        for name in _SKIPPING
    ]
    stacks = [
        kwargs[name] + (name == "delay")
        for kind, kwargs in arguments
        if kind.startswith(("FrameStack", "Delay"))
        for name in _STACKING
        if name in kwargs
    ]
    for what, counts, most in (
        ("steps in one step", skips, _MOST_SKIPPED),
        ("observations that are kept", stacks, _MOST_STACKED),
    ):
        if math.prod(counts) > most:
            name = f"env {found.id} with its wrappers"
            raise _refusal(name, f"at most {most:,} {what}", f"{math.prod(counts):,}")
    return (*own, *checked)


def _checked_wrapper(wrapper: WrapperSpec) -> WrapperSpec:
    """The wrapper, if it is in the list, with arguments as it wants them."""
    from gymnasium import wrappers as gymnasiums

    from ... import wrappers as ours

    module, _, name = str(wrapper.entry_point).partition(":")
    if module.partition(".")[0] == "gymnasium" and name in _REMEMBERING:
        raise ValueError(
            f"the wrapper {name} goes on from episode to episode, also over those that were not "
            f"recorded: expected wrappers that begin anew at a reset, as "
            f"stepwell.wrappers.FrameSkip does; {CURE}"
        )
    # Looked up in modules that are loaded: what a store names is never imported.
    owner = {"gymnasium": gymnasiums, "stepwell": ours}.get(module.partition(".")[0])
    rules = None if owner is None else _WRAPPERS[owner.__name__].get(name)
    known: Any = None if rules is None else getattr(owner, name, None)
    is_wrapper = isinstance(known, type) and issubclass(known, gymnasium.Wrapper)
    places = (known.__module__, owner.__name__) if is_wrapper and owner is not None else ()
    if rules is None or module not in places:
        raise ValueError(
            f"the store names the wrapper {shortened(wrapper.entry_point)}: expected one of "
            f"gymnasium.wrappers or stepwell.wrappers that neither writes nor draws; {CURE}"
        )
    if not isinstance(wrapper.kwargs, dict):
        raise ValueError(
            f"the wrapper {name} did not record its arguments: expected them in a dict; {CURE}"
        )
    unknown = sorted(set(wrapper.kwargs) - set(rules))
    if unknown:
        expected = f"no arguments but {sorted(rules)}"
        raise _refusal(f"the wrapper {name}", expected, shortened(unknown[0]))
    kwargs = {
        key: _taken(f"the wrapper {name}", key, value, rules[key])
        for key, value in wrapper.kwargs.items()
    }
    return dataclasses.replace(wrapper, kwargs=kwargs)


def _taken(what: str, name: str, value: object, rule: _Rule) -> Any:
    """The value, if it may be that."""
    try:
        return rule.take(value)
    except ValueError:
        raise _refusal(what, f"{name} to be {rule.words}", shortened(value)) from None


def _refusal(what: str, expected: str, got: str) -> ValueError:
    return ValueError(f"{what}: expected {expected}, got {got}; {CURE}")


def shortened(value: object) -> str:
    """The value as text that fits into a sentence."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
