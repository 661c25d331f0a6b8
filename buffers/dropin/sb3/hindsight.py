"""SB3's replay buffer of hindsight: transitions with goals that were achieved later."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from ...base.errors import NotEnoughData
from ...base.number_checks import check_whole
from ...replay.replay import SequenceReplayBuffer
from ..transition_writer import check_one_of
from .replay import DictReplayBuffer
from .step_ring import SB3HerReplayBuffer, observation_shape, random_numbers, registered

if TYPE_CHECKING:
    import torch


@registered
class HerReplayBuffer(DictReplayBuffer, SB3HerReplayBuffer):
    """`DictReplayBuffer` that gives transitions goals which were achieved in their episode.

    Hindsight experience replay: Andrychowicz et al., 2017, arXiv:1707.01495. As in SB3's class,
    only ended episodes are drawn, and none whose first step was overwritten; a new goal changes the
    reward, but not ``dones``. There are two differences to SB3's: `reset` forgets the
    episodes, and infos are kept only with ``copy_info_dict=True``. For other replays, unfinished
    episodes and n-step returns see `stepwell.Hindsight`.

    Args:
        buffer_size: Transitions to keep, of all envs together.
        observation_space: A Dict with ``achieved_goal`` and ``desired_goal`` of one shape.
        action_space: Of one env.
        env: SB3's ``VecEnv``, whose first env computes rewards:
            ``compute_reward(achieved_goal, desired_goal, infos)`` for arrays of n goals and n
            infos. SB3's models pass their own.
        device: Device of the batches; ``"auto"`` is the GPU where there is one.
        n_envs: Number of envs N.
        optimize_memory_usage: It changes nothing.
        handle_timeout_termination: As in `ReplayBuffer`.
        n_sampled_goal: Transitions with another goal for each one with its own: 4 relabels four of
            five.
        goal_selection_strategy: The goal is the one achieved after a step of the same episode:
            ``"future"``, the transition's or a later one; ``"final"``, the last one; ``"episode"``,
            any. SB3's ``GoalSelectionStrategy`` is valid, too.
        copy_info_dict: Keep the infos, and pass a copy of them to ``compute_reward``, which gets
            empty ones otherwise.
        path: Folder of the replay; None keeps it in RAM.
        resume: As in `ReplayBuffer`; with ``copy_info_dict`` it begins empty, as no infos are kept.
        replay: A replay of your own in place of a path.

    Raises:
        ValueError: A number is out of range, the strategy is unknown, or the space has no goals.
        SpecMismatch: The folder or the replay holds other rows.

    Example:
        >>> from types import SimpleNamespace
        >>> def env_method(name, achieved_goal, desired_goal, infos, indices):
        ...     return [-(achieved_goal != desired_goal).any(axis=-1).astype(np.float32)]
        >>> part = spaces.MultiBinary(4)
        >>> space = spaces.Dict(observation=part, achieved_goal=part, desired_goal=part)
        >>> env = SimpleNamespace(env_method=env_method)  # in place of a VecEnv
        >>> buffer = HerReplayBuffer(100, space, spaces.Discrete(4), env, device="cpu")
        >>> bits = np.zeros((1, 4), np.int8)
        >>> seen = {"observation": bits, "achieved_goal": bits, "desired_goal": bits + 1}
        >>> for step in range(6):
        ...     buffer.add(seen, seen, np.array([1]), [-1.0], np.array([step == 5]), [{}])
        >>> buffer.sample(5).rewards.ravel().int().tolist()
        [-1, 0, 0, 0, 0]
    """

    env: Any

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: Any = "future",
        copy_info_dict: bool = False,
        *,
        path: str | os.PathLike[str] | None = None,
        resume: bool = True,
        replay: SequenceReplayBuffer | None = None,
    ) -> None:
        check_whole("n_sampled_goal", n_sampled_goal, 0)
        _check_goals(observation_space)
        # A member of SB3's GoalSelectionStrategy has its name in capitals.
        strategy = str(getattr(goal_selection_strategy, "name", goal_selection_strategy)).lower()
        check_one_of("goal_selection_strategy", strategy, ("future", "final", "episode"))
        self._strategy = strategy
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            path=path,
            resume=resume and not copy_info_dict,
            replay=replay,
        )
        # Attributes of SB3's class, which its users read.
        self.env = env
        self.copy_info_dict = copy_info_dict
        self.goal_selection_strategy = goal_selection_strategy
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - (1.0 / (n_sampled_goal + 1))
        self._begin_episodes()

    def _resume(self, replay: SequenceReplayBuffer) -> None:
        super()._resume(replay)
        for pos in range(self.buffer_size if self.full else self.pos):
            self._episodes.begin(pos)
            for env in self.dones[pos].nonzero()[0].tolist():
                self._episodes.end(env, (pos + 1) % self.buffer_size)

    def _begin_episodes(self) -> None:
        self._episodes = _EpisodeRing(self.buffer_size, self.n_envs)
        shape = self.buffer_size, self.n_envs
        self.infos = np.empty(shape, object) if self.copy_info_dict else None

    @property
    def ep_start(self) -> np.ndarray:
        """[size, N] int64: step of the ring at which the episode of each step begins."""
        return self._episodes.start

    @property
    def ep_length(self) -> np.ndarray:
        """[size, N] int64: steps of the episode of each step; 0 where that is not drawn from."""
        return self._episodes.length

    def set_env(self, env: Any) -> None:
        """Set the env of a buffer that was loaded.

        Raises:
            ValueError: It has one already.
        """
        if self.env is not None:
            raise ValueError("set_env: expected a buffer without an env, got one that has its own")
        self.env = env

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: Any,
        done: Any,
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    ) -> None:
        """Add one step of all envs; see `ReplayBuffer.add`.

        Args:
            obs: Observations ``[N, ...]``.
            next_obs: Next observations ``[N, ...]``.
            action: ``[N, ...]``.
            reward: [N].
            done: [N]: the episode ended.
            infos: One for each env; with ``copy_info_dict`` they must not be changed later.

        Raises:
            ValueError: A value does not fit; the step was not added.
        """
        if self._resumes:
            self._bind()
        pos = self.pos
        if self.infos is not None and (isinstance(infos, Mapping) or len(infos) != self.n_envs):
            raise ValueError(
                f"infos: expected a list with one dict for each of {self.n_envs} envs, got "
                f"{type(infos).__name__}; make the buffer with copy_info_dict=False to leave them "
                f"out"
            )
        super().add(obs, next_obs, action, reward, done, infos)
        self._episodes.begin(pos)
        if self.infos is not None:
            self.infos[pos] = infos
        for env in self.dones[pos].nonzero()[0].tolist():
            self._episodes.end(env, self.pos)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions of ended episodes uniformly, by NumPy's global generator as SB3 does.

        Args:
            batch_size: Number of transitions, B >= 1.
            env: SB3's ``VecNormalize``, which normalises observations and rewards.

        Returns:
            ``DictReplayBufferSamples``, as `ReplayBuffer.sample` gives them. The relabelled ones,
            ``her_ratio`` of B rounded down, are the last of the batch.

        Raises:
            NotEnoughData: No episode has ended yet.
            ValueError: The buffer has no env, or the env gives rewards of another shape.
        """
        check_whole("batch_size", batch_size, 1)
        self.size()  # begins with the steps of a folder
        drawable = self._episodes.drawable()
        if not len(drawable):
            raise NotEnoughData(
                "no episode in the buffer has ended: expected at least one, got 0; set "
                "learning_starts to more than the steps of the longest episode"
            )
        places = drawable.take(random_numbers(0, len(drawable), batch_size))
        count = int(self.her_ratio * batch_size)
        kept = batch_size - count
        places = np.concatenate([places[count:], places[:count]])
        now, then = self._observed(places, places)
        rewards = self._at(self.rewards, places)[:, None]
        if count:
            goals = self._episodes.goals(places[kept:], self._strategy)
            achieved = self._at(self.next_observations["achieved_goal"], goals)
            now["desired_goal"][kept:] = then["desired_goal"][kept:] = achieved
            rewards[kept:, 0] = self._rewards_of(
                places[kept:], then["achieved_goal"][kept:], now["desired_goal"][kept:]
            )
        rewards = self._normalize_reward(rewards, env)
        return self._transitions(places, places, (now, then), env, rewards)

    def _rewards_of(
        self, places: np.ndarray, achieved: np.ndarray, desired: np.ndarray
    ) -> np.ndarray:
        """The rewards [n] float32 of steps for other goals."""
        if not hasattr(self.env, "env_method"):
            got = None if self.env is None else type(self.env).__name__
            raise ValueError(
                f"env: expected SB3's VecEnv, whose envs compute rewards, got {got}; call set_env"
            )
        infos: Any = [{} for _ in range(len(places))]
        if self.infos is not None:
            infos = copy.deepcopy(self.infos.ravel().take(places))
        found = self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])[0]
        rewards = np.asarray(found).astype(np.float32)
        if rewards.size != len(places):
            raise ValueError(
                f"compute_reward: expected {len(places)} rewards for so many goals at once, got "
                f"shape {rewards.shape}; compute them along the last axis of the goals"
            )
        return rewards.reshape(-1)

    def truncate_last_trajectory(self) -> None:
        """Let all open episodes end here, as SB3 does after loading; bootstrapping goes on.

        In `replay` they end by a cut.
        """
        open_envs = (self._episodes.begun != self.pos).nonzero()[0].tolist()
        if not open_envs:
            return
        warnings.warn(
            f"The last trajectory in the replay buffer will be truncated: the episodes of "
            f"{len(open_envs)} envs are open; to go on in them pass truncate_last_traj=False",
            stacklevel=2,
        )
        self.flush()
        self._writer.cut()
        self._before = None
        self._has_timeouts |= self.handle_timeout_termination
        for env in open_envs:
            self.dones[self.pos - 1, env] = 1
            self._episodes.end(env, self.pos)
            if self.handle_timeout_termination:
                self.timeouts[self.pos - 1, env] = 1

    def reset(self) -> None:
        """Begin with an empty ring; the replay keeps its rows, and open episodes end by a cut."""
        super().reset()
        self._begin_episodes()

    def __getstate__(self) -> dict[str, Any]:
        """The state without the env."""
        return super().__getstate__() | {"env": None}


