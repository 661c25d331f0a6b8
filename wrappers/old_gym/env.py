"""Make a correct gymnasium env of an env of the old `gym` API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded, UnsupportedMode

from stepwell.wrappers.old_gym.outside import (
    accepts,
    check_old_env,
    render_modes,
    seed_method,
    what_it_is,
)
from stepwell.wrappers.old_gym.spaces import modern_space
from stepwell.wrappers.owned_copies import owned_array, owned_info, owned_observation

__all__ = ["OldGymEnv", "from_gym"]

AnyInfo = dict[str, Any]
RENAMED = ("render.modes", "video.frames_per_second")


def from_gym(env: object, *, max_episode_steps: int | None = None) -> gymnasium.Env[Any, Any]:
    """Adapt an env object of the old `gym` API, which you already have, to gymnasium's.

    `gym` is not imported: what the object can do is read off its methods. What comes back passes
    `gymnasium.utils.env_checker.check_env`, and differs from the old env in this:

    | old env | adapted |
    |---|---|
    | `step` returns 4 values, or 5 | 5; `info["TimeLimit.truncated"]` tells truncated from done |
    | `reset` takes nothing, returns an observation | takes seed and options, returns (obs, info) |
    | observations live in the emulator's memory | C-contiguous copies, in Dict and Tuple too |
    | done and reward are numpy scalars or (1,) arrays | bool and float |
    | `seed(...)`, or `reset(seed=)`, or both | what there is gets the seed, and its action space |
    | gym's spaces, `render.modes` | gymnasium's, `render_modes` |
    | `render(mode="human")` is the default | `render_mode` is "rgb_array" where there is one |
    | `step` after the end, a second `close` | `ResetNeeded`; harmless |

    An observation of another shape or dtype than the space says is refused, never cast. A seed
    has no effect on an env that takes none; `metadata["stepwell"]["seeded_by"]` tells.

    Args:
        env: The old env, with its wrappers. Where it was built with `gym.make`, that must have
            been with `disable_env_checker=True`: the checker fails with numpy 2.
        max_episode_steps: Steps after which an episode is truncated; None sets no limit. gym's
            own limit is one of `gym.make`, and absent where the env is built by its class.

    Returns:
        An `OldGymEnv`; its `old_env` is the env given, its `metadata["stepwell"]` names the class,
        the wrappers and the versions.

    Raises:
        TypeError: A gymnasium env, a vector env, a class, or a space that gymnasium does not have.
        ValueError: `max_episode_steps` is below 1.

    Example:
        >>> class Old:  # as it was written for gym 0.21
        ...     observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     screen = np.zeros(2, np.uint8)
        ...     def reset(self):
        ...         return self.screen
        ...     def step(self, action):
        ...         self.screen += 1
        ...         return self.screen, np.float32(1), np.bool_(self.screen[0] > 2), {}
        >>> env = from_gym(Old())
        >>> first, info = env.reset(seed=0)
        >>> env.step(1)
        (array([1, 1], dtype=uint8), 1.0, False, False, {})
        >>> first
        array([0, 0], dtype=uint8)
    """
    return OldGymEnv(env, max_episode_steps=max_episode_steps)


class OldGymEnv(gymnasium.Env[Any, Any]):
    """What `from_gym` returns; see there."""

    def __init__(self, env: object, *, max_episode_steps: int | None = None) -> None:
        _check_limit(max_episode_steps)
        check_old_env(env)
        old: Any = env
        self.old_env: Any = env  # the env that was given
        self.observation_space = modern_space(old.observation_space, "observation_space")
        self.action_space = modern_space(old.action_space, "action_space")
        self._max_steps = max_episode_steps
        self._seed_method = seed_method(env)
        self._reset_words = {word for word in ("seed", "options") if accepts(env, "reset", word)}
        self._renders_by_mode = accepts(env, "render", "mode")
        self.metadata = self._metadata()
        self.render_mode = self._chosen_render_mode()
        self._steps = 0
        self._is_over: bool | None = None  # None: not reset yet
        self._is_closed = False

    def reset(
        self, *, seed: int | None = None, options: AnyInfo | None = None
    ) -> tuple[Any, AnyInfo]:
        """Reset, after seeding whatever of the old env takes a seed when one is given.

        Raises:
            ValueError: Options for an env that takes none, or an observation that does not fit.
            ClosedEnvironmentError: The env is closed.
        """
        self._check_open()
        if options and "options" not in self._reset_words:
            raise ValueError(
                f"options cannot be used: expected none, as the old env's reset takes none, got "
                f"{options!r}; leave them out"
            )
        super().reset(seed=seed)
        words: AnyInfo = {} if seed is None else self._seeded(seed)
        if options and "options" in self._reset_words:
            words["options"] = options
        observation, info = self._split(self.old_env.reset(**words))
        self._steps, self._is_over = 0, False
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, AnyInfo]:
        """Play a step; a Discrete action reaches the old env as a Python int.

        Raises:
            ResetNeeded: Before the first reset, and after the end of an episode.
            ValueError: What the old env returned is no step, or does not fit its space.
            ClosedEnvironmentError: The env is closed.
        """
        self._check_open()
        if self._is_over is not False:
            when = "before the first reset" if self._is_over is None else "after the episode's end"
            raise ResetNeeded(
                f"step came {when}: expected reset first, got step; call reset() and go on"
            )
        result = self.old_env.step(_plain_action(action))
        observation, reward, terminated, truncated, info = _read_step(result)
        copy = owned_observation(self.observation_space, observation)
        self._steps += 1
        truncated |= self._max_steps is not None and self._steps >= self._max_steps
        self._is_over = terminated or truncated
        return copy, reward, terminated, truncated, info

    def render(self) -> Any:
        """What the old env draws in `render_mode`; an array is a copy, "human" gives None.

        Raises:
            UnsupportedMode: The env has no render mode that can be used without a display.
            ClosedEnvironmentError: The env is closed.
        """
        self._check_open()
        if self.render_mode is None:
            raise UnsupportedMode(
                f"the env cannot draw into an array: expected 'rgb_array' among its render modes, "
                f"got {self.metadata['render_modes']}; call old_env.render yourself"
            )
        old = self.old_env
        picture = old.render(mode=self.render_mode) if self._renders_by_mode else old.render()
        if self.render_mode == "human":
            return None
        return owned_array(picture) if isinstance(picture, np.ndarray) else picture

    def close(self) -> None:
        """Close the old env, once."""
        if not self._is_closed:
            self._is_closed = True
            close = getattr(self.old_env, "close", None)
            if close is not None:
                close()

    def __str__(self) -> str:
        return f"<from_gym({self.old_env!s})>"

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedEnvironmentError(
                "the env is closed: expected an open one, got one after close(); build it again"
            )

    def _seeded(self, seed: int) -> AnyInfo:
        """Seed what has a method for it; the words with which `reset` gets the seed."""
        if self._seed_method is not None:
            self._seed_method(seed)
        # Some old envs draw their own no-ops from it.
        seed_actions = getattr(self.old_env.action_space, "seed", None)
        if seed_actions is not None:
            seed_actions(seed)
        return {"seed": seed} if "seed" in self._reset_words else {}

    def _split(self, result: Any) -> tuple[Any, AnyInfo]:
        """Tell an observation from a pair of observation and info."""
        space = self.observation_space
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):  # pyright: ignore[reportUnknownArgumentType]
            if not isinstance(space, gymnasium.spaces.Tuple) or not _fits(space, result):
                return owned_observation(space, result[0]), owned_info(result[1])
        return owned_observation(space, result), {}

    def _metadata(self) -> AnyInfo:
        old: Mapping[str, Any] = getattr(self.old_env, "metadata", None) or {}
        kept = {key: value for key, value in old.items() if key not in RENAMED}
        fps = old.get("render_fps", old.get("video.frames_per_second"))
        seeded_by = ["seed"] * (self._seed_method is not None)
        seeded_by += ["reset"] * ("seed" in self._reset_words)
        return {
            **kept,
            "render_modes": render_modes(self.old_env),
            **({} if fps is None else {"render_fps": fps}),
            "stepwell": {
                "maker": "from_gym",
                **what_it_is(self.old_env),
                "seeded_by": seeded_by,
                "max_episode_steps": self._max_steps,
            },
        }

    def _chosen_render_mode(self) -> str | None:
        """The old env's own choice, else a picture; never a window that nobody asked for."""
        own = getattr(self.old_env, "render_mode", None)
        if isinstance(own, str):
            return own
        draws = self._renders_by_mode and "rgb_array" in self.metadata["render_modes"]
        return "rgb_array" if draws else None


