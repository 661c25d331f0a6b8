"""Lets a person play an env, and records every row as a Collector would."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ...buffers.base.number_checks import check_whole
from ...wrappers.nes import NesEnv
from ...wrappers.recipe import recipe_of
from ..evaluation.video import real_time_fps, rendered, single_envs
from ..loop.collector import Seeds
from ..loop.record import RecordedVectorEnv
from ..loop.recording import RecordedSteps, ReplayOrPath
from ..loop.step_result import MetadataOrFunction
from ..loop.vector_envs import Vector, as_vector
from ..policies.as_policy import GivenPolicy, as_policy
from ..policies.policy import SeededPolicy, override_hook_of
from ..policies.policy_caller import PolicyCaller
from .controls import WATCH_COMMANDS, KeySource, controls_of, load_pygame
from .window import Window

_MOST_NAMED = 6
_DID = {"rose": np.greater, "fell": np.less, "stayed": np.equal}


class RamSearch:
    """Keeps the addresses whose byte did at each press what the press says."""

    def __init__(self, read: Callable[[], np.ndarray], line: str) -> None:
        self.read = read  # the RAM, uint8 [N]
        self._line = line  # of a map, to be formatted with an address
        self._seen: list[np.ndarray] = []  # the RAM at each press
        self._before: list[str] = []  # lines of searches before
        self.left: np.ndarray = np.arange(0)

    def press(self, kind: str, ram: np.ndarray) -> str:
        """Compare the RAM with that of the press before, and return what is left, as text."""
        note = ""
        if kind == "mark" or not self._seen:
            self._before = self.lines()
            self._seen, self.left = [ram], np.arange(len(ram))
        else:
            left = self.left[_DID[kind](ram[self.left], self._seen[-1][self.left])]
            if len(left):
                self.left = left
                self._seen.append(ram)
            else:  # a wrong key, mostly: it does not spoil the search
                note = f"none {kind}, still "
        bytes_now = [f"0x{at:02x}={self._seen[-1][at]}" for at in self._named()]
        return " ".join([f"{note}{len(self.left):,} left", *bytes_now])

    def lines(self) -> list[str]:
        """Return the line of each address that a search found, below one with its values."""
        if len(self._seen) < 2:
            return self._before
        found = [f"# left after {len(self._seen)} presses: {len(self.left):,}"]
        for at in self._named():
            values = " ".join(str(ram[at]) for ram in self._seen)
            found += [f"# at the presses: {values}", self._line.format(at)]
        return self._before + found

    def _named(self) -> np.ndarray:
        return self.left if len(self.left) <= _MOST_NAMED else self.left[:0]


def search_of(env: gymnasium.Env[Any, Any]) -> RamSearch:
    """Return a search in the RAM of a game."""
    inner: Any = env.unwrapped
    if isinstance(inner, NesEnv):
        return RamSearch(inner.ram, '"ram_0x{0:03x}": {{"address": {0}, "type": "|u1"}},')
    if hasattr(inner, "ale"):
        return RamSearch(inner.ale.getRAM, "env.unwrapped.ale.getRAM()[0x{0:02x}]")
    raise ValueError(
        f"watch: expected a cartridge (NesEnv) or an Atari game, got {env}; play it without watch"
    )


_HELD_BYTES = 256 << 20
_FLUSH_SECONDS = 10.0
_END_SECONDS = 1.5
_STILL_PERIOD = 1 / 60
_LOOKS = 64  # steps between looks at the keys while a saved state is played up to
_EXTRA = "human"


@dataclass(frozen=True, slots=True)
class PlayReport:
    """The counts of a `play`, and the times of its frames.

    Attributes:
        steps: Env steps that were stored.
        human_steps: Those of which the person chose the action.
        episodes: Stored episodes that ended by themselves.
        discarded: Episodes that the person discarded.
        returns: Sums of rewards of the episodes that ended.
        frames: Frames that were shown while the game went on.
        frame_rate: Frames a second.
        jitter_seconds: Standard deviation of the times from frame to frame.
        worst_seconds: The longest of these times.
        late_frames: Frames that came more than half a period late.
        watched: Lines of a RAM map for the addresses that `watch` found, and comments.
    """

    steps: int
    human_steps: int
    episodes: int
    discarded: int
    returns: tuple[float, ...]
    frames: int
    frame_rate: float
    jitter_seconds: float
    worst_seconds: float
    late_frames: int
    watched: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return {**asdict(self), "returns": list(self.returns), "watched": list(self.watched)}


def play(
    env: Vector | gymnasium.Env[Any, Any],
    replay: ReplayOrPath,
    *,
    policy: GivenPolicy | None = None,
    keys: KeySource | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    speed: float = 1.0,
    scale: int | None = None,
    watch: bool = False,
    info: Mapping[str, object] | None = None,
    metadata: MetadataOrFunction | None = None,
) -> PlayReport:
    """Let a person play an env in a window, with keyboard or gamepad, and record every row.

    Rows are those that a `Collector` with the same actions would store. Each has the extra
    ``human``, bool: the person chose its action. Each episode begins with a seed, so that it can be
    played again (`resimulate`, ``stepwell verify --replay``), and has ``source: "human"`` in its
    metadata, or ``"human and policy"`` where a policy was given.

    An episode is stored when it is over, so that the person can discard it: until then up to 256
    MiB of its rows wait in memory. A longer one is stored on the way, and cannot be discarded. On
    the end of `play`, by a closed window, Ctrl-C or an error too, the rows so far are stored.

    Loading a saved state begins an episode with the same seed, and plays the same actions up to
    there: it works for every env that a seed determines, and its rows are recorded, too, with
    ``loaded_steps`` in the episode's metadata.

    Args:
        env: A gymnasium env made with ``render_mode="rgb_array"``, or a vector env of one such env,
            as of `make_nes` (``render_mode="rgb_array", num_workers=0``) or `make_atari`
            (``backend="python", num_workers=0``). It stays open.
        replay: Stores the rows; or the folder of a store, which is continued if it exists.
        policy: Plays until the person takes over by a key (Tab), and again after the next one;
            anything that a `Collector` takes. Its extras are stored for all rows.
        keys: Other keys: a TOML file, or its tables. ``buttons`` has the keys of each button,
            ``commands`` those of pause, reset, discard, save, load, take_over and quit (and of
            mark, rose, fell and stayed for ``watch``), ``actions`` the actions of an env that has
            no usual keys: ``{"NOOP": [0, 0], "LEFT": [-1, 0]}``.
        episodes: Episodes to play, at most; None plays until the person quits.
        seed: The seeds of episodes and policy are derived from it; None draws one.
        speed: 1.0 is real time: 60 frames a second for games, else the env's ``render_fps``.
        scale: Pixels of the screen for a pixel of a frame; None chooses some 720 rows.
        watch: Four more keys search the RAM of a cartridge or an Atari game, byte by byte: F2 marks
            it as it is, and begins a search; F6, F7 and F8 keep the addresses whose byte, unsigned,
            rose, fell or stayed since the key before. The report has what up to 6 were left of.
        info: Info fields to store, as in `Collector`.
        metadata: Facts about episodes, as in `Collector`.

    Returns:
        Counts of steps and episodes, and the times of the frames.

    Raises:
        ImportError: pygame is not installed: ``pip install 'stepwell[play]'``.
        OSError: There is no display.
        ValueError: The env cannot be shown, or has no keys; or an argument is out of range.
        SpecMismatch: The replay holds rows of other envs.
    """
    load_pygame()
    if not (isinstance(speed, int | float) and 0 < speed < float("inf")):
        raise ValueError(f"speed: expected a number above 0, got {speed!r}; 1 is real time")
    for name, value in (("episodes", episodes), ("scale", scale)):
        if value is not None:
            check_whole(name, value, 1)
    envs = as_vector(env)
    if envs.num_envs != 1:
        raise ValueError(
            f"env: expected one env, got {envs.num_envs}: a person plays one at a time; make one"
        )
    (single,) = single_envs(envs, "play")
    controls = controls_of(single, keys, watch=watch)
    search = search_of(single) if watch else None
    actor = None if policy is None else as_policy(policy)
    facts = _Facts(metadata, "human" if actor is None else "human and policy")
    recording = RecordedSteps(
        envs,
        replay,
        info=info,
        metadata=facts,
        frame_stack=None,
        flush_seconds=_FLUSH_SECONDS,
        policy=facts.source if actor is None else f"human and {type(actor).__qualname__}",
        held_bytes=_HELD_BYTES,
    )
    with contextlib.closing(recording), recording:
        # A store that is continued gets other seeds than its sessions before.
        seeds = Seeds(seed, len(recording.replay.sessions))
        caller: PolicyCaller | None = None
        if actor is not None:
            if isinstance(actor, SeededPolicy):
                actor.begin(envs.single_action_space, seeds.policy_rng())
            caller = PolicyCaller(actor, envs.single_action_space, recording.spec, 1)
        game = _Game(RecordedVectorEnv(envs, recording), recording, single, facts, seeds)
        game.hook = None if actor is None else override_hook_of(actor)
        game.most_episodes = episodes
        game.search = search
        game.play(controls, caller, speed, scale)
    return game.report()


class _Facts:
    """The metadata of episodes: the user's, and those of `play`."""

    def __init__(self, given: MetadataOrFunction | None, source: str) -> None:
        self._given = given
        self.source = source
        self.loaded_steps = 0

    def __call__(self, env: int, info: Mapping[str, Any]) -> dict[str, object]:
        given = self._given(env, info) if callable(self._given) else self._given
        found: dict[str, object] = {"source": self.source, **(given or {})}
        return found | ({"loaded_steps": self.loaded_steps} if self.loaded_steps else {})