def _check_goals(space: Any) -> None:
    """Refuse a space without two goals of one shape."""
    shapes = observation_shape(space)
    keys = ("achieved_goal", "desired_goal")
    goals = [shapes.get(key) if isinstance(shapes, dict) else None for key in keys]
    if goals[0] is None or goals[0] != goals[1]:
        raise ValueError(
            f"observation_space: expected a Dict with an achieved_goal and a desired_goal of one "
            f"shape, got shapes {shapes}; use the class without Her in its name"
        )


class _EpisodeRing:
    """Which places of a ring of steps of N envs belong to an ended episode that is still whole."""

    # A place is `step * N + env`. Where the first step of an ended episode is overwritten, none of
    # its steps is drawn any more, as in SB3's `HerReplayBuffer`.

    def __init__(self, size: int, num_envs: int) -> None:
        # [size, N]: step at which the episode of each step begins
        self.start = np.zeros((size, num_envs), np.int64)
        # [size, N]: steps of its episode; 0 unless that has ended
        self.length = np.zeros((size, num_envs), np.int64)
        # [N]: step at which each env's open episode begins
        self.begun = np.zeros(num_envs, np.int64)
        self._drawable: np.ndarray | None = None

    def begin(self, step: int) -> None:
        """A step of all envs is written: leave out the episodes that it overwrites."""
        for env in self.length[step].nonzero()[0].tolist():
            steps = step + np.arange(self.length[step, env])
            self.length[steps % len(self.length), env] = 0
            self._drawable = None
        self.start[step] = self.begun

    def end(self, env: int, step: int) -> None:
        """An env's episode has ended before a step, with which its next one begins."""
        begun = self.begun.item(env)
        # Of an episode that is longer than the ring this leaves the last steps, as in SB3.
        length = (step - begun) % len(self.length)
        self.length[(begun + np.arange(length)) % len(self.length), env] = length
        self.begun[env] = step
        self._drawable = None

    def drawable(self) -> np.ndarray:
        """[n] int64: the places of all steps of ended episodes, in order."""
        if self._drawable is None:
            self._drawable = np.flatnonzero(self.length)
        return self._drawable

    def goals(self, places: np.ndarray, strategy: str) -> np.ndarray:
        """The places [n] int64 of steps after which the goals of steps ``places`` were achieved."""
        # "future" draws uniformly from the step itself to the last one of its episode, "final"
        # takes that last one, "episode" draws from all its episode.
        size, num_envs = self.start.shape
        start, length = self.start.ravel().take(places), self.length.ravel().take(places)
        step, env = np.divmod(places, num_envs)
        if strategy == "final":
            number = length - 1
        elif strategy == "future":
            number = np.random.randint((step - start) % size, length)  # noqa: NPY002
        else:
            number = np.random.randint(length)  # noqa: NPY002
        found: np.ndarray = (start + number) % size * num_envs + env
        return found
