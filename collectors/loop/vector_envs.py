"""The vector envs that a Collector steps: their declarations, and known defects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from ...wrappers.envpool import from_envpool, is_pool
from ...wrappers.faults import Faults, Tolerant, given
from ...wrappers.fixed_spaces import require_divisible, with_fixed_spaces, with_fixed_vector_spaces
from ...wrappers.make_vector_env import declared_info as declared_info
from ...wrappers.make_vector_env import declared_mode, require_spaces
from ...wrappers.seeded_resets import with_seeded_resets
from ...wrappers.workers.vector_env import WorkerVectorEnv, checked_env

# Gymnasium's type parameters would add nothing here.
Vector = VectorEnv[Any, Any, Any]
_Info = Mapping[str, Any]


def as_groups(envs: object, frame_stack: int | None) -> list[Vector]:
    """The vector env, single env or list of vector envs of a Collector as a list, of one kind."""
    # They may not differ in their spaces, frame stacks or frame skips, nor may one of several
    # return results of a few envs at a time.
    if not isinstance(envs, list | tuple):
        return [as_vector(envs)]
    vectors = cast("Sequence[object]", envs)
    if not vectors:
        raise ValueError("envs: expected one vector env or several in a list, got an empty list")
    for one in vectors:
        if not isinstance(one, VectorEnv):
            raise TypeError(
                f"envs: expected vector envs in the list, got {type(one).__name__}; make each with "
                f"stepwell.make_atari, stepwell.make_vec or gymnasium.make_vec"
            )
    groups = [as_vector(one) for one in vectors]
    if len({id(group) for group in vectors}) < len(groups):
        raise ValueError("envs: expected different vector envs in the list, got one of them twice")
    if len(groups) > 1 and any(map(is_partial, groups)):
        raise ValueError(
            "envs: expected vector envs that answer all at once in the list, got ale-py's with a "
            "batch_size below num_envs; make them without batch_size"
        )
    first = _row_facts(groups[0], frame_stack)
    for number, group in enumerate(groups):
        for name, fact in _row_facts(group, frame_stack).items():
            if fact != first[name]:
                raise ValueError(
                    f"envs: expected the same {name} in each vector env of the list, got "
                    f"{first[name]} in the first and {fact} in number {number + 1}; make them equal"
                )
    return groups


def as_vector(envs: object) -> Vector:
    """A vector env as it is, or a vector of a single env."""
    if isinstance(envs, VectorEnv):
        require_spaces(envs)
        require_divisible(envs)
        return from_envpool(envs) if is_pool(envs) else with_fixed_vector_spaces(envs)
    if not isinstance(envs, gymnasium.Env):
        raise TypeError(
            f"envs: expected a gymnasium VectorEnv or Env, got {type(envs).__name__}; make one "
            f"with stepwell.make_atari, stepwell.make_vec or gymnasium.make_vec"
        )
    single = with_seeded_resets(with_fixed_spaces(checked_env(envs)))
    return SyncVectorEnv([partial(given, single)], autoreset_mode=AutoresetMode.NEXT_STEP)


def tolerate_faults(groups: Sequence[Vector], most: int) -> Faults:
    """Answer so many exceptions of the single envs of vector envs; others are refused."""
    faults = Faults(most)
    if not most:
        return faults
    inner: list[Any] = [group.unwrapped for group in groups]
    for one in inner:
        fns = one.env_fns if isinstance(one, SyncVectorEnv | WorkerVectorEnv) else None
        if not isinstance(fns, Sequence):  # what made the envs may be used up
            raise ValueError(
                f"tolerate={most}: expected single envs that can be made again one by one, as "
                f"those of stepwell.make_vec, make_nes, make_atari(backend='python') and of a list "
                f"in gymnasium's SyncVectorEnv, got {type(one).__name__}; make them so, or leave "
                f"it out"
            )
    for one in inner:
        if isinstance(one, WorkerVectorEnv):
            one.tolerate(faults)
        else:
            one.envs = [Tolerant(e, one.env_fns[k], k, faults) for k, e in enumerate(one.envs)]
    return faults


class FrameCounters:
    """The two frame counters of ale-py envs, of which only a reset sets one back."""

    def __init__(self, num_envs: int) -> None:
        self._frames = np.zeros(num_envs, np.int64)
        self._episode_frames = np.zeros(num_envs, np.int64)

    def forget(self) -> None:
        """Forget the counters, before a reset of all envs."""
        self._frames[:] = 0
        self._episode_frames[:] = 1 << 40

    def set(self, info: _Info, envs: np.ndarray | slice) -> None:
        """Store the counters of some envs."""
        self._frames[envs] = info["frame_number"]
        self._episode_frames[envs] = info["episode_frame_number"]

    def advanced_equally(self, info: _Info, envs: np.ndarray | slice) -> np.ndarray:
        """Envs in which both counters advanced equally, so that there was no reset in between."""
        frames = info["frame_number"] - self._frames[envs]
        episode_frames = info["episode_frame_number"] - self._episode_frames[envs]
        return np.asarray(frames == episode_frames)


def mode_of(envs: Vector) -> AutoresetMode:
    """The autoreset mode that the envs declare; those that are known to lose steps are refused."""
    kinds = [kind.__name__ for kind in type(envs.unwrapped).__mro__]
    if "FunctionalJaxVectorEnv" in kinds and envs.num_envs > 1:
        name = "the id" if envs.spec is None else f"{envs.spec.id!r}"
        raise ValueError(
            f"envs: expected a vector env whose envs all move in each step, got gymnasium's "
            f"{type(envs.unwrapped).__name__}, in which a reset of one env drops the step of all "
            f"others; use stepwell.JaxEnvs of the functional env, or stepwell.make_vec({name}, "
            f"{envs.num_envs})"
        )
    mode = declared_mode(envs)
    if not isinstance(mode, AutoresetMode):
        raise ValueError(
            "envs.metadata['autoreset_mode']: expected a gymnasium.vector.AutoresetMode, got "
            f"{mode!r}; set it to what the env does (stepwell.check_vector_env finds out)"
        )
    return mode


def is_ale(envs: Vector) -> bool:
    """Test whether the inner vector env is ale-py's own, under any vector wrappers."""
    return any(kind.__name__ == "AtariVectorEnv" for kind in type(envs.unwrapped).__mro__)