class _Taken(NamedTuple):
    """A step: the action [1, ...], and who chose it."""

    action: Any
    is_human: bool


class _Saved(NamedTuple):
    """A saved state: the seed and the steps that lead to it, and its observation."""

    seed: int
    steps: tuple[_Taken, ...]
    observation: np.ndarray | None


class _Game:
    # ``envs`` are ``env`` with its ``recording``; ``facts`` and ``seeds`` are those of episodes.

    hook: Any = None
    most_episodes: int | None = None
    search: RamSearch | None = None

    def __init__(
        self,
        envs: RecordedVectorEnv,
        recording: RecordedSteps,
        env: gymnasium.Env[Any, Any],
        facts: _Facts,
        seeds: Seeds,
    ) -> None:
        self._envs, self._recording, self._env = envs, recording, env
        self._facts, self._seeds = facts, seeds
        self._number = self._begun = 0  # seeds, and episodes
        self._seed = 0
        self._steps: list[_Taken] = []
        self._return = 0.0
        self._observation: Any = None
        self._is_first = True
        self._is_over = self._is_done = self._is_paused = self._is_waiting = False
        self._saved: _Saved | None = None
        self._message = ""
        self._returns: list[float] = []
        self._stored_steps = self._human_steps = self._discarded = 0

    def play(
        self, controls: Any, caller: PolicyCaller | None, speed: float, scale: int | None
    ) -> None:
        """Play until the person quits."""
        self._controls, self._caller = controls, caller
        self._is_human = self._is_waiting = caller is None
        self._reset(self._next_seed())
        first = rendered(self._env, "play")
        layer = _layer_with_frames(self._env)
        rate = float(real_time_fps(self._env)) * speed
        if layer is not None:
            rate *= int(recipe_of(self._env, None)["frame_skip"])
        self._period = 1 / rate
        name = self._env.spec.id if self._env.spec else type(self._env.unwrapped).__name__
        self._window = Window(
            (first.shape[0], first.shape[1]),
            controls,
            title=f"{name} - stepwell play",
            hidden=("take_over",) if caller is None else (),
            scale=scale,
        )
        try:
            self._layer = layer
            self._show(first)
            while not self._is_done:
                self._advance()
        finally:
            if layer is not None:
                layer.on_frame = None
            self._window.close()

    def report(self) -> PlayReport:
        times = np.array(self._window.times)
        return PlayReport(
            steps=self._stored_steps,
            human_steps=self._human_steps,
            episodes=len(self._returns),
            discarded=self._discarded,
            returns=tuple(self._returns),
            frames=len(times),
            frame_rate=len(times) / float(times.sum()) if times.any() else 0.0,
            jitter_seconds=float(times.std()) if len(times) else 0.0,
            worst_seconds=float(times.max(initial=0.0)),
            late_frames=self._window.late,
            watched=() if self.search is None else tuple(self.search.lines()),
        )

    def _advance(self) -> None:
        """Obey the commands, and take a step if the game goes on."""
        while self._window.commands and not self._is_done:
            self._obey(self._window.commands.popleft())
        if self._is_done:
            return
        if self._is_over:
            self._begin_next()
        elif self._is_paused or self._is_waiting:
            self._show(None)
        else:
            taken = self._chosen()
            if taken is None:
                self._show(None)
            else:
                self._take(*taken)

    def _obey(self, command: str) -> None:
        if self._is_waiting and command in ("other", "pause"):
            self._is_waiting = False
            self._window.held()
            return
        if command != "other":
            self._message = ""
        if command == "quit":
            self._is_done = True
        elif command == "pause":
            self._is_paused = not self._is_paused
        elif command == "reset":
            self._reset(self._next_seed())
        elif command == "discard":
            self._discard()
        elif command == "take_over":
            self._take_over()
        elif command == "save":
            self._save()
        elif command == "load":
            self._load()
        elif command in WATCH_COMMANDS and self.search is not None:
            self._message = self.search.press(command, self.search.read())

    def _chosen(self) -> tuple[_Taken, dict[str, np.ndarray]] | None:
        """The next action, with the policy's extras; None while the env waits for the person."""
        action: Any = None
        if self._is_human:
            action = self._controls.action_of(self._window.held())
            if action is None:
                return None
            action = np.asarray(action, self._env.action_space.dtype)[None]
        choice, extras = self._ask(action)
        return _Taken(choice, self._is_human), extras

    def _ask(self, action: Any) -> tuple[Any, dict[str, np.ndarray]]:
        """The policy's action and extras; its state goes on with ``action`` where one is given."""
        if self._caller is None:
            return action, {}
        choice = self._caller(self._observation, np.array([self._is_first]))
        extras = {
            name.removeprefix("extra/"): rows
            for name, rows in choice.leaves.items()
            if name.startswith("extra/")
        }
        if _EXTRA in extras:
            raise ValueError(
                f"policy returned the extra {_EXTRA!r}, which play writes itself; give it another "
                f"name"
            )
        if action is None:
            return choice.action, extras
        state = self._caller.state
        if state is not None and self.hook is not None:
            state.put(self.hook(action, state.tree(state.of(None))), None, 1)
        return action, extras

    def _take(self, taken: _Taken, extras: dict[str, np.ndarray], *, is_shown: bool = True) -> None:
        """Step the env, show it, and note what the row needs."""
        layer = self._layer
        if layer is not None:
            layer.on_frame = self._show_frame if is_shown else None
        self._recording.log_extras({_EXTRA: np.array([taken.is_human]), **extras})
        observation, reward, terminated, truncated, _ = self._envs.step(taken.action)
        self._steps.append(taken)
        self._stored_steps += 1
        self._human_steps += taken.is_human
        self._return += float(reward[0])
        self._observation, self._is_first = observation, False
        self._is_over = bool(terminated[0] or truncated[0])
        if layer is None and is_shown:
            self._show_frame()

    def _show_frame(self) -> None:
        self._show(rendered(self._env, "play"), is_counted=True)

    def _show(self, frame: Any, *, is_counted: bool = False, sign: str = "") -> None:
        if not sign and (self._is_paused or self._is_waiting):
            sign = "PAUSED" if self._is_paused else "PRESS A KEY TO BEGIN"
        self._window.show(
            frame,
            self._period if is_counted else _STILL_PERIOD,
            self._line(),
            sign,
            is_counted=is_counted,
        )

    def _line(self) -> str:
        who = (
            "" if self._caller is None else ("you play   " if self._is_human else "policy plays   ")
        )
        return (  # the message first: a line that is too long is cut
            f"{self._message}   {who}episode {self._begun - self._discarded}   "
            f"step {len(self._steps)}   return {self._return:g}"
        ).strip()

    def _begin_next(self) -> None:
        """Show the end of an episode for a while, in which it can be discarded; begin the next."""
        until = time.perf_counter() + _END_SECONDS
        self._show(rendered(self._env, "play"), sign="EPISODE OVER")
        while time.perf_counter() < until and not self._window.commands:
            self._show(None, sign="EPISODE OVER")
            waiting = self._window.commands  # keys of the game do not end the show
            while waiting and waiting[0] == "other":
                waiting.popleft()
        if self._window.commands:
            return  # obeyed first
        self._reset(self._next_seed())

    def _close_episode(self) -> None:
        """Store the rows of the episode, and count it if it has ended."""
        self._recording.flush()
        if self._is_over:
            self._returns.append(self._return)
            if len(self._returns) == self.most_episodes:
                self._is_done = True
        self._is_over = False

    def _next_seed(self) -> int:
        self._number += 1
        return self._seeds.env_seed(0, self._number - 1)

    def _reset(self, seed: int, loaded_steps: int = 0) -> None:
        """Store the episode, and begin another."""
        self._close_episode()
        if self._is_done:
            return
        self._facts.loaded_steps = loaded_steps
        self._begun += 1
        self._observation, _ = self._envs.reset(seed=[seed])
        self._seed, self._steps, self._return, self._is_first = seed, [], 0.0, True

    def _discard(self) -> None:
        if not self._recording.discard():
            self._message = "too long to be discarded: its beginning is stored already"
            return
        self._discarded += 1
        self._stored_steps -= len(self._steps)
        self._human_steps -= sum(one.is_human for one in self._steps)
        self._is_over = False
        self._reset(self._next_seed())
        self._message = "discarded"

    def _take_over(self) -> None:
        if self._caller is None:
            self._message = "there is no policy to hand over to"
            return
        self._is_human = not self._is_human
        self._window.held()  # taps before do not count

    def _save(self) -> None:
        if self._is_over:
            self._message = "the episode is over: nothing to save"
            return
        now = self._observation
        newest = now.copy() if isinstance(now, np.ndarray) else None
        self._saved = _Saved(self._seed, tuple(self._steps), newest)
        self._message = f"saved at step {len(self._steps)}"

    def _load(self) -> None:
        """Play up to the saved state in a new episode."""
        saved = self._saved
        if saved is None:
            self._message = "nothing is saved"
            return
        self._reset(saved.seed, len(saved.steps))
        if self._is_done:
            return
        for number, one in enumerate(saved.steps):
            if self._is_over:
                break
            _, extras = self._ask(one.action)
            self._take(one, extras, is_shown=False)
            if number % _LOOKS == 0:
                self._window.read_keys()
        self._window.held()
        now = self._observation
        is_same = not self._is_over and (
            saved.observation is None or np.array_equal(now, saved.observation)
        )
        self._message = (
            f"loaded step {len(saved.steps)}"
            if is_same
            else "the env went elsewhere than when it was saved: it does not repeat itself"
        )
        self._show(rendered(self._env, "play"))


def _layer_with_frames(env: Any) -> Any:
    """The layer of a game that calls ``on_frame`` after each frame of a step; None without one."""
    while not hasattr(type(env), "on_frame"):
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env
    return env
