"""Seeds and facts of one Collector's run, kept with the data."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
from gymnasium.vector import SyncVectorEnv

from stepwell.buffers.space_json import space_to_json
from stepwell.collectors.vector_envs import Vector

__all__ = ["Seeds", "describe", "frame_skip", "frame_stack_of", "recipe_of"]

_ENVS, _POLICY, _MINIBATCHES = 0, 1, 2
_SPACES_CHARS = 1 << 16


class Seeds:
    """All seeds of a Collector, derived from one.

    Args:
        seed: The user's seed; None draws one.
        session: Number of the run within its store, so that a resumed run gets other seeds.
    """

    def __init__(self, seed: int | None, session: int) -> None:
        if seed is not None and seed < 0:
            raise ValueError(f"seed: expected a whole number >= 0 or None, got {seed}")
        self.seed = int(cast("int", np.random.SeedSequence(seed).entropy))
        self.session = session
        self._resets = 0

    def policy_rng(self) -> np.random.Generator:
        """A generator for the policy."""
        return np.random.default_rng(self._sequence(_POLICY))

    def minibatch_rng(self) -> np.random.Generator:
        """A generator for what learners draw from rollouts."""
        return np.random.default_rng(self._sequence(_MINIBATCHES))

    def next_envs_seed(self, num_envs: int) -> int:
        """A seed for the next reset of all envs; env i gets this plus i, below 2**31."""
        words = self._sequence(_ENVS, self._resets).generate_state(1, np.uint64)
        self._resets += 1
        return int(words[0] % np.uint64(2**31 - num_envs))

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(self.session, *key))


def describe(groups: Sequence[Vector], policy: object, seeds: Seeds) -> dict[str, object]:
    """JSON-able facts about a run: what made this data?"""
    recipe = recipe_of(groups[0])
    return {
        # As a file would give it back, so that the two can be compared.
        "recipe": json.loads(json.dumps({k: v for k, v in recipe.items() if k != "versions"})),
        **_made_again(groups[0]),
        "num_envs": sum(group.num_envs for group in groups),
        "seed": str(seeds.seed),
        "session": seeds.session,
        "policy": _name(policy),
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {**_versions(), **cast("dict[str, str]", recipe.get("versions", {}))},
    }


def _made_again(envs: Vector) -> dict[str, object]:
    """What other libraries ask about envs: their spaces, and how gymnasium makes one of them."""
    spaces = {
        "observation": space_to_json(envs.single_observation_space),
        "action": space_to_json(envs.single_action_space),
    }
    said = envs.metadata.get("env_spec")
    found: dict[str, object] = {"env_spec": said} if isinstance(said, str) else {}
    # Of an image with another bound for each pixel these would outweigh the rows.
    return {"spaces": spaces, **found} if len(json.dumps(spaces)) <= _SPACES_CHARS else found


def recipe_of(envs: Vector) -> dict[str, object]:
    """What the envs are: as `make_atari` and `make_vec` say, else what can be seen from outside."""
    declared = envs.metadata.get("stepwell")
    if isinstance(declared, dict):
        return cast("dict[str, object]", declared)
    return {
        "maker": "given",
        "env": _env_name(envs),
        "observation_space": str(envs.single_observation_space),
        "action_space": str(envs.single_action_space),
    }


def frame_skip(envs: Vector) -> int:
    """Emulator frames in one step, 1 where nothing is declared."""
    return int(cast("int", recipe_of(envs).get("frame_skip", 1)))


def frame_stack_of(envs: Vector, asked: int | None) -> tuple[int, Literal["zero", "repeat"]]:
    """How many frames the envs stack, and how they pad the first ones.

    Args:
        envs: The envs; what `make_atari` and `make_vec` declare counts, else what is seen of
            gymnasium's own wrappers.
        asked: The number that the user says; None takes what is known, and 1 where nothing is.

    Raises:
        ValueError: A stack is asked for of which the first frames cannot be made again.
    """
    recipe = recipe_of(envs)
    # Under wrappers too, as long as they leave the observations as they are.
    is_same = envs.single_observation_space == envs.unwrapped.single_observation_space
    is_ale = is_same and type(envs.unwrapped).__name__ == "AtariVectorEnv"
    stack, padding = recipe.get("frame_stack", 1), recipe.get("stack_padding", "repeat")
    if is_ale and "frame_stack" not in recipe:
        stack = cast("tuple[int, ...]", envs.single_observation_space.shape)[0]
        padding = "zero"
    elif not {"frame_stack", "stack_padding", "wrappers"} & set(recipe):
        stack, padding = _seen_stack(envs, asked)
    return cast("int", stack if asked is None else asked), cast(
        "Literal['zero', 'repeat']", padding
    )


def _seen_stack(envs: Vector, asked: int | None) -> tuple[int, str]:
    """What the wrappers of envs that declare nothing say."""
    from stepwell.wrappers.recipe import stack_of_vector  # loads all of gymnasium's wrappers

    if asked == 1:
        return 1, "repeat"
    stack, padding = stack_of_vector(envs) or (1, "repeat")
    if padding is not None:
        return stack, padding
    if asked is not None:
        raise ValueError(
            f"frame_stack={asked}: expected padding by zeros or by the first frame before an "
            f"episode, got FrameStackObservation with a frame of its own; leave it out, or say "
            f"frame_stack=1, to store whole stacks"
        )
    return 1, "repeat"


def _env_name(envs: Vector) -> str:
    """What the env is registered as, or its class."""
    inner = envs.unwrapped
    single = inner.envs[0] if isinstance(inner, SyncVectorEnv) else inner
    spec = envs.spec or single.spec
    return spec.id if spec is not None else type(single.unwrapped).__qualname__


def _name(policy: object) -> str:
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', '?')}"


def _versions() -> dict[str, str]:
    # Loads in some 10 ms, which `import stepwell` need not take.
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for package in ("stepwell", "gymnasium", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
