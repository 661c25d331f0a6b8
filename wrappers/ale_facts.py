"""Check what `make_atari` relies on in an ale-py that it was not tested with."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .ale_env import SeededLoads, quiet_emulators

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

_GAME = "breakout"


@functools.cache
def unlike_facts(backend: str) -> tuple[str, ...]:
    """Find what differs from the tested ale-py, each fact in words; none if it may be used."""
    # Takes about 0.3 s the first time. tests/wrappers/test_ale_py_facts.py has the same facts, and
    # more of them, for the tested version. ``backend`` is "native" or "python", of `make_atari`.
    quiet_emulators()
    facts = _native_facts() if backend == "native" else _python_facts()
    return tuple(fact for fact, holds in facts if not holds)


def _python_facts() -> Iterator[tuple[str, bool]]:
    quick, filed = _Emulator(), _Emulator()
    quick.loads.load(0)
    for seed in (1, 2**31 - 1):
        quick.loads.load(seed)  # from the state of the load before, where that is possible
        filed.load(seed)
        yield (
            f"a load with seed {seed} from another load's state is one from the file",
            (np.array_equal(quick.play(), filed.play())),
        )
    filed.load(0)
    once = filed.play()
    filed.load(0)
    yield "a seed decides all sticky actions", np.array_equal(once, filed.play())
    filed.load(1)
    yield "another seed decides others", not np.array_equal(once, filed.play())


class _Emulator:
    """An emulator of a game with sticky actions."""

    def __init__(self) -> None:
        import ale_py

        self._ale: Any = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.25)
        self.loads = SeededLoads(self._ale, self._load)

    def _load(self) -> None:
        from ale_py import roms

        self._ale.loadROM(cast("Path", roms.get_rom_path(_GAME)))

    def load(self, seed: int) -> None:
        """Load the game from its file."""
        self._ale.setInt("random_seed", seed)
        self._load()

    def play(self, frames: int = 120) -> npt.NDArray[np.uint8]:
        """Reset the game, and return the emulator's memory uint8 [frames, 128] after each frame."""
        self._ale.reset_game()
        actions = self._ale.getMinimalActionSet()
        memory = np.empty((frames, 128), np.uint8)
        for frame in range(frames):
            self._ale.act(actions[frame % len(actions)])
            memory[frame] = self._ale.getRAM()
        return memory


def _native_facts() -> Iterator[tuple[str, bool]]:
    with contextlib.closing(_vector_env(noop_max=1)) as envs:
        numbers = {int(envs.reset()[1]["episode_frame_number"][0]) for _ in range(16)}
        yield "noop_max leaves the greatest number of no-ops out", numbers == {0}
    with contextlib.closing(_vector_env(max_num_frames_per_episode=6)) as envs:
        envs.reset(seed=0)
        before = envs.step(np.zeros(1, np.int64))
        last = envs.step(np.zeros(1, np.int64))
        first = envs.step(np.zeros(1, np.int64))
        counts = [int(step[4]["frame_number"][0]) for step in (before, last, first)]
        in_episode = [int(step[4]["episode_frame_number"][0]) for step in (before, last, first)]
        yield "a step counts the frames that it played", in_episode[:2] == [4, 6]
        yield "an episode that is cut is truncated", bool(last[3][0]) and not bool(last[2][0])
        yield (
            "the step after an end resets (NEXT_STEP)",
            (in_episode[2] == 0 and not bool(first[3][0])),
        )
        yield "frame_number goes on over resets", counts == [4, 6, 6]
    # While the ball flies; cut on the second of four frames.
    with contextlib.closing(_vector_env(max_num_frames_per_episode=42)) as envs:
        envs.reset(seed=0)
        screens = [envs.step(np.ones(1, np.int64))[0] for _ in range(11)]
        yield "screens differ while the ball flies", not np.array_equal(*screens[-3:-1])
        yield "the last observation of an episode is an older screen", np.array_equal(*screens[-2:])


def _vector_env(**changes: Any) -> Any:
    """Make ale-py's vector env of one game without luck, stack or resize."""
    from ale_py.vector_env import AtariVectorEnv

    # ale-py writes into the metadata, which is else that of all vector envs.
    plain: Any = type("Plain", (AtariVectorEnv,), {"metadata": {}})
    defaults: dict[str, Any] = {
        "img_height": 210,
        "img_width": 160,
        "stack_num": 1,
        "noop_max": 1,
        "use_fire_reset": False,
        "reward_clipping": False,
        "repeat_action_probability": 0.0,
        "num_threads": 1,
    }
    return plain(_GAME, 1, **(defaults | changes))
