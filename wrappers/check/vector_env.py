"""Check the behavior of a vector env against its declarations."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from ...buffers.base.number_checks import check_whole
from ...buffers.spec.exact_values import BadValue, flags_of, rewards_of
from ...buffers.spec.open_spaces import lengths_of, original_space
from ..envpool import from_envpool, is_pool
from ..final_observations import ExactInfos, OverwriteDetector
from ..fixed_spaces import with_fixed_vector_spaces
from ..make_vector_env import declared_info, declared_mode, require_spaces
from .watch import (
    Leaves,
    MemoryWatch,
    RandomWatch,
    ResetWatch,
    StackWatch,
    StepCopy,
    StillWatch,
    all_limits_of,
    copied,
    device_of,
    leaves_of,
    outside_of,
    rows_equal,
)

Autoreset = Literal[
    "next_step",
    "same_step",
    "same_step_ale",
    "same_step_lost",
    "disabled",
    "goes_on",
    "mixed",
    "unproven",
]
FinalObservation = Literal["true", "repeats", "overwritten", "lost", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        topic: The property that was checked.
        found: The result.
        collector: The collector's way of handling it.
        is_problem: The user has to fix it.
    """

    topic: str
    found: str
    collector: str
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class VectorEnvReport:
    """The observed behavior of a vector env.

    Args:
        name: The vector env as text.
        num_envs: Number of envs.
        steps: Vector steps that were made.
        ends: Number of episode ends observed.
        declared: Name of the declared autoreset mode, such as "NEXT_STEP", or None.
        autoreset: The observed mode: "next_step"; "same_step" (as in Gymnasium: `final_obs` with a
            mask), "same_step_ale" (`final_obs` without a mask), "same_step_lost" (no final
            observation); "disabled"; "goes_on" (terminated without a reset: the game continues);
            "mixed" (continues after some ends); "unproven" (no end was observed, or it could not be
            classified).
        final_observation: "true"; "repeats" (it mostly equals the previous one); "overwritten" (it
            is in an array that the env has reused); "lost"; "unknown".
        same_memory: A step returns the arrays of the previous step.
        changes_later: The next step changes arrays that were returned before.
        is_asynchronous: A step returns rows of only some envs.
        is_reproducible: Equal seeds gave equal first observations.
        envs_differ: The first observations of the envs differ.
        frame_stack: Frames in a stack on the first axis of an observation; 1 for none.
        stack_padding: Padding of the stack: "zero", "repeat", or None.
        has_frame_counters: The info counts frames, as ale-py's does, which identifies resets.
        padded: Parts of observation and action without a fixed shape, by field name.
        declared_info: Info fields that the envs declare.
        tensor_device: Device of the tensors of PyTorch that the envs return; None for arrays.
        rewards_are_arrays: Each reward is an array of one number.
        global_random: Libraries from whose global random generators the envs draw ("python" for the
            module `random`), or which they seed; no seed of a reset determines that. A generator
            of a module or of a class of envs is told by its name, as ``my_env.rng``.
        shares_random: These generators are the same in several processes, so that several envs
            draw the same numbers.
        outside: What was seen of an observation outside of its space; empty for nothing.
        is_atari: The envs are Atari games.
        stands_still: Envs do not move in a step in which another one is reset.
        problems: Violations of the declared spaces, one sentence each.
    """

    name: str
    num_envs: int
    steps: int
    ends: int
    declared: str | None
    autoreset: Autoreset
    final_observation: FinalObservation
    same_memory: bool
    changes_later: bool
    is_asynchronous: bool
    is_reproducible: bool | None
    envs_differ: bool | None
    frame_stack: int
    stack_padding: Literal["zero", "repeat"] | None
    has_frame_counters: bool
    padded: tuple[str, ...]
    declared_info: tuple[str, ...]
    tensor_device: str | None
    rewards_are_arrays: bool
    global_random: tuple[str, ...]
    shares_random: bool
    outside: str
    is_atari: bool
    stands_still: bool
    problems: tuple[str, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The lines of the report."""
        problems = (Finding("spaces", one, "refuses the env", True) for one in self.problems)
        return (self._autoreset_finding(), *self._usual(), *self._unusual(), *problems)

    @property
    def is_fine(self) -> bool:
        """True if no finding is a problem."""
        return not any(finding.is_problem for finding in self.findings)

    def _autoreset_finding(self) -> Finding:
        found, collector = AUTORESETS[self.autoreset]
        expected = {"same_step_ale": "same_step", "same_step_lost": "same_step"}
        contradicts = self.autoreset not in ("unproven", "goes_on", "mixed") and (
            expected.get(self.autoreset, self.autoreset) != str(self.declared).lower()
        )
        is_bad = contradicts or self.declared is None or self.autoreset == "same_step_lost"
        if self.autoreset in ("goes_on", "mixed") and not self.has_frame_counters:
            collector, is_bad = "cannot detect it: would end episodes too early; wrap the env", True
        if contradicts:
            collector = "uses the declared mode: correct metadata['autoreset_mode'] first"
        if self.declared is None:
            collector = "refuses the env: set metadata['autoreset_mode']"
        declared = f"declared {self.declared or 'nothing'}, {self.ends} ends observed: {found}"
        return Finding("autoreset", declared, collector, is_bad)

    def _usual(self) -> Iterator[Finding]:
        """Findings about all envs."""
        found, collector = FINALS[self.final_observation]
        if self.final_observation == "repeats" and not self.is_atari:
            found, collector = "mostly equals the previous one", "stores it unchanged"
        is_bad = self.final_observation in ("overwritten", "lost")
        yield Finding("final observation", found, collector, is_bad)
        if self.changes_later or self.same_memory:
            found = "the next step modifies the arrays that this step returned"
            yield Finding("memory", found, "copies each row")
        else:
            yield Finding("memory", "each step returns new arrays", "has nothing to do")
        if self.is_asynchronous:
            found = "a step returns rows of some envs, given by info['env_id']"
            yield Finding("rows", found, "sorts rows by env_id")
        else:
            yield Finding("rows", "a step returns a row of each env", "keeps one stream per env")
        collector = "seeds each env once, at its first reset"
        if self.is_reproducible is None:
            yield Finding("seeds", "not checked", collector)
        else:
            same = "the same" if self.is_reproducible else "a different"
            differ = {True: "the envs differ", False: "all envs start alike", None: "one env"}
            found = f"the same seed gives {same} first observation; {differ[self.envs_differ]}"
            if not self.is_reproducible:
                collector = "cannot promise the same data for the same seed"
            yield Finding("seeds", found, collector)
        if self.frame_stack == 1:
            yield Finding("frame stack", "none found", "stores observations as they are")
        else:
            padding = self.stack_padding or "unknown padding"
            found = f"{self.frame_stack} frames on the first axis, padding: {padding}"
            yield Finding("frame stack", found, "stores each frame once, if the stack is declared")

    def _unusual(self) -> Iterator[Finding]:
        """Findings about few envs: open spaces, declared info, rewards in arrays, tensors."""
        if self.padded:
            names = ", ".join(self.padded[:3])
            names += f" and {len(self.padded) - 3} more" if len(self.padded) > 3 else ""
            stores = "stores padded arrays with lengths and masks; replay.decode gives values back"
            yield Finding("spaces", f"values without a fixed shape in {names}", stores)
        if self.declared_info:
            yield Finding(
                "info", f"the envs declare {', '.join(self.declared_info)}", "stores them"
            )
        if self.rewards_are_arrays:
            yield Finding("rewards", "arrays of one number", "stores the numbers")
        if self.global_random:
            drawn = f"from the global generator of {', '.join(self.global_random)}"
            handles = "cannot play them again from a seed: draw from self.np_random"
            if self.shares_random:
                drawn += ", the same numbers in several processes"
                # Workers of `make_vec` seed the libraries' generators, and no others.
                is_seeded = all("." not in name for name in self.global_random)
                cure = "stepwell.make_vec or np_random" if is_seeded else "self.np_random"
                handles = f"stores the same for several envs: use {cure}"
            yield Finding("random numbers", drawn, handles, self.shares_random)
        if self.outside:
            yield Finding("spaces", self.outside, "stores it, and warns once an env", True)
        if self.stands_still:
            stores = "would store rows that no action led to: use another vector env"
            yield Finding("steps", "when one env is reset, the others do not move", stores, True)
        # Arrays share the CPU's memory; from a device, each step would wait for a copy.
        if self.tensor_device == "cpu":
            reads = "reads them as arrays; stepwell.TorchEnvs brings many steps over at once"
            yield Finding("arrays", "tensors of PyTorch in the CPU's memory", reads)
        elif self.tensor_device is not None:
            refuses = "refuses the env: wrap it in stepwell.TorchEnvs"
            yield Finding("arrays", f"tensors of PyTorch on {self.tensor_device}", refuses, True)

    def __str__(self) -> str:
        rows = [("", "found", "the collector")]
        rows += [
            (f"{'!' if one.is_problem else ' '} {one.topic}", one.found, one.collector)
            for one in self.findings
        ]
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        lines = [f"{self.name}: {self.num_envs} envs, {self.steps} steps"]
        lines += [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join(line.rstrip() for line in lines)


AUTORESETS: dict[Autoreset, tuple[str, str]] = {
    "next_step": ("the next step resets", "stores that step as the first row of the next episode"),
    "same_step": (
        "the same step resets, final_obs with a mask",
        "takes the last row from info['final_obs']",
    ),
    "same_step_ale": (
        "the same step resets, final_obs without a mask",
        "takes the last row from info['final_obs'], by the flags",
    ),
    "same_step_lost": (
        "the same step resets, and there is no final_obs",
        "refuses the env: the last observation is lost; use NEXT_STEP",
    ),
    "disabled": ("the caller resets", "resets the envs that ended, by reset_mask"),
    "goes_on": (
        "terminated, but the game continues",
        "ends an episode only where the frame counters show a reset",
    ),
    "mixed": (
        "after some ends the game continues, after others it is reset",
        "ends an episode only where the frame counters show a reset",
    ),
    "unproven": ("too few ends observed", "uses the declared mode"),
}
FINALS: dict[FinalObservation, tuple[str, str]] = {
    "true": ("differs from the previous one", "stores it as the episode's last row"),
    "repeats": (
        "mostly equals the previous one: the last frame is not shown",
        "stores it unchanged; make_atari(backend='python') shows the true one",
    ),
    "overwritten": (
        "is in an array that the env reuses",
        "raises where it detects this; use autoreset mode NEXT_STEP",
    ),
    "lost": ("is not returned", "raises at the first end; use NEXT_STEP"),
    "unknown": ("too few ends observed", "stores it unchanged"),
}


AnyVectorEnv = VectorEnv[Any, Any, Any]


def check_vector_env(
    envs: AnyVectorEnv | Callable[[], AnyVectorEnv], *, steps: int = 500, seed: int = 0
) -> VectorEnvReport:
    """Step a vector env with random actions and report its actual behavior.

    The env is reset before and after, so do not check one while collecting. A vector env made by
    a factory is closed. Print the report to read it.

    Args:
        envs: A vector env, or a factory of one.
        steps: Vector steps to make, at least 10. Choose enough for a few episode ends, on which
            most of the report is based.
        seed: Seed of the actions and of the resets.

    Returns:
        The report: autoreset mode, memory, final observations, dtypes, seeds, frame stacks.

    Raises:
        ValueError: `steps` is below 10, or an observation has no array at all.
        TypeError: `envs` is not a vector env, or lacks the spaces of a single env.

    Example:
        >>> import gymnasium as gym
        >>> report = check_vector_env(lambda: gym.make_vec("CartPole-v1", num_envs=2), steps=100)
        >>> report.autoreset, report.final_observation, report.same_memory, report.is_fine
        ('next_step', 'true', False, True)
    """
    check_whole("steps", steps, 10)
    if isinstance(envs, VectorEnv):
        return _Check(envs, seed).report(steps)
    made: Any = envs() if callable(envs) else envs
    if not isinstance(made, VectorEnv):
        raise TypeError(
            f"envs has the wrong type: expected a gymnasium.vector.VectorEnv or a factory of one, "
            f"got {type(made).__name__}; make one with make_vec"
        )
    try:
        return _Check(made, seed).report(steps)
    finally:
        made.close()


class _Check:
    def __init__(self, envs: Any, seed: int) -> None:
        require_spaces(envs)
        # As the Collector does.
        envs = from_envpool(envs) if is_pool(envs) else with_fixed_vector_spaces(envs)
        self._envs, self._seed = envs, seed
        self._memory = MemoryWatch()
        self._limits = all_limits_of(envs.single_observation_space)
        self._outside = ""
        self._exact_infos, self._overwrites = ExactInfos(envs), OverwriteDetector()
        self._is_overwritten = False
        self._stack = StackWatch(envs.single_observation_space)
        self._resets = ResetWatch(self._stack.newest)
        self._random, self._still = RandomWatch(envs), StillWatch()
        self._problems: dict[str, None] = {}
        self._single = leaves_of(create_empty_array(envs.single_observation_space, 1))
        if not self._single:
            raise ValueError(
                f"envs: expected observations with at least one array, by which resets are seen, "
                f"got {envs.single_observation_space}; a Collector stores such envs unchecked"
            )
        self._actions = copy.deepcopy(envs.action_space)  # the env's generator is not used
        self._actions.seed(seed)
        self._declared = declared_mode(envs)
        self._tensor_device: str | None = None
        self._rewards_are_arrays = False
        self._is_asynchronous = False
        self._is_reproducible: bool | None = None
        self._envs_differ: bool | None = None
        self._disabled_resets = self._steps = 0

    def report(self, steps: int) -> VectorEnvReport:
        self._check_spaces()
        try:
            self._exact_infos.prepare()
        except ValueError as error:
            self._problem(str(error))
        try:
            self._observe(steps)
        except BadValue as error:
            self._problem(str(error))
        return self._summary()

    def _observe(self, steps: int) -> None:
        first = self._reset(self._seed)
        self._is_asynchronous = len(first[0]) < self._envs.num_envs
        if self._is_asynchronous:
            # Its rows change places between steps: only shapes and memory can be checked.
            for _ in range(10):
                self._check_step(*self._step())
                self._steps += 1
        else:
            self._check_seeds(first)
            self._run(steps)
            self._random.end()
            self._reset(self._seed)

    def _reset(self, seed: int) -> Leaves:
        with self._exact_infos:
            observation, _ = self._envs.reset(seed=seed)
        self._overwrites = OverwriteDetector()
        self._tensor_device = self._tensor_device or device_of(observation)
        leaves = leaves_of(observation)
        self._memory.see(leaves)
        return copied(leaves)

    def _step(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self._exact_infos:
            *rows, info = self._envs.step(self._actions.sample())
        if not isinstance(info, dict):
            self._problem(f"info is a {type(info).__name__} where a dict of arrays is expected")
            info = {}
        return *rows, info

    def _check_seeds(self, first: Leaves) -> None:
        again, other = (self._reset(self._seed + 1_000_003 * k) for k in (0, 1))
        self._is_reproducible = bool(rows_equal(first, again).all())
        if self._envs.num_envs > 1:
            rolled = [np.roll(leaf, 1, axis=0) for leaf in first]
            self._envs_differ = not rows_equal(first, rolled).all()
        for leaves in (first, again, other):
            self._resets.see_first(leaves)
            if len(leaves) == 1:
                self._stack.see_first(leaves[0])

    def _run(self, steps: int) -> None:
        last = self._reset(self._seed)
        self._random.begin()
        self._resets.forget(last)
        ended = np.zeros(self._envs.num_envs, np.bool_)
        for _ in range(steps):
            result = self._step()
            self._memory.see(leaves_of(result[0]))
            seen = self._check_step(*result)
            self._check_finals(seen.ended, leaves_of(result[0]), result[4])
            self._steps += 1
            if self._problems:
                return  # rows of wrong shapes cannot be compared
            self._resets.see(seen)
            inner = ~ended & ~seen.ended
            has_reset = seen.ended if self._declared == AutoresetMode.SAME_STEP else ended
            self._still.see(bool(has_reset.any()), rows_equal(last, seen.leaves)[inner])
            if len(last) == 1:
                self._stack.see(last[0][inner], seen.leaves[0][inner])
            last, ended = seen.leaves, seen.ended
            if self._declared == AutoresetMode.DISABLED and ended.any():
                self._resets.classify_finals(np.flatnonzero(ended))
                last = self._reset_ended(seen)
                ended = np.zeros_like(ended)

    def _check_finals(
        self, ended: npt.NDArray[np.bool_], batch: Leaves, info: dict[str, Any]
    ) -> None:
        """Check by their memory whether last observations were overwritten."""
        self._is_overwritten |= self._overwrites.overwritten(ended) is not None
        finals = info.get("final_obs")
        if isinstance(finals, np.ndarray) and finals.dtype.hasobject:
            for env in np.flatnonzero(ended).tolist():
                if finals[env] is not None:
                    self._is_overwritten |= self._overwrites.is_lost(
                        env, leaves_of(finals[env]), batch
                    )
        elif isinstance(finals, np.ndarray):
            self._is_overwritten |= np.shares_memory(finals, batch[0])

    def _reset_ended(self, seen: StepCopy) -> Leaves:
        """Reset the envs that ended, as the caller must in DISABLED mode."""
        ended = seen.ended
        with self._exact_infos:
            observation, _ = self._envs.reset(options={"reset_mask": ended.copy()})
        leaves = copied(leaves_of(observation))
        if not rows_equal(leaves, seen.leaves)[~ended].all():
            self._problem("reset(options={'reset_mask': ...}) changed envs that it should not")
        self._disabled_resets += int(ended.sum())
        self._resets.forget(leaves)
        return leaves

    def _check_step(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> StepCopy:
        leaves = leaves_of(observation)
        self._check_observation(observation)
        rows = len(leaves[0])
        self._rewards_are_arrays |= np.shape(reward) == (rows, 1)
        return StepCopy(
            copied(leaves),
            rewards_of(reward, rows),
            flags_of(terminated, rows, "terminated").copy(),
            flags_of(truncated, rows, "truncated").copy(),
            {key: copy.deepcopy(value) for key, value in info.items() if key in INFO_KEYS},
        )

    def _check_observation(self, observation: Any) -> None:
        got = leaves_of(observation)
        if len(got) != len(self._single):
            self._problem(
                f"an observation has {len(got)} parts where {len(self._single)} are declared"
            )
            return
        for want, have in zip(self._single, got, strict=True):
            if want.dtype != have.dtype or want.shape[1:] != have.shape[1:]:
                self._problem(
                    f"an observation is {have.dtype} {have.shape} where {want.dtype} (N, "
                    f"{', '.join(map(str, want.shape[1:]))}) is declared"
                )
                return
        for rows, limits in zip(got, self._limits, strict=True):
            if limits is not None and not self._outside:
                outside = outside_of(rows, limits)
                if np.count_nonzero(outside):
                    self._outside = (
                        f"env {int(outside.argmax())} gave a value that is NaN or outside of "
                        f"{original_space(self._envs.single_observation_space)}"
                    )

    def _check_spaces(self) -> None:
        envs = self._envs
        num_envs = getattr(envs.unwrapped, "batch_size", envs.num_envs)
        pairs = {
            "observation_space": (envs.observation_space, envs.single_observation_space),
            "action_space": (envs.action_space, envs.single_action_space),
        }
        for name, (batched, single) in pairs.items():
            if batch_space(single, num_envs) != batched:
                self._problem(
                    f"{name} is not {num_envs} times single_{name}: got {batched} and {single}"
                )

    def _problem(self, text: str) -> None:
        self._problems[text] = None

    def _summary(self) -> VectorEnvReport:
        autoreset, ends = self._autoreset()
        declared = self._declared
        single = self._envs.single_observation_space, self._envs.single_action_space
        return VectorEnvReport(
            name=str(self._envs),
            num_envs=self._envs.num_envs,
            steps=self._steps,
            ends=ends,
            declared=declared.name if isinstance(declared, AutoresetMode) else None,
            autoreset=autoreset,
            final_observation=self._final(),
            same_memory=self._memory.same_memory,
            changes_later=self._memory.changes_later,
            is_asynchronous=self._is_asynchronous,
            is_reproducible=self._is_reproducible,
            envs_differ=self._envs_differ,
            frame_stack=self._stack.frame_stack,
            stack_padding=self._stack.padding,
            has_frame_counters=self._resets.has_frame_counters,
            padded=tuple(name for space in single for name in lengths_of(space)),
            declared_info=tuple(declared_info(self._envs)),
            tensor_device=self._tensor_device,
            rewards_are_arrays=self._rewards_are_arrays,
            global_random=self._random.drawn,
            shares_random=self._random.is_shared,
            outside=self._outside,
            is_atari=self._is_atari(),
            stands_still=self._still.is_found,
            problems=tuple(self._problems),
        )

    def _is_atari(self) -> bool:
        kinds = [kind.__name__ for kind in type(self._envs.unwrapped).__mro__]
        recipe = self._envs.metadata.get("stepwell", {})
        own = recipe.get("env") if isinstance(recipe.get("env"), dict) else recipe
        words = " ".join(str(one.get(k)) for one in (recipe, own) for k in ("maker", "id", "game"))
        spec = getattr(self._envs, "spec", None)
        is_named = "ALE/" in f"{words} {spec and spec.id}" or "make_atari" in words
        return is_named or self._resets.has_frame_counters or "AtariVectorEnv" in kinds

    def _autoreset(self) -> tuple[Autoreset, int]:
        if self._disabled_resets:
            return "disabled", self._disabled_resets
        votes = self._resets.votes
        ends = votes.total()
        known: dict[Autoreset, int] = {
            vote: count for vote, count in votes.items() if vote != "unproven"
        }
        if not known:
            return "unproven", ends
        if "goes_on" in known:
            return ("goes_on" if len(known) == 1 else "mixed"), ends
        return max(known, key=known.__getitem__), ends

    def _final(self) -> FinalObservation:
        finals = self._resets.finals
        if self._is_overwritten:
            return "overwritten"
        if self._resets.finals_repeat:
            return "repeats"
        if finals["lost"] > finals["true"]:
            return "lost"
        return "true" if finals["true"] else "unknown"


INFO_KEYS = (
    *("final_obs", "_final_obs", "frame_number", "episode_frame_number"),
    *("elapsed_step", "_reset_seed"),
)
