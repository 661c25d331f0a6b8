"""The emulator of ale-py: frame skip by its own calls, quick seeded loads, what is relied on."""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType, ObsType
from gymnasium.utils.seeding import np_random

from ..buffers.base.errors import not_copied
from ..buffers.base.number_checks import check_whole
from .env_results import RecordedWrapper
from .frames import check_skip

if TYPE_CHECKING:
    from pathlib import Path

    from ale_py import Action, ALEInterface
    from ale_py.env import AtariEnv

    from .snapshots import SavedGame

Image = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Emulator: TypeAlias = "ALEInterface"


def emulator_of(env: gymnasium.Env[Any, Any]) -> Emulator:
    """Return the emulator inside an ale-py `AtariEnv`, bare or wrapped."""
    ale = getattr(env.unwrapped, "ale", None)
    if ale is None:
        raise ValueError(f"expected an env around ale-py's AtariEnv, got {env}")
    return cast("Emulator", ale)


def quiet_emulators() -> None:
    """Suppress ale-py's banner on stderr, as its own envs do, before the first one is made."""
    import ale_py

    mode = ale_py.LoggerMode.Error  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    ale_py.ALEInterface.setLoggerMode(mode)  # pyright: ignore[reportUnknownArgumentType]


def emulator_actions(meanings: list[str]) -> list[Action]:
    """Convert names of actions to arguments of `Emulator.act`."""
    import ale_py

    return [getattr(ale_py.Action, meaning) for meaning in meanings]


def emulator_info(ale: Emulator) -> dict[str, Any]:
    """Return the info that ale-py's `AtariEnv` returns in the current state."""
    return {
        "lives": ale.lives(),
        "episode_frame_number": ale.getEpisodeFrameNumber(),
        "frame_number": ale.getFrameNumber(),
    }


def action_meanings(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the name of each action, as `["NOOP", "FIRE", ...]`, or [] if the env has none."""
    meanings = getattr(env.unwrapped, "get_action_meanings", list)
    return cast("list[str]", meanings())


LARGEST_SEED = 2**31 - 1  # the emulator's setting is a signed 32-bit integer


def check_seed(seed: int) -> None:
    """Raise unless an emulator takes the seed: 0 .. 2**31 - 1."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed: expected 0 to {LARGEST_SEED}, got {seed}")


class EmulatorSeed(RecordedWrapper[ObsType, ActType]):
    """Seed the emulator with the seed of `reset` itself.

    ale-py's `AtariEnv` seeds its emulator with a hash of the seed, ale-py's vector env with the
    seed itself. Under this wrapper both draw the same sticky actions from the same seed.

    Args:
        env: An ale-py `AtariEnv`, bare or wrapped.

    Raises:
        ValueError: The env is not an Atari env, or in `reset`: the seed is not in 0 .. 2**31 - 1.

    Example:
        >>> import ale_py, gymnasium
        >>> env = EmulatorSeed(gymnasium.make("ALE/Pong-v5"))
        >>> _ = env.reset(seed=7)
        >>> env.unwrapped.ale.getInt("random_seed")
        7
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        # The emulator reads its seed when it loads a game.
        self._loads = SeededLoads(emulator_of(env), cast("AtariEnv", env.unwrapped).load_game)
        super().__init__(env)

    @property
    def can_seed_resets(self) -> bool:
        """True if `SeededResets` may seed each reset, since that takes little time."""
        return self._loads.are_quick

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the env; with a seed, seed the emulator and the env's generator first."""
        saved = (options or {}).get("snapshot")
        if saved is not None:
            return self._resume(saved)
        if seed is not None:
            check_seed(seed)
            self.env.unwrapped.np_random = np_random(seed)[0]
            self._loads.load(seed)
        return self.env.reset(options=options)

    def _resume(self, saved: SavedGame) -> tuple[ObsType, dict[str, Any]]:
        """Restore a snapshot; the screen is that of a reset."""
        observation, _ = self.env.reset()
        ale = emulator_of(self.env)
        saved.restore(ale)
        saved.restore_generator(self.np_random)
        return observation, saved.info(emulator_info(ale))


