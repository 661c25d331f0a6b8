"""The report of `check_vector_env`, as data and as a table."""

from dataclasses import dataclass
from typing import Literal

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
        return (
            self._autoreset_finding(),
            self._final_finding(),
            self._memory_finding(),
            self._rows_finding(),
            self._seed_finding(),
            self._stack_finding(),
            *self._kind_findings(),
            *(Finding("spaces", one, "refuses the env", True) for one in self.problems),
        )

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

    def _final_finding(self) -> Finding:
        found, collector = FINALS[self.final_observation]
        if self.final_observation == "repeats" and not self.is_atari:
            found, collector = "mostly equals the previous one", "stores it unchanged"
        is_bad = self.final_observation in ("overwritten", "lost")
        return Finding("final observation", found, collector, is_bad)

    def _memory_finding(self) -> Finding:
        if self.changes_later or self.same_memory:
            found = "the next step modifies the arrays that this step returned"
            return Finding("memory", found, "copies each row")
        return Finding("memory", "each step returns new arrays", "has nothing to do")

    def _rows_finding(self) -> Finding:
        if self.is_asynchronous:
            found = "a step returns rows of some envs, given by info['env_id']"
            return Finding("rows", found, "sorts rows by env_id")
        return Finding("rows", "a step returns a row of each env", "keeps one stream per env")

    def _seed_finding(self) -> Finding:
        if self.is_reproducible is None:
            return Finding("seeds", "not checked", "seeds each env once, at its first reset")
        same = "the same" if self.is_reproducible else "a different"
        differ = {True: "the envs differ", False: "all envs start alike", None: "one env"}
        found = f"the same seed gives {same} first observation; {differ[self.envs_differ]}"
        collector = "seeds each env once, at its first reset"
        if not self.is_reproducible:
            collector = "cannot promise the same data for the same seed"
        return Finding("seeds", found, collector)

    def _stack_finding(self) -> Finding:
        if self.frame_stack == 1:
            return Finding("frame stack", "none found", "stores observations as they are")
        padding = self.stack_padding or "unknown padding"
        found = f"{self.frame_stack} frames on the first axis, padding: {padding}"
        return Finding("frame stack", found, "stores each frame once, if the stack is declared")

    def _kind_findings(self) -> list[Finding]:
        """Findings about few envs: open spaces, declared info, rewards in arrays, tensors."""
        found: list[Finding] = []
        if self.padded:
            names = ", ".join(self.padded[:3])
            names += f" and {len(self.padded) - 3} more" if len(self.padded) > 3 else ""
            stores = "stores padded arrays with lengths and masks; replay.decode gives values back"
            found.append(Finding("spaces", f"values without a fixed shape in {names}", stores))
        if self.declared_info:
            names = ", ".join(self.declared_info)
            found.append(Finding("info", f"the envs declare {names}", "stores them"))
        if self.rewards_are_arrays:
            found.append(Finding("rewards", "arrays of one number", "stores the numbers"))
        if self.global_random:
            drawn = f"from the global generator of {', '.join(self.global_random)}"
            handles = "cannot play them again from a seed: draw from self.np_random"
            if self.shares_random:
                drawn += ", the same numbers in several processes"
                # Workers of `make_vec` seed the libraries' generators, and no others.
                is_seeded = all("." not in name for name in self.global_random)
                cure = "stepwell.make_vec or np_random" if is_seeded else "self.np_random"
                handles = f"stores the same for several envs: use {cure}"
            found.append(Finding("random numbers", drawn, handles, self.shares_random))
        if self.outside:
            found.append(Finding("spaces", self.outside, "stores it, and warns once an env", True))
        if self.stands_still:
            stores = "would store rows that no action led to: use another vector env"
            still = "when one env is reset, the others do not move"
            found.append(Finding("steps", still, stores, True))
        # Arrays share the CPU's memory; from a device, each step would wait for a copy.
        if self.tensor_device == "cpu":
            reads = "reads them as arrays; stepwell.TorchEnvs brings many steps over at once"
            found.append(Finding("arrays", "tensors of PyTorch in the CPU's memory", reads))
        elif self.tensor_device is not None:
            refuses = "refuses the env: wrap it in stepwell.TorchEnvs"
            found.append(
                Finding("arrays", f"tensors of PyTorch on {self.tensor_device}", refuses, True)
            )
        return found

    def __str__(self) -> str:
        """Return the report as a table."""
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
