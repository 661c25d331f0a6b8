"""Observers of the steps of a vector env: memory, frame stacks, and resets."""

import hashlib
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv

from ...buffers.spec.open_spaces import FixedSequence, FixedSpace, FixedText
from ..workers.vector_env import WorkerVectorEnv

Array = npt.NDArray[Any]
Leaves = list[Array]
Vote = Literal[
    "next_step", "same_step", "same_step_ale", "same_step_lost", "goes_on", "unproven", "disabled"
]
Limits = tuple[Any, Any] | Array  # the lowest and the highest values, or all allowed ones
MAX_RESETS = 64  # first observations that are remembered to compare with


def leaves_of(value: Any) -> Leaves:
    """Return the arrays of a batched observation in a fixed order, not copied."""
    if isinstance(value, Mapping):
        keyed = cast("Mapping[str, Any]", value)
        return [leaf for key in sorted(keyed) for leaf in leaves_of(keyed[key])]
    parts: Any = value
    if isinstance(value, tuple):
        return [leaf for part in parts for leaf in leaves_of(part)]
    if device_of(value) not in (None, "cpu"):
        value = parts.cpu()
    return [np.asarray(value)]


def global_states() -> tuple[int, dict[str, str]]:
    """This process, and fingerprints of the random generators that all of its code shares."""
    # By library, or by module and name. Those of modules, and of classes of envs, are copied to
    # forked workers as the libraries' are.
    python: Any = random.getstate
    legacy: Any = np.random.get_state
    found: dict[str, object] = {"python": python(), "numpy": {**legacy(legacy=False)}}
    known = {id(python.__self__), id(legacy.__self__)}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        found["torch"] = torch.get_rng_state().numpy().tobytes()
        known.add(id(torch.default_generator))
    for module, names in list(sys.modules.items()):
        if type(names) is ModuleType:  # others may load what they stand for
            for name, value in _shared_values(vars(names)):
                state = None if id(value) in known else _state_of(value, torch)
                if state is not None:
                    known.add(id(value))
                    found[f"{module}.{name}"] = state
    with np.printoptions(threshold=sys.maxsize):
        states = {k: hashlib.md5(repr(one).encode()).hexdigest() for k, one in found.items()}
    return os.getpid(), states


