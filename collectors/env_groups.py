"""The vector envs that a Collector steps: one, or several in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TransformReward

from stepwell.buffers import Layout
from stepwell.collectors.episode_metadata import EpisodeMetadata
from stepwell.collectors.session import frame_skip, frame_stack_of
from stepwell.collectors.step_result import InfoReader
from stepwell.collectors.vector_envs import Vector, is_partial
from stepwell.collectors.vector_stepper import Stepper
from stepwell.wrappers.make_vector_env import require_spaces

if TYPE_CHECKING:
    from stepwell.collectors.stepper_groups import StepperGroups

__all__ = ["as_groups", "as_vector", "stepper_of"]


def as_groups(envs: object, frame_stack: int | None) -> list[Vector]:
    """What the user gave, as vector envs of one kind.

    Args:
        envs: A vector env, a single env, or a list of vector envs.
        frame_stack: Frames that the user says they stack.

    Raises:
        TypeError: It is none of these.
        ValueError: The vector envs differ in their spaces, frame stacks or frame skips, or one of
            several answers for a few envs at a time.
    """
    if not isinstance(envs, list | tuple):
        return [as_vector(envs)]
    given = cast("Sequence[object]", envs)
    if not given:
        raise ValueError("envs: expected one vector env or several in a list, got an empty list")
    for one in given:
        if not isinstance(one, VectorEnv):
            raise TypeError(
                f"envs: expected vector envs in the list, got {type(one).__name__}; make each with "
                f"stepwell.make_atari, stepwell.make_vec or gymnasium.make_vec"
            )
        require_spaces(one)
    groups = cast("list[Vector]", list(given))
    if len({id(group) for group in groups}) < len(groups):
        raise ValueError("envs: expected different vector envs in the list, got one of them twice")
    if len(groups) > 1 and any(map(is_partial, groups)):
        raise ValueError(
            "envs: expected vector envs that answer all at once in the list, got ale-py's with a "
            "batch_size below num_envs; make them without batch_size"
        )
    first = _facts_of(groups[0], frame_stack)
    for number, group in enumerate(groups):
        for what, fact in _facts_of(group, frame_stack).items():
            if fact != first[what]:
                raise ValueError(
                    f"envs: expected the same {what} in each vector env of the list, got "
                    f"{first[what]} in the first and {fact} in number {number + 1}; make them alike"
                )
    return groups


def stepper_of(
    groups: Sequence[Vector], layout: Layout, info: InfoReader, facts: EpisodeMetadata
) -> Stepper | StepperGroups:
    """Steps the vector envs, in turns if they are several.

    Args:
        groups: The vector envs.
        layout: How their observations are nested.
        info: Reads the declared info fields.
        facts: Tells what is noted about an episode that begins.
    """
    steppers: list[Stepper] = []
    first_env = 0
    for group in groups:
        steppers.append(Stepper(group, layout, info, facts, first_env))
        first_env += group.num_envs
    if len(steppers) == 1:
        return steppers[0]
    from stepwell.collectors.stepper_groups import StepperGroups  # rarely needed

    return StepperGroups(steppers)


def _facts_of(group: Vector, frame_stack: int | None) -> dict[str, object]:
    """What the rows of a vector env depend on."""
    return {
        "observation space": group.single_observation_space,
        "action space": group.single_action_space,
        "frame stack": frame_stack_of(group, frame_stack),
        "frame skip": frame_skip(group),
    }


def as_vector(envs: object) -> Vector:
    """A vector env as it is, or a vector of a single env.

    Raises:
        TypeError: It is neither, or the vector env does not tell the spaces of one env.
    """
    if isinstance(envs, VectorEnv):
        require_spaces(envs)
        return envs
    if not isinstance(envs, gymnasium.Env):
        raise TypeError(
            f"envs: expected a gymnasium VectorEnv or Env, got {type(envs).__name__}; make one "
            f"with stepwell.make_atari, stepwell.make_vec or gymnasium.make_vec"
        )
    single = TransformReward(envs, _one_number)
    return SyncVectorEnv([lambda: single])


def _one_number(reward: Any) -> float:
    """Gymnasium's vector envs refuse arrays of shape (1,)."""
    return float(np.asarray(reward).item())