class AleFrameSkip(RecordedWrapper[Image, int]):
    """`FrameSkip` and `TimeLimit` in one wrapper for ale-py: the same results in less time.

    It calls the emulator directly, because `AtariEnv.step` builds a new screen and a new info for
    every frame. A game that ends on its last allowed frame is terminated, not truncated.

    Args:
        env: An ale-py `AtariEnv` with `frameskip=1` and image observations, bare or wrapped.
        skip: Frames per step, at least 1.
        pool: "max" for the pixel-wise maximum of a step's last two frames, "none" for the last.
        max_frames: Frames after which an episode is truncated, counted from the observation that
            `reset` returned; None for no limit.

    Attributes:
        on_frame: A function that is called after each frame of a step, to show the screen; or None.

    Raises:
        ValueError: The env is not as described above, or a number is below 1.

    Example:
        >>> import ale_py, gymnasium
        >>> env = gymnasium.make("ALE/Pong-v5", frameskip=1, obs_type="grayscale")
        >>> env = AleFrameSkip(env, skip=4, max_frames=108_000)
        >>> _ = env.reset(seed=0)
        >>> env.step(0)[4]["episode_frame_number"]
        4
    """

    on_frame: Callable[[], None] | None = None

    def __reduce__(self) -> NoReturn:
        not_copied("an Atari env", "make one in each process, from a function")

    def __init__(
        self,
        env: gymnasium.Env[Image, int],
        skip: int = 4,
        *,
        pool: Literal["max", "none"] = "max",
        max_frames: int | None = None,
    ) -> None:
        check_skip(env, skip, pool)
        if max_frames is not None:
            check_whole("max_frames", max_frames, 1, hint="; None sets no limit")
        if getattr(env.unwrapped, "_frameskip", None) != 1:
            raise ValueError(
                f"AleFrameSkip: expected an ale-py AtariEnv made with frameskip=1, got {env}; "
                "use FrameSkip for other envs"
            )
        shape = env.observation_space.shape or ()
        if len(shape) not in (2, 3):
            raise ValueError(
                f"AleFrameSkip: expected obs_type 'grayscale' or 'rgb', got observations {shape}"
            )
        super().__init__(env, {"skip": skip, "pool": pool, "max_frames": max_frames})
        self.skip = skip
        self.max_frames = max_frames
        self._ale = emulator_of(env)
        self._actions = emulator_actions(action_meanings(env))
        self._now = np.empty(shape, np.uint8)
        self._before = np.empty(shape, np.uint8) if pool == "max" and skip > 1 else None
        self._read = self._ale.getScreenRGB if len(shape) == 3 else self._ale.getScreenGrayscale
        self._frames = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Reset the env and the frame count."""
        saved: SavedGame | None = (options or {}).get("snapshot")
        self._frames = 0 if saved is None else saved.facts["frames"]
        return self.env.reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Play up to `skip` frames; the reward is the sum over the frames played."""
        ale, act, move = self._ale, self._ale.act, self._actions[action]
        before, frames, most = self._before, 1, self._frames_left()
        show = self.on_frame
        reward = act(move, 1.0)
        if show is not None:
            show()
        while frames < most and not ale.game_over(with_truncation=False):
            if before is not None:  # any frame can be the second to last
                self._read(before)
            reward += act(move, 1.0)
            frames += 1
            if show is not None:
                show()
        self._frames += frames
        terminated = ale.game_over(with_truncation=False)
        truncated = not terminated and self._frames_left() < 1
        self._read(self._now)
        image = (
            np.maximum(self._now, before) if before is not None and frames > 1 else self._now.copy()
        )
        return image, float(reward), terminated, truncated, emulator_info(ale)

    def _frames_left(self) -> int:
        """Return the number of frames that this step may play."""
        limit = self.max_frames
        return self.skip if limit is None else min(self.skip, limit - self._frames)


# A state of an emulator: six numbers; the length of the inner part; the inner part, at whose end
# the random generator is: that it is there, the length of its text, and the text; two numbers. The
# text is that of C++'s `std::mt19937`: 624 words and a position.
# (A console has a second generator, with the same seed after every load.)
# tests/wrappers/test_ale_loads.py compares such states with those of loads, for all games.
_LENGTH = struct.Struct("<i")
_LENGTH_AT, _INNER_AT, _TAIL_BYTES = 24, 28, 8
_THERE = b"\xb2\xfa\xb1\xfa"
TWISTER_WORDS = 624


