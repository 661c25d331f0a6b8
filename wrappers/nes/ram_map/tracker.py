"""Follow a game through an episode: its reward, its end, its variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.wrappers.nes.ram_map.condition import Condition
from stepwell.wrappers.nes.ram_map.reward_term import RewardTerm
from stepwell.wrappers.nes.ram_map.variable import Variable

__all__ = ["GameTracker"]


class GameTracker:
    """Reads what a game's RAM map tells, frame by frame; made by `Game.tracker`.

    Call `begin` on the first frame of an episode, `begin_step` before each step of the env, and
    `advance` after every frame. Only variables that the reward, the end and the stuck detector need
    are read in every frame; the others when asked for.

    Args:
        peek: Gives the byte at an address of the RAM as a Python int.
        variables: All variables by name.
        reward: The summands of the reward.
        terminated: When the game is over; None: never.
        watched: Variables whose standing still is counted.
        life: The variable that counts lives, or None.

    Attributes:
        terminated: Whether the game is over in the frame that was read last.
        still_frames: Frames since one of those watched changed; 0 if there are none.
        reward_terms: What each term paid since `begin_step`; a new dict for each step.
    """

    def __init__(
        self,
        peek: Callable[[int], int],
        variables: Mapping[str, Variable],
        *,
        reward: Sequence[RewardTerm] = (),
        terminated: Condition | None = None,
        watched: Sequence[str] = (),
        life: str | None = None,
    ) -> None:
        ended = [] if terminated is None else list(terminated.variables())
        paid = [term.measured.var for term in reward]
        # The watched ones first, so that they are one slice of the values.
        names = tuple(dict.fromkeys([*watched, *paid, *ended]))
        indices = {name: index for index, name in enumerate(names)}
        self._names = names
        self._watched = len(watched)
        self._readers = {name: variable.reader(peek) for name, variable in variables.items()}
        self._read_each_frame = tuple(self._readers[name] for name in names)
        self._pays = tuple(
            (term.name, term.pay(indices[term.measured.var], variables[term.measured.var]))
            for term in reward
        )
        self._is_over = None if terminated is None else terminated.test(indices, variables)
        self._life = None if life is None else self._readers[life]
        self._values: list[int] = [0] * len(names)
        self.terminated = False
        self.still_frames = 0
        self.reward_terms: dict[str, float] = {}
        self.begin_step()

    def begin(self) -> None:
        """Start an episode: changes are counted from what is in RAM now."""
        values = [read() for read in self._read_each_frame]
        self._values = values
        self.still_frames = 0
        self.terminated = self._is_over is not None and self._is_over(values, values)
        self.begin_step()

    def begin_step(self) -> None:
        """Start a step: the terms' sums begin at 0."""
        self.reward_terms = {name: 0.0 for name, _ in self._pays}

    def advance(self) -> float:
        """Read the RAM after a frame.

        Returns:
            The reward of the frame.
        """
        old, new = self._values, [read() for read in self._read_each_frame]
        self._values = new
        total = 0.0
        for name, pay in self._pays:
            paid = pay(new, old)
            if paid:
                total += paid
                self.reward_terms[name] += paid
        if self._is_over is not None:
            self.terminated = self._is_over(new, old)
        watched = self._watched
        if watched:
            self.still_frames = self.still_frames + 1 if new[:watched] == old[:watched] else 0
        return total

    def values(self) -> dict[str, int]:
        """All variables of the map, read now."""
        return {name: read() for name, read in self._readers.items()}

    def lives(self) -> int | None:
        """The life variable, read now; None for a map without one."""
        return None if self._life is None else self._life()

    def save(self) -> dict[str, object]:
        """What `load` needs to go on from here, as JSON has it."""
        return {
            "values": dict(zip(self._names, self._values, strict=True)),
            "terminated": self.terminated,
            "still_frames": self.still_frames,
            "reward_terms": dict(self.reward_terms),
        }

    def load(self, state: object) -> None:
        """Go on from where `save` was called.

        Raises:
            ValueError: The state is that of another RAM map, or none at all.
        """
        values, terms = _part(state, "values"), _part(state, "reward_terms")
        if not isinstance(values, Mapping) or not isinstance(terms, Mapping):
            raise _no_state(state)
        names = [name for name, _ in self._pays]
        if set(values) != set(self._names) or set(terms) != set(names):
            raise ValueError(
                f"tracker state: expected the variables {sorted(self._names)} and the terms "
                f"{sorted(names)}, got {sorted(values)} and {sorted(terms)}; "
                "use the RAM map that it was saved with"
            )
        still = _part(state, "still_frames")
        numbers = [*values.values(), *terms.values(), still]
        if not all(isinstance(number, int | float) for number in numbers):
            raise _no_state(state)
        self._values = [values[name] for name in self._names]
        self.reward_terms = {name: float(terms[name]) for name in names}
        self.terminated = bool(_part(state, "terminated"))
        self.still_frames = still


def _part(state: object, key: str) -> Any:
    keys = {"values", "terminated", "still_frames", "reward_terms"}
    if not isinstance(state, Mapping) or set(state) != keys:
        raise _no_state(state)
    return state[key]


def _no_state(state: object) -> ValueError:
    return ValueError(
        f"tracker state: expected what GameTracker.save gives, got {state!r:.60}; "
        "save a snapshot of this env first"
    )
