"""What `check_vector_env` found, as data and as a table."""

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
        topic: What was looked at.
        found: What was found.
        collector: What the collector does about it.
        is_problem: Whether the user should do something about it.
    """

    topic: str
    found: str
    collector: str
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class VectorEnvReport:
    """What a vector env really does.

    Args:
        name: The vector env, as it prints.
        num_envs: Number of envs.
        steps: Vector steps that were made.
        ends: Ends of episodes that were seen.
        declared: The declared autoreset mode's name, such as "NEXT_STEP"; None without one.
        autoreset: What it practises: "next_step"; "same_step" (gymnasium's dialect: `final_obs`
            with a mask), "same_step_ale" (`final_obs` without a mask), "same_step_lost" (no
            final observation at all); "disabled"; "goes_on" (terminated, but no reset: the game
            goes on); "mixed" (some of its ends go on); "unproven" (no end seen, or nothing to
            tell by).
        final_observation: "true"; "repeats" (it mostly equals the one before); "overwritten" (it
            lies in an array that the env has written again); "lost"; "unknown".
        same_memory: Whether a step returns the arrays of the step before.
        changes_later: Whether a batch that was held has another content after the next step.
        is_asynchronous: Whether a step brings rows of only some envs.
        is_reproducible: Whether equal seeds gave equal first observations.
        envs_differ: Whether the envs' first observations differ.
        frame_stack: Frames in a stack on the first axis of an observation; 1 for none.
        stack_padding: How the stack begins: "zero", "repeat", or None.
        has_frame_counters: Whether info counts frames, as ale-py does, which tells resets for sure.
        problems: What does not fit the declared spaces, a sentence each.
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
            *(Finding("spaces", one, "refuses the env", True) for one in self.problems),
        )

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing that the user should do something about."""
        return not any(finding.is_problem for finding in self.findings)

    def _autoreset_finding(self) -> Finding:
        found, collector = AUTORESETS[self.autoreset]
        expected = {"same_step_ale": "same_step", "same_step_lost": "same_step"}
        contradicts = self.autoreset not in ("unproven", "goes_on", "mixed") and (
            expected.get(self.autoreset, self.autoreset) != str(self.declared).lower()
        )
        is_bad = contradicts or self.declared is None or self.autoreset == "same_step_lost"
        if self.autoreset in ("goes_on", "mixed") and not self.has_frame_counters:
            collector, is_bad = "cannot tell: would end episodes that go on; wrap the env", True
        if contradicts:
            collector = "goes by the declared mode: correct metadata['autoreset_mode'] first"
        if self.declared is None:
            collector = "refuses the env: set metadata['autoreset_mode']"
        declared = f"declared {self.declared or 'nothing'}, {self.ends} ends seen: {found}"
        return Finding("autoreset", declared, collector, is_bad)

    def _final_finding(self) -> Finding:
        found, collector = FINALS[self.final_observation]
        is_bad = self.final_observation in ("overwritten", "lost")
        return Finding("final observation", found, collector, is_bad)

    def _memory_finding(self) -> Finding:
        if self.changes_later or self.same_memory:
            found = "the next step writes into the arrays that this step returned"
            return Finding("memory", found, "copies each row at once")
        return Finding("memory", "each step returns new arrays", "needs nothing else")

    def _rows_finding(self) -> Finding:
        if self.is_asynchronous:
            found = "a step brings rows of some envs; info['env_id'] says of which"
            return Finding("rows", found, "sorts rows by env_id")
        return Finding("rows", "a step brings a row of each env", "keeps one stream for each env")

    def _seed_finding(self) -> Finding:
        if self.is_reproducible is None:
            return Finding("seeds", "not tried", "seeds each env once, at its first reset")
        same = "the same" if self.is_reproducible else "another"
        differ = {True: "the envs differ", False: "all envs begin alike", None: "one env"}
        found = f"the same seed gives {same} first observation; {differ[self.envs_differ]}"
        collector = "seeds each env once, at its first reset"
        if not self.is_reproducible:
            collector = "cannot promise the same data for the same seed"
        return Finding("seeds", found, collector)

    def _stack_finding(self) -> Finding:
        if self.frame_stack == 1:
            return Finding("frame stack", "none seen", "stores observations as they are")
        padding = self.stack_padding or "unknown padding"
        found = f"{self.frame_stack} frames on the first axis, begins with: {padding}"
        return Finding("frame stack", found, "stores each frame once, if the stack is declared")

    def __str__(self) -> str:
        """The report as a table."""
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
    "next_step": ("the next step resets", "takes that step as the next episode's first row"),
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
        "terminated, but the game goes on",
        "ends an episode only where the frame counters show a reset",
    ),
    "mixed": (
        "after some ends the game goes on, others reset",
        "ends an episode only where the frame counters show a reset",
    ),
    "unproven": ("nothing to tell by", "goes by the declared mode"),
}
FINALS: dict[FinalObservation, tuple[str, str]] = {
    "true": ("is one of its own", "stores it as the episode's last row"),
    "repeats": (
        "mostly equals the one before: the last frame is not shown",
        "stores it as it is; make_atari(backend='python') shows the true one",
    ),
    "overwritten": (
        "lies in an array that is written again: a live buffer",
        "refuses the env where memory proves it; use autoreset mode NEXT_STEP",
    ),
    "lost": ("is not handed out", "refuses the env at the first end; use NEXT_STEP"),
    "unknown": ("too few ends seen", "stores what comes"),
}