def _check_limit(max_episode_steps: object) -> None:
    if max_episode_steps is None:
        return
    if type(max_episode_steps) is not int or max_episode_steps < 1:
        raise ValueError(
            f"max_episode_steps is wrong: expected a whole number of at least 1, got "
            f"{max_episode_steps!r}; None sets no limit"
        )


def _plain_action(action: Any) -> Any:
    """A whole number as a Python int: JoypadSpace and others look it up in a dict."""
    if isinstance(action, np.integer) or (
        isinstance(action, np.ndarray) and action.shape == () and action.dtype.kind in "iu"
    ):
        return int(action)
    return action  # pyright: ignore[reportUnknownVariableType]


def _read_step(result: Any) -> tuple[Any, float, bool, bool, AnyInfo]:
    """A step of 4 or 5 values as one of 5; the observation is not looked at."""
    if not isinstance(result, tuple | list) or len(cast("list[Any]", result)) not in (4, 5):
        size = f" of {len(cast('Any', result))}" if isinstance(result, tuple | list) else ""
        raise ValueError(
            f"step returned something else: expected a tuple of 4 or 5 values, got "
            f"{type(result).__qualname__}{size}; correct the env"  # pyright: ignore[reportUnknownArgumentType]
        )
    observation, reward, *flags, info = cast("list[Any]", result)
    known = owned_info(info)
    if len(flags) == 2:
        terminated, truncated = _flag(flags[0], "terminated"), _flag(flags[1], "truncated")
    else:
        done = _flag(flags[0], "done")
        truncated = done and _flag(known.get("TimeLimit.truncated", False), "TimeLimit.truncated")
        terminated = done and not truncated
    return observation, float(_scalar(reward, "reward")), terminated, truncated, known


def _flag(value: object, name: str) -> bool:
    return bool(_scalar(value, name))


def _scalar(value: object, name: str) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} is wrong: expected one number, got {value!r}; correct the env")
    return cast("float", array.item())


def _fits(space: gymnasium.Space[Any], value: object) -> bool:
    try:
        owned_observation(space, value)
    except ValueError:
        return False
    return True