def is_partial(envs: Vector) -> bool:
    """Test whether the envs return results of a few envs at a time."""
    inner: Any = envs.unwrapped
    return is_ale(envs) and bool(inner.batch_size < envs.num_envs)


def split_step(envs: Vector) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Two functions: one begins a step, the other finishes it."""
    # Looked up on the outermost class: the inner env's would step past its wrappers.
    if hasattr(type(envs), "send") and hasattr(type(envs), "recv"):
        return envs.send, envs.recv  # type: ignore[attr-defined]
    if type(envs) is AsyncVectorEnv:
        return envs.step_async, envs.step_wait
    waiting: list[Any] = []
    return waiting.append, lambda: envs.step(waiting.pop())


def returns_copies(envs: Vector) -> bool:
    """Test whether observations are never written to again; all others are copied at once."""
    if type(envs) in (SyncVectorEnv, AsyncVectorEnv):
        return bool(cast("SyncVectorEnv[Any, Any]", envs).copy)
    is_own = type(envs).__module__.split(".")[0] in ("ale_py", "stepwell")
    return is_own and not isinstance(envs, VectorWrapper)


def refuse_bad_reset(envs: Vector, was_reset: bool, has_ended: bool) -> None:
    """Refuse a reset of all envs that is known to go wrong: it would mix up rows."""
    # ``was_reset``: the envs were, before. ``has_ended``: some env's newest row ended its episode.
    inner: Any = envs.unwrapped
    if was_reset and is_partial(envs):
        raise ValueError(
            f"envs with batch_size={inner.batch_size} of {envs.num_envs}: expected one reset in "
            "all, got a second, which ale-py mixes up with pending steps; make new envs, or "
            "leave batch_size out"
        )
    if type(inner) is AsyncVectorEnv and not inner.shared_memory and has_ended:
        raise ValueError(
            "AsyncVectorEnv with shared_memory=False: expected a reset while all episodes are "
            "open, got one after an end, which gymnasium would follow by a second reset; "
            "make the envs with shared_memory=True"
        )


def recipe_of(envs: Vector) -> dict[str, object]:
    """The recipe that `make_atari` and `make_vec` declare, else a description of the envs."""
    declared = envs.metadata.get("stepwell")
    if isinstance(declared, dict):
        return cast("dict[str, object]", declared)
    return {
        "maker": "given",
        "env": env_name(envs),
        "observation_space": str(envs.single_observation_space),
        "action_space": str(envs.single_action_space),
    }


def frame_skip(envs: Vector) -> int:
    """Number of emulator frames in one step, 1 where nothing is declared."""
    return int(cast("int", recipe_of(envs).get("frame_skip", 1)))


def frame_stack_of(envs: Vector, frame_stack: int | None) -> tuple[int, Literal["zero", "repeat"]]:
    """Number of frames that the envs stack, and the padding of the first ones."""
    # The user's number, else the declarations of `make_atari` and `make_vec`, else gymnasium's own
    # wrappers are inspected, else 1.
    recipe = recipe_of(envs)
    # Under wrappers too, as long as they leave the observations as they are.
    is_same = envs.single_observation_space == envs.unwrapped.single_observation_space
    is_ale = is_same and type(envs.unwrapped).__name__ == "AtariVectorEnv"
    stack, padding = recipe.get("frame_stack", 1) or 1, recipe.get("stack_padding", "repeat")
    if is_ale and "frame_stack" not in recipe:
        stack = cast("tuple[int, ...]", envs.single_observation_space.shape)[0]
        padding = "zero"
    elif frame_stack != 1 and not {"frame_stack", "stack_padding", "wrappers"} & set(recipe):
        from ...wrappers.recipe import stack_of_vector  # loads all of gymnasium's wrappers

        stack, padding = stack_of_vector(envs) or (1, "repeat")
        if padding is None and frame_stack is not None:
            raise ValueError(
                f"frame_stack={frame_stack}: expected padding by zeros or by the first frame "
                f"before an episode, got FrameStackObservation with a custom frame; leave it out, "
                f"or say frame_stack=1, to store whole stacks"
            )
        if padding is None:
            stack, padding = 1, "repeat"
    return cast("int", stack if frame_stack is None else frame_stack), cast(
        "Literal['zero', 'repeat']", padding
    )


def has_known_stacks(envs: Vector, stack: int) -> bool:
    """True for envs of `make_atari` and `make_nes` that only wrappers of ours are around."""
    # Their stacks are known to be right, and need not be compared with the frames before.
    inner: Any = envs
    while isinstance(inner, VectorWrapper):
        if type(inner).__module__.split(".")[0] != "stepwell":
            return False
        inner = inner.env
    recipe = recipe_of(envs)
    is_made = recipe.get("maker") in ("make_atari", "make_nes")
    return is_made and recipe.get("frame_stack") == stack


def env_name(envs: Vector) -> str:
    """The id under which the env is registered, or its class."""
    declared = envs.metadata.get("env_spec")  # of makers of Stepwell, also where workers play
    if isinstance(declared, str):
        return str(json.loads(declared)["id"])
    inner = envs.unwrapped
    single = inner.envs[0] if isinstance(inner, SyncVectorEnv) else inner
    spec = envs.spec or single.spec
    return spec.id if spec is not None else type(single.unwrapped).__qualname__


def _row_facts(group: Vector, frame_stack: int | None) -> dict[str, object]:
    """The facts that the rows of a vector env depend on."""
    return {
        "observation space": group.single_observation_space,
        "action space": group.single_action_space,
        "frame stack": frame_stack_of(group, frame_stack),
        "frame skip": frame_skip(group),
    }