def _shared_values(names: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The values of a module and of its classes of envs, with their names."""
    for name, value in list(names.items()):
        yield name, value
        # Not `isinstance`: for a proxy, that may load what it stands for.
        if issubclass(type(value), type) and issubclass(cast("type", value), gymnasium.Env):
            yield from ((f"{name}.{own}", one) for own, one in list(vars(value).items()))


def _state_of(value: object, torch: Any) -> object:
    """The state of a random generator; None for anything else."""
    kind = type(value)
    if issubclass(kind, np.random.Generator):
        return cast("np.random.Generator", value).bit_generator.state
    if issubclass(kind, np.random.RandomState):
        return cast("np.random.RandomState", value).get_state(legacy=False)
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        return cast("random.Random", value).getstate()
    if hasattr(torch, "Generator") and issubclass(kind, torch.Generator):
        return cast("Any", value).get_state().cpu().numpy().tobytes()
    return None


class RandomWatch:
    """Sees whether envs draw from random generators that all code of their process shares."""

    _NAME = "_stepwell_global_states"

    def __init__(self, envs: Any) -> None:
        self._inner: Any = envs.unwrapped
        self._is_elsewhere = isinstance(self._inner, AsyncVectorEnv | WorkerVectorEnv)
        self._before: list[tuple[int, dict[str, str]]] = []
        self.drawn: tuple[str, ...] = ()
        """Libraries, or names in modules, from whose generators was drawn."""
        self.is_shared = False
        """Several processes drew the same numbers."""

    def begin(self) -> None:
        """Note the generators, after all envs were reset with different seeds."""
        self._before = self._states()

    def end(self) -> None:
        """Compare them, before any env is given a seed again."""
        pairs = [
            (old, new) for (_, old), (_, new) in zip(self._before, self._states(), strict=True)
        ]
        names = dict.fromkeys(name for before, _ in pairs for name in before)
        moved = [k for k in names if any(old.get(k) != new.get(k) for old, new in pairs)]
        self.drawn = tuple(moved)
        processes = dict(self._before).values()
        each = [[states[name] for states in processes if name in states] for name in moved]
        self.is_shared = any(len(set(states)) < len(states) for states in each)

    def _states(self) -> list[tuple[int, dict[str, str]]]:
        """Those of each env's process."""
        if not self._is_elsewhere:
            return [global_states()]
        # Their workers know no other way to run a function of ours.
        self._inner.set_attr(self._NAME, global_states)
        try:
            return list(self._inner.call(self._NAME))
        finally:
            self._inner.set_attr(self._NAME, None)


def all_limits_of(space: spaces.Space[Any], padded: bool = False) -> list[Limits | None]:
    """The limits of the plain spaces of a nested one, in the order of `leaves_of`."""
    # ``padded``: zeros may stand where there is no value, as in the arrays of a `FixedSpace`.
    if isinstance(space, FixedText) and (text := space.limits()) is not None:
        lengths, codes = text
        return [np.append(lengths, 0) if padded else lengths, None, np.append(codes, 0)]
    padded |= isinstance(space, FixedSpace)
    parts: Any = None
    if isinstance(space, FixedSequence):  # whose ``value`` holds many items: of texts, too
        parts = [space["length"], space["mask"], space.item]
    elif isinstance(space, spaces.Dict):
        parts = [space[key] for key in sorted(space.spaces)]
    elif isinstance(space, spaces.Tuple):
        parts = space.spaces
    if parts is not None:
        return [limits for part in parts for limits in all_limits_of(part, padded)]
    limits = limits_of(space)
    if limits is None or not padded:
        return [limits]
    return [(np.minimum(limits[0], 0), np.maximum(limits[1], 0))]


def limits_of(space: spaces.Space[Any]) -> tuple[Any, Any] | None:
    """The lowest and the highest values of a plain space; None where its dtype holds no others."""
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iuf" or not space.low.size:
        return None
    # One number where all are equal, with which arrays are compared faster.
    low, high = (
        one.flat[0] if (one == one.flat[0]).all() else one for one in (space.low, space.high)
    )
    if space.dtype.kind != "f":  # else there is NaN
        dtype = np.iinfo(space.dtype)
        if np.all(low <= dtype.min) and np.all(high >= dtype.max):
            return None
    return low, high


def outside_of(rows: Array, limits: Limits) -> npt.NDArray[np.bool_]:
    """[n] bool: rows with a value that is not within the limits; NaN never is."""
    inside: Any = inside_of(rows, limits)
    outside: npt.NDArray[np.bool_] = ~inside.all(axis=tuple(range(1, inside.ndim)))
    return outside


def inside_of(rows: Array, limits: Limits) -> npt.NDArray[np.bool_]:
    """Of the shape of the rows, bool: values within the limits."""
    if isinstance(limits, np.ndarray):
        return np.isin(rows, limits)
    inside: npt.NDArray[np.bool_] = (rows >= limits[0]) & (rows <= limits[1])
    return inside


class StillWatch:
    """Sees whether envs stand still in steps in which another one is reset."""

    def __init__(self) -> None:
        self._rows = np.zeros(2, np.int64)  # without a reset, and with one of another env
        self._repeats = np.zeros(2, np.int64)

    def see(self, has_reset: bool, repeats: npt.NDArray[np.bool_]) -> None:
        """Compare ordinary rows of a step: those that equal the row before are marked."""
        self._rows[int(has_reset)] += len(repeats)
        self._repeats[int(has_reset)] += int(np.count_nonzero(repeats))

    @property
    def is_found(self) -> bool:
        """True if envs hardly ever move in such steps, and mostly do in others."""
        usual, still = (self._repeats / np.maximum(self._rows, 1)).tolist()
        return bool(self._rows[1] > 2 and still > 0.9 and usual < 0.5)


def device_of(value: Any) -> str | None:
    """Return the device of the first tensor of PyTorch in a nested value, or None."""
    if isinstance(value, Mapping):
        value = tuple(cast("Mapping[str, Any]", value).values())
    if isinstance(value, tuple):
        found = map(device_of, value)
        return next((device for device in found if device is not None), None)
    is_tensor = type(value).__module__.split(".")[0] == "torch" and hasattr(value, "device")
    return str(value.device.type) if is_tensor else None


def copied(leaves: Leaves) -> Leaves:
    """Return copies of the arrays."""
    return [leaf.copy() for leaf in leaves]


def rows_equal(left: Leaves, right: Leaves) -> npt.NDArray[np.bool_]:
    """Return a mask [N] of the rows that are equal in all arrays; NaN equals NaN."""
    same = np.ones(len(left[0]), np.bool_)
    for a, b in zip(left, right, strict=True):
        equal = (a == b) | ((a != a) & (b != b))
        same &= equal.all(axis=tuple(range(1, equal.ndim)))
    return same


class StepCopy(NamedTuple):
    """One step: copies of the arrays of the observation, reward, flags and info."""

    leaves: Leaves
    reward: Array
    terminated: Array
    truncated: Array
    info: Mapping[str, Any]

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Mask [N] of the envs whose episode ended."""
        return np.asarray(self.terminated | self.truncated, np.bool_)


class MemoryWatch:
    """Detects arrays that are returned twice, or modified after they were returned."""

    def __init__(self) -> None:
        self.same_memory = self.changes_later = False
        self._held: Leaves = []
        self._copies: Leaves = []

    def see(self, returned: Leaves) -> None:
        """Process the arrays that a call returned, before anything else uses them."""
        if len(returned) == len(self._held):
            pairs = zip(self._held, returned, strict=True)
            self.same_memory |= any(np.may_share_memory(a, b) for a, b in pairs)
            held = zip(self._held, self._copies, strict=True)
            self.changes_later |= any(a.tobytes() != b.tobytes() for a, b in held)
        self._held, self._copies = list(returned), copied(returned)


class StackWatch:
    """Detects frame stacks: observations that are the previous one shifted by a frame."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        shape = space.shape if isinstance(space, spaces.Box) else None
        self._size = shape[0] if shape else 1
        self._is_stack = 1 < self._size <= 16
        self._moved = False
        self._padding: set[str] = set()

    def see_first(self, leaf: Array) -> None:
        """Process first observations [n, ...]."""
        if not self._is_stack:
            return
        before, newest = leaf[:, :-1], leaf[:, -1:]
        if not newest.any():
            return  # an empty frame looks like padding
        if not before.any():
            self._padding.add("zero")
        elif (before == newest).all():
            self._padding.add("repeat")
        else:
            self._padding.add("other")

    def see(self, before: Array, after: Array) -> None:
        """Process observations [n, ...] of two steps inside episodes."""
        if self._is_stack and len(after):
            self._is_stack = bool((after[:, :-1] == before[:, 1:]).all())
            self._moved |= bool((after[:, -1] != after[:, -2]).any())

    def newest(self, leaves: Leaves) -> Leaves:
        """Return the newest frame of a known stack, else the whole observation."""
        return leaves if self.frame_stack == 1 else [leaf[:, -1] for leaf in leaves]

    @property
    def frame_stack(self) -> int:
        """Frames in a stack; 1 for none."""
        return self._size if self._is_stack and self._moved else 1

    @property
    def padding(self) -> Literal["zero", "repeat"] | None:
        """Padding of the stack; None if it is another one, or unknown."""
        if self.frame_stack == 1:
            return None
        if self._padding == {"zero"}:
            return "zero"
        return "repeat" if self._padding == {"repeat"} else None


class ResetWatch:
    """Classifies each end of an episode by the steps after it."""

    # ``newest`` returns the newest frames of frame stacks.

    def __init__(self, newest: Callable[[Leaves], Leaves]) -> None:
        self._newest = newest
        self.has_frame_counters = False
        self.votes: Counter[Vote] = Counter()
        self.finals: Counter[str] = Counter()
        self._firsts: list[Leaves] = []  # one row each
        self._scales: list[float] = []
        self._before: StepCopy | None = None
        self._last: StepCopy | None = None
        self._rewarded = self._inner = self._repeated = 0

    def see_first(self, leaves: Leaves, rows: npt.NDArray[np.bool_] | None = None) -> None:
        """Add first observations, which later observations are compared with."""
        indices = range(len(leaves[0])) if rows is None else np.flatnonzero(rows)
        for row in indices:
            self._firsts.append([leaf[row].copy() for leaf in leaves])
        del self._firsts[:-MAX_RESETS]
        self._scale(leaves)

    def forget(self, leaves: Leaves) -> None:
        """Restart after the caller has reset all envs, with these observations."""
        nothing = np.zeros(len(leaves[0]), np.bool_)
        self._before = None
        self._last = StepCopy(leaves, nothing.astype(np.float64), nothing, nothing, {})

    def see(self, now: StepCopy) -> None:
        """Process a step."""
        self._scale(now.leaves)
        last = self._last
        if last is not None:
            self._classify_last_ends(last, now)
            inner = ~last.ended & ~now.ended
            self._inner += int(inner.sum())
            self._rewarded += int((now.reward[inner] != 0).sum())
            self._repeated += int((self._repeats(last, now) & inner).sum())
        self._classify_same_step(now)
        self._before, self._last = last, now

    def _scale(self, leaves: Leaves) -> None:
        largest = [float(np.abs(leaf.astype(np.float64)).max(initial=0)) for leaf in leaves]
        old = self._scales or [1e-9] * len(leaves)
        self._scales = [max(a, b, 1e-9) for a, b in zip(old, largest, strict=True)]

    def _repeats(self, before: StepCopy, after: StepCopy) -> npt.NDArray[np.bool_]:
        return rows_equal(self._newest(before.leaves), self._newest(after.leaves))

    def _classify_same_step(self, now: StepCopy) -> None:
        """Classify ends whose step returned both the final observation and that of the reset."""
        if "final_obs" not in now.info:
            return
        is_masked = "_final_obs" in now.info
        for env in np.flatnonzero(now.ended):
            self.votes["same_step" if is_masked else "same_step_ale"] += 1
            final = leaves_of(now.info["final_obs"][env])
            if self._last is not None:
                whole = [leaf.copy() for leaf in now.leaves]
                for leaf, part in zip(whole, final, strict=True):
                    leaf[env] = part
                self._classify_final(int(env), self._last, now._replace(leaves=whole))

    def _classify_last_ends(self, last: StepCopy, now: StepCopy) -> None:
        """Classify the ends of the previous step by this step."""
        if "final_obs" in last.info:
            return
        self.has_frame_counters |= "frame_number" in now.info
        for env in np.flatnonzero(last.ended):
            vote = self._vote(int(env), last, now)
            self.votes[vote] += 1
            if vote == "next_step":
                self.see_first(now.leaves, np.arange(len(last.ended)) == env)
            if vote == "same_step_lost":
                self.finals["lost"] += 1
            elif self._before is not None and not self._before.ended[env]:
                self._classify_final(int(env), self._before, last)

    def classify_finals(self, envs: npt.NDArray[np.int64]) -> None:
        """Classify the final observations of these envs, which the newest step returned."""
        if self._before is not None and self._last is not None:
            for env in envs:
                self._classify_final(int(env), self._before, self._last)

    def _classify_final(self, env: int, before: StepCopy, last: StepCopy) -> None:
        self.finals["repeats" if self._repeats(before, last)[env] else "true"] += 1

    def _vote(self, env: int, last: StepCopy, now: StepCopy) -> Vote:
        if "_reset_seed" in now.info and now.info["_reset_seed"][env] and not now.ended[env]:
            return "next_step"  # the frame counters may have begun anew, both of them
        if "episode_frame_number" in now.info and "frame_number" in last.info:
            # ale-py's two frame counters, total and per episode; a reset makes them differ.
            keys = "frame_number", "episode_frame_number"
            moves = [now.info[key][env] - last.info[key][env] for key in keys]
            return "goes_on" if moves[0] == moves[1] else "next_step"
        if "elapsed_step" in now.info and now.info["elapsed_step"][env] == 0:
            return "next_step"  # of EnvPool, which may repeat the reward of the step before
        is_quiet = not (now.ended[env] or now.reward[env] != 0)
        begins_now = self._begins(env, last, now)
        if self._before is not None and not begins_now and self._begins(env, self._before, last):
            return "same_step_lost"
        if not is_quiet:
            return "goes_on"
        is_conclusive = self._rewarded > 0.9 * max(self._inner, 1)
        return "next_step" if begins_now or is_conclusive else "unproven"

    def _begins(self, env: int, before: StepCopy, after: StepCopy) -> bool:
        """Return True if an observation is much closer to a first one than to the previous one."""
        row = [leaf[env] for leaf in after.leaves]
        step = self._distance(row, [leaf[env] for leaf in before.leaves])
        return any(self._distance(row, first) < 0.5 * step for first in self._firsts)

    def _distance(self, left: Leaves, right: Leaves) -> float:
        parts = zip(left, right, self._scales, strict=True)
        return sum(
            float(np.abs(a.astype(np.float64) - b).mean()) / scale
            for a, b, scale in parts
            if a.size
        )

    @property
    def finals_repeat(self) -> bool:
        """True if final observations mostly repeat the previous one, and others rarely do."""
        repeats, others = self.finals["repeats"], self.finals["true"]
        is_usual = self._repeated > 0.2 * max(self._inner, 1)
        return repeats >= max(2, others) and not is_usual