class AleState(NamedTuple):
    """The state of an emulator, apart from its random generator."""

    machine: bytes  # the state without the generator
    words: Words  # [624] of the generator, a Mersenne Twister
    position: int  # number of them that were drawn

    @classmethod
    def of(cls, ale: Any) -> AleState:
        """Save the state of an emulator; ValueError: it has another form."""
        return cls.read(ale.cloneState(include_rng=True).__getstate__())

    @classmethod
    def read(cls, data: bytes) -> AleState:
        """Read the data of an `ale_py.ALEState`; ValueError: it has another form."""
        inner_end = len(data) - _TAIL_BYTES
        at = data.rindex(_THERE, _INNER_AT, inner_end)
        text = data[at + len(_THERE) + _LENGTH.size : inner_end]
        numbers = np.fromstring(text, np.uint64, sep=" ")  # a third of the time of split()
        machine = data[:_LENGTH_AT] + data[_INNER_AT:at] + data[inner_end:]
        length = _LENGTH.unpack_from(data, at + len(_THERE))[0]
        if length != len(text) or len(numbers) != TWISTER_WORDS + 1:
            raise ValueError("state: expected one in the form of the tested ale-py, got another")
        return cls(machine, numbers[:-1].astype(np.uint32), int(numbers[-1]))

    @property
    def data(self) -> bytes:
        """The data that `read` takes."""
        text = f"{' '.join(map(str, self.words.tolist()))} {self.position}".encode()
        inner = self.machine[_LENGTH_AT:-_TAIL_BYTES] + _THERE + _LENGTH.pack(len(text)) + text
        head, tail = self.machine[:_LENGTH_AT], self.machine[-_TAIL_BYTES:]
        return head + _LENGTH.pack(len(inner)) + inner + tail

    def seeded(self, seed: int) -> AleState:
        """The state with a generator that was just seeded."""
        words = cast("Any", np.random.RandomState(seed).get_state())[1]
        return self._replace(words=words, position=TWISTER_WORDS)

    def restore(self, ale: Any) -> None:
        """Restore the state."""
        from ale_py import ALEState

        state = cast("Any", ALEState).__new__(ALEState)
        state.__setstate__(self.data)
        ale.restoreState(state)

    def has(self, generator: np.random.MT19937) -> bool:
        """Return True if the generator is in the same state."""
        now = cast("Any", generator.state)["state"]
        return bool(now["pos"] == self.position and (now["key"] == self.words).all())

    def generator(self) -> np.random.MT19937:
        """Return the generator."""
        found = np.random.MT19937(0)
        found.state = {
            "bit_generator": "MT19937",
            "state": {"key": self.words, "pos": self.position},
        }
        return found


class SeededLoads:
    """Loads a game with a seed, which most games do in 0.2 ms instead of 100 from the second on."""

    # The state of an emulator right after a load has the seed in its generator only, unless the
    # load itself draws numbers, as those of Berzerk and Double Dunk do. So a state with another
    # seed's generator is the state of another load. Where this does not hold, the game is loaded
    # each time. ``load`` loads the game into the `ale_py.ALEInterface`, with its mode and
    # difficulty.

    def __init__(self, ale: object, load: Callable[[], object]) -> None:
        self._ale, self._load = cast("Any", ale), load
        self._loaded: AleState | None = None
        self._was_loaded = False

    @property
    def are_quick(self) -> bool:
        """True if the next load takes little time; False before the first load."""
        return self._loaded is not None

    def load(self, seed: int) -> None:
        """Load the game with a seed in 0 .. 2**31 - 1."""
        self._ale.setInt("random_seed", seed)
        if self._loaded is not None:
            self._loaded.seeded(seed).restore(self._ale)
            return
        self._load()
        if not self._was_loaded:
            self._was_loaded = True
            self._loaded = _seeded_state(
                self._ale.cloneState(include_rng=True).__getstate__(), seed
            )


def _seeded_state(data: bytes, seed: int) -> AleState | None:
    """Read a state, if it has a generator that was just seeded, and writing it gives it again."""
    with contextlib.suppress(ValueError, DeprecationWarning):  # of numpy, for another text
        state = AleState.read(data)
        return state if state.seeded(seed).data == data else None
    return None


# What `make_atari` relies on, in an ale-py that it was not tested with.

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
        fact = f"a load with seed {seed} from another load's state is one from the file"
        yield fact, np.array_equal(quick.play(), filed.play())
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
        resets = in_episode[2] == 0 and not bool(first[3][0])
        yield "the step after an end resets (NEXT_STEP)", resets
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
