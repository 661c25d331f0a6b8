"""Pools of EnvPool as Gymnasium vector envs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..buffers.base.errors import not_copied
from ..buffers.base.number_checks import check_whole
from ..buffers.base.optional_libraries import load_library
from .env_results import is_of
from .seeded_resets import seeds_of
from .versions import module_versions

_LARGEST_SEED = 2**31 - 1
_SEEDS = ("seed", "env_seed")
_NOT_OPTIONS = (*_SEEDS, "num_envs", "batch_size", "env_type", "base_path")


def is_pool(envs: object) -> bool:
    """Return True for a pool that `envpool.make` made."""
    return is_of(envs, "envpool", "EnvPoolMixin")


def from_envpool(pool: Any, num_envs: int | None = None, **options: Any) -> EnvPoolVectorEnv:
    """Make a Gymnasium vector env of a pool of EnvPool, or of the id of a task.

    EnvPool seeds a pool when it is made, and ignores the seed of a reset. So the vector env of an
    *id* makes a new pool at each reset with a seed. That of a given *pool* keeps the pool's own
    seed: its resets cannot be seeded, and no seed is recorded for its episodes.

    `make_vec`, `Collector`, `record`, `evaluate` and `check_vector_env` call this function for
    pools, and `make_vec("envpool:CartPole-v1", 8)` for ids.

    Args:
        pool: A pool of ``envpool.make(..., env_type="gymnasium")``, or the id of a task, for
            example "Pong-v5".
        num_envs: For an id: number of envs N, by default 1.
        options: For an id: EnvPool's options of that task.

    Returns:
        A vector env in NEXT_STEP autoreset mode.

    Raises:
        ValueError: There is no such task or option; or the pool answers for a few envs at a time,
            has several players, or was made for dm_env.
        TypeError: It is neither a pool nor an id.
        ImportError: EnvPool is missing.

    Example:
        >>> envs = from_envpool("CartPole-v1", 3)
        >>> envs.reset(seed=0)[0].shape
        (3, 4)
        >>> envs.close()
    """
    if isinstance(pool, str):
        check_whole("num_envs", 1 if num_envs is None else num_envs, 1)
        return EnvPoolVectorEnv(pool, num_envs or 1, options)
    if not is_pool(pool):
        raise TypeError(
            f"pool: expected a pool of envpool.make or the id of a task, got {type(pool).__name__}"
        )
    if num_envs is not None or options:
        raise ValueError(
            f"num_envs and options: expected none with a pool, got num_envs={num_envs} and "
            f"{sorted(options)}; give them to envpool.make"
        )
    return EnvPoolVectorEnv(pool)


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool of EnvPool with Gymnasium's spaces, dtypes and seeds; see `from_envpool`."""

    # Actions are converted to the pool's dtype, and observations to that of their space, where it
    # holds them exactly; all else is as the pool returns it. ``metadata["stepwell"]`` records the
    # task and its options. For the id of a task in place of a pool there are ``num_envs`` and
    # EnvPool's options.

    def __reduce__(self) -> NoReturn:
        not_copied("a pool of EnvPool", "make one in each process, from a function")

    def __init__(self, pool: Any, num_envs: int = 1, options: Mapping[str, Any] | None = None):
        self._task = pool if isinstance(pool, str) else None
        self._options = dict(options or {})
        self._pool = pool if self._task is None else self._make(num_envs, range(num_envs))
        _require_plain(self._pool)
        config = self._pool.config
        self.num_envs = int(config["num_envs"])
        observation_space, action_space = _spaces_of(self._pool)
        self.single_observation_space = _as_space(observation_space)
        self.single_action_space = _as_space(action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        names = [name for name in self._pool.spec.action_array_spec if "env_id" not in name]
        self._action_dtype = (
            np.dtype(self._pool.spec.action_array_spec[names[0]].dtype) if len(names) == 1 else None
        )
        self.render_mode = None
        self.autoreset_mode = AutoresetMode.NEXT_STEP
        self.spec = None
        self.metadata = {
            "render_modes": [],
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "stepwell": _recipe(self._task, self._pool, config),
        }

    def __repr__(self) -> str:
        recipe = self.metadata["stepwell"]
        return f"EnvPoolVectorEnv({recipe['id']}, num_envs={self.num_envs})"

    @property
    def takes_seeds(self) -> bool:
        """True for the vector env of an id: a reset uses the seed that it is given."""
        return self._task is not None

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs: env i with ``seed + i``, or the i-th seed; a pool takes no options."""
        # Seeds are below 2**31; a given pool has its own, and they are ignored.
        if options:
            raise ValueError(
                f"options: expected none, as EnvPool resets its envs itself, got {options!r}"
            )
        if seed is not None and self._task is not None:
            seeds = seeds_of(seed, self.num_envs)
            if any(one is None or not 0 <= one <= _LARGEST_SEED for one in seeds):
                raise ValueError(
                    f"seed: expected {self.num_envs} whole numbers from 0 to {_LARGEST_SEED}, or "
                    f"the first of them, got {seed!r}"
                )
            self._pool.close()
            self._pool = self._make(self.num_envs, seeds)
        observation, info = self._pool.reset()
        return self._declared(observation), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs; one whose episode has ended is reset instead, and its action ignored."""
        self.send(actions)
        return self.recv()

    def send(self, actions: Any) -> None:
        """Begin a step: the pool's threads step the envs until `recv`."""
        self._pool.send(self._converted(actions))

    def recv(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Finish the step that `send` began."""
        observation, *results, info = self._pool.recv()
        return self._declared(observation), *results, info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        self._pool.close()

    def _declared(self, observation: Any) -> Any:
        """The observation in the dtypes of its space: a Discrete one comes as int32."""
        if isinstance(observation, dict):
            parts = self.single_observation_space.spaces  # type: ignore[attr-defined]
            return {
                name: rows.astype(parts[name].dtype, copy=False)
                for name, rows in observation.items()
            }
        return observation.astype(self.single_observation_space.dtype, copy=False)

    def _converted(self, actions: Any) -> Any:
        if self._action_dtype is None:
            return actions
        given = np.asarray(actions)
        if given.dtype == self._action_dtype:
            return given
        converted = given.astype(self._action_dtype)
        if not np.array_equal(converted, given):
            raise ValueError(
                f"actions: expected numbers that {self._action_dtype} holds exactly, got "
                f"{given.dtype} {given.ravel()[:8].tolist()}; give {self._action_dtype}"
            )
        return converted

    def _make(self, num_envs: int, seeds: Sequence[int | None]) -> Any:
        """Make a pool of the task."""
        given = sorted({"num_envs", "env_type", *_SEEDS} & set(self._options))
        if given:
            raise ValueError(
                f"options: expected none of seed, env_seed, num_envs and env_type, got "
                f"{', '.join(given)}; a seed is given to reset, or to the Collector"
            )
        envpool: Any = load_library("envpool", "from_envpool", install="'stepwell[envpool]'")
        if self._task not in envpool.list_all_envs():
            import difflib

            close = difflib.get_close_matches(str(self._task), envpool.list_all_envs(), 3)
            raise ValueError(
                f"unknown task {self._task!r}: expected one of envpool.list_all_envs(), got one "
                f"that is not there" + (f"; did you mean {' or '.join(close)}?" if close else "")
            )
        try:
            pool = envpool.make(
                self._task,
                env_type="gymnasium",
                num_envs=num_envs,
                env_seed=list(seeds),
                **self._options,
            )
            _spaces_of(pool)
            return pool
        # A wrong option is any of these, by task.
        except (TypeError, AssertionError, ValueError) as error:
            raise ValueError(
                f"options of {self._task}: expected those of envpool.make, got "
                f"{self._options} ({error})"
            ) from error


def _require_plain(pool: Any) -> None:
    """Refuse pools that give other results than one row of each env."""
    config = pool.config
    if not isinstance(pool, gymnasium.Env | VectorEnv):
        raise ValueError(
            f"pool: expected one with Gymnasium's interface, got {type(pool).__name__}; make it "
            f'with envpool.make(..., env_type="gymnasium")'
        )
    if config["batch_size"] not in (0, config["num_envs"]):
        raise ValueError(
            f"pool: expected one that answers for all envs at once, got batch_size="
            f"{config['batch_size']} with {config['num_envs']} envs, whose order of results is the "
            f"machine's; make it without batch_size"
        )
    if config.get("max_num_players", 1) > 1:
        raise ValueError(
            f"pool: expected one player in each env, got {config['max_num_players']}; EnvPool "
            f"returns a row for each player then"
        )


def _spaces_of(pool: Any) -> tuple[Any, Any]:
    """One env's spaces, which a pool makes when it is first asked for them, and keeps."""
    with warnings.catch_warnings():  # of float32 bounds that EnvPool gives in double precision
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        return pool.single_observation_space, pool.single_action_space


def _as_space(space: Any) -> spaces.Space[Any]:
    """The space, in which EnvPool's stand-in for "no bounds" is none."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _as_space(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        limits = np.finfo(space.dtype)
        # C++'s numeric_limits::min() is the smallest positive number.
        unbounded = (space.low == limits.tiny) & (space.high == limits.max)
        if unbounded.any():
            low, high = space.low.copy(), space.high.copy()
            low[unbounded], high[unbounded] = -np.inf, np.inf
            return spaces.Box(low, high, space.shape, space.dtype.type)
    if not isinstance(space, spaces.Space):
        raise ValueError(f"pool: expected spaces of Gymnasium, got {type(space).__name__}")
    return space


def _recipe(task: str | None, pool: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts about the envs that a session records."""
    options = {name: value for name, value in config.items() if name not in _NOT_OPTIONS}
    recipe: dict[str, Any] = {
        "maker": "envpool",
        "id": task or type(pool).__name__.removesuffix("GymnasiumEnvPool"),
        "options": options,
        "versions": module_versions(["envpool"]),
    }
    if task is None:
        recipe["seed"] = config["env_seed"] or config["seed"]
    if "frame_skip" in options:
        recipe["frame_skip"] = int(options["frame_skip"])
    shape = getattr(pool.single_observation_space, "shape", None)
    stack = int(options.get("stack_num", 1))
    # A reset fills the stack with the first frame. After a lost life it goes on with the frames
    # before, so that whole stacks are stored.
    is_filled = not options.get("episodic_life")
    if is_filled and stack > 1 and shape and len(shape) == 3 and shape[0] == stack:
        recipe |= {"frame_stack": stack, "stack_padding": "repeat"}
    return recipe
