"""Steps vector envs of any autoreset mode; the table of modes is at the head of `step_loop.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from ...buffers import Layout, Tree
from ...buffers.base.native import crc32
from ...buffers.base.untrusted_json import items, mapping, member, whole
from ...buffers.spec.exact_values import BadValue
from ...wrappers.final_observations import ExactInfos
from .action_log import ActionLog, Past
from .reset_seeds import takes_seeds_of_some
from .result_reader import ResultReader
from .step_result import StepResult
from .steps_ahead import StepsAhead
from .vector_envs import is_ale, is_partial, refuse_bad_reset, split_step


class Stepper:
    """Steps one vector env; its reader keeps the newest observations for the policy."""

    def __init__(
        self,
        reader: ResultReader,
        action: Layout,  # the nesting of the envs' actions
        # Of envs on a device, which are not stepped here; None for all others
        ahead: StepsAhead | None = None,
    ) -> None:
        self.reader = reader
        self._envs = envs = reader.envs
        self._log: ActionLog | None = None  # of envs that may be brought back
        if ahead is None and not is_partial(envs):
            is_alone = takes_seeds_of_some(envs)
            self._log = ActionLog(envs.num_envs, action, is_alone=is_alone)
            reader.reset_seeds.log = self._log
        self.env_ids: np.ndarray | None = None
        """[n] envs of the newest rows; None for all of them."""
        if ahead is None:
            self._send, self._receive = split_step(envs)
        else:
            self._send, self._receive = ahead.send, ahead.receive
        self._exact_infos = ExactInfos(envs)
        self.is_waiting = False
        """A step was sent, and not received."""
        self._was_reset = False

    def reset(self, seed: int | Sequence[int]) -> list[StepResult]:
        """Reset all envs, if they can be now; env i gets ``seed + i``, or the i-th seed."""
        self.drain()
        reader = self.reader
        refuse_bad_reset(self._envs, self._was_reset, bool(reader.ended.any()))
        self._exact_infos.prepare()
        with self._exact_infos:
            observation, info = self._reset_all(seed)
        seeds = range(seed, seed + self._envs.num_envs) if isinstance(seed, int) else seed
        result = reader.of_reset(observation, info, dict(enumerate(seeds)))
        self._was_reset = True
        self.env_ids = reader.env_ids
        return [result]

    def send(self, action: Tree) -> None:
        """Begin a step; other work can be done before `receive`."""
        if self._log is not None:
            self._log.add(action)
        self._send(action)
        self.is_waiting = True

    def receive(self) -> list[StepResult]:
        """Finish the step and return its rows, in the order in which they count."""
        self.is_waiting = False
        with self._exact_infos:
            step = self._receive()
        reader = self.reader
        results = reader.of_step(step)
        if reader.mode is AutoresetMode.DISABLED:
            if reader.any_ended:
                seeds = reader.reset_seeds.draw(reader.due)
                results.append(self._reset_some(reader.ended, seeds))
        elif reader.due:
            seeds = reader.reset_seeds.draw(reader.due)
            results.append(self._reset_some(reader.marked(reader.due), seeds))
        self.env_ids = reader.env_ids
        return results

    @property
    def newest(self) -> list[StepResult]:
        """The newest rows."""
        return self.reader.newest

    def receive_pending(self) -> list[StepResult]:
        """Receive pending results that need no further action; a single vector env has none."""
        return []

    def drain(self) -> None:
        """Finish a step that was sent and not received, and drop its result."""
        if self.is_waiting:
            self.is_waiting = False
            with self._exact_infos:
                self._receive()

    def state_dict(self, *, is_open: bool) -> dict[str, object]:
        """The seeds of resets; of open episodes the way back too, and what the envs then show."""
        reader = self.reader
        seeds: dict[str, object] = {"reset_seeds": reader.reset_seeds.state_dict()}
        if not is_open:
            return seeds
        return {
            **seeds,
            "log": None if self._log is None else self._log.state_dict(),
            "rows": {name: _checksums(rows) for name, rows in reader.leaves.items()},
            "ended": reader.ended.tolist(),
        }

    def bring_back(self, state: object, *, is_open: bool) -> str:
        """Play new envs up to a state of `state_dict`; why that failed, or nothing."""
        told = mapping(state, "envs")
        why = self._bring_back(told) if is_open else ""
        # Also where that failed: none of these seeds is to be drawn twice.
        self.reader.reset_seeds.load_state_dict(member(told, "reset_seeds"))
        return why

    def _bring_back(self, told: dict[str, object]) -> str:
        reader = self.reader
        if self._log is None or member(told, "log") is None:
            return "no seeds and actions lead to where they were"
        past = self._log.past_of(told["log"])
        try:
            with reader.reset_seeds.paused():
                self._play(past)
        except Exception as error:
            return f"playing its actions again failed: {type(error).__name__}: {error}"
        expected = mapping(member(told, "rows"), "rows")
        found = {name: _checksums(rows) for name, rows in reader.leaves.items()}
        wrong = {
            env
            for name, sums in found.items()
            for env, (a, b) in enumerate(zip(sums, items(expected.get(name), name), strict=False))
            if a != b
        }
        if wrong or expected.keys() != found.keys() or told.get("ended") != reader.ended.tolist():
            return f"env {min(wrong, default=0)} shows something else than it did"
        return ""

    def _play(self, past: Past) -> None:
        """Play again what new envs of the same kind have played since they were seeded."""
        assert self._log is not None
        first, n = past.seeds[0], len(past.seeds)
        # As the Collector gave them: some vector envs take one number only.
        is_one = past.is_given and past.seeds == list(range(first, first + n))
        self.reset(int(first) if is_one else past.seeds)
        for step in range(past.steps + 1):
            young = [env for env, since in enumerate(past.since) if since == step > 0]
            if young:
                seeds = {env: past.seeds[env] for env in young}
                self._reset_some(self.reader.marked(young), seeds)
                self.env_ids = self.reader.env_ids
            if step < past.steps:
                self.send(self._log.action_of(past, step))
                self.receive()

    def _reset_all(self, seed: int | Sequence[int]) -> tuple[Any, Any]:
        if isinstance(seed, int):  # every vector env takes one number
            return self._envs.reset(seed=seed)
        # ale-py takes an array of seeds and no list, the others vice versa.
        many: Any = np.array(seed, np.int64) if is_ale(self._envs) else list(seed)
        try:
            return self._envs.reset(seed=many)
        except BadValue:
            raise
        except (TypeError, ValueError, AssertionError, gymnasium.error.Error) as error:
            kind = type(self._envs.unwrapped).__name__
            raise ValueError(
                f"seeds: expected envs that take a seed each, got {kind} ({error}); make them with "
                f"stepwell.make_vec"
            ) from error

    def _reset_some(self, chosen: np.ndarray, seeds: Mapping[int, int]) -> StepResult:
        """Reset the envs marked in ``chosen`` [N], with a seed those that have one."""
        chosen = chosen.copy()
        given: dict[str, Any] = {"options": {"reset_mask": chosen.copy()}}
        if seeds and is_ale(self._envs):  # of the envs that are reset
            given["seed"] = np.array(list(seeds.values()), np.int64)
        elif seeds:
            given["seed"] = [seeds.get(env) for env in range(self._envs.num_envs)]
        with self._exact_infos:
            observation, info = self._envs.reset(**given)
        return self.reader.of_some_resets(observation, info, chosen, seeds)


class InterleavedSteppers:
    """Steps several vector envs in turns: the policy computes for one while the others step."""

    # It is used as one `Stepper` that answers for one group of envs at a time. Envs are numbered
    # through: those of the first group come first.

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        self._steppers = list(steppers)
        counts = [stepper.reader.num_envs for stepper in steppers]
        ends = np.cumsum(counts).tolist()
        self._env_ids = [np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._turn = 0

    @property
    def reader(self) -> ResultReader:
        """The reader of the group whose turn it is."""
        return self._steppers[self._turn].reader

    @property
    def env_ids(self) -> np.ndarray | None:
        """[n] envs of the group whose turn it is."""
        return self._env_ids[self._turn]

    @property
    def newest(self) -> list[StepResult]:
        """The newest rows of all groups, none of which is stepping."""
        return [
            result.renumbered(env_ids)
            for env_ids, stepper in zip(self._env_ids, self._steppers, strict=True)
            for result in stepper.newest
        ]

    def reset(self, seed: int | Sequence[int]) -> list[StepResult]:
        """Reset all envs; env i gets ``seed + i``, or the i-th seed."""
        self.drain()
        self._turn = 0
        return [
            result.renumbered(env_ids)
            for env_ids, stepper in zip(self._env_ids, self._steppers, strict=True)
            for result in stepper.reset(_seeds_of(env_ids, seed))
        ]

    def send(self, action: Tree) -> None:
        """Begin a step of the group whose turn it is."""
        self._steppers[self._turn].send(action)

    def receive(self) -> list[StepResult]:
        """Pass the turn on, and finish the next group's step if one was sent."""
        self._turn = (self._turn + 1) % len(self._steppers)
        return self._received(self._turn)

    def receive_pending(self) -> list[StepResult]:
        """Finish all steps that were sent; the turn stays where it is."""
        groups = range(len(self._steppers))
        return [result for group in groups for result in self._received(group)]

    def state_dict(self, *, is_open: bool) -> dict[str, object]:
        """The states of all groups, none of which is stepping, and whose turn it is."""
        groups = [stepper.state_dict(is_open=is_open) for stepper in self._steppers]
        return {"groups": groups, "turn": self._turn}

    def bring_back(self, state: object, *, is_open: bool) -> str:
        """Play new envs up to a state of `state_dict`; why that failed, or nothing."""
        told, count = mapping(state, "envs"), len(self._steppers)
        groups = items(member(told, "groups"), "groups", count)
        turn = whole(member(told, "turn"), "turn", 0, count - 1)
        why = ""
        for stepper, group in zip(self._steppers, groups, strict=True):
            why = stepper.bring_back(group, is_open=is_open and not why) or why
        self._turn = turn
        return why

    def drain(self) -> None:
        """Finish the steps that were sent and not received, and drop their results."""
        for stepper in self._steppers:
            stepper.drain()

    def _received(self, group: int) -> list[StepResult]:
        stepper = self._steppers[group]
        if not stepper.is_waiting:
            return []
        results = stepper.receive()
        if stepper.reader.maybe_ended is not None:
            raise ValueError(
                "life_loss_info=True: expected one vector env with it, got several in turns; make "
                "the envs without it, or give the Collector one vector env"
            )
        return [result.renumbered(self._env_ids[group]) for result in results]


def _seeds_of(env_ids: np.ndarray, seed: int | Sequence[int]) -> int | Sequence[int]:
    """The seeds of some envs that follow each other."""
    first = int(env_ids[0])
    return seed + first if isinstance(seed, int) else seed[first : first + len(env_ids)]


def _checksums(rows: np.ndarray) -> list[int]:
    """The CRC of each row."""
    return [crc32(np.ascontiguousarray(row).data) for row in rows]
