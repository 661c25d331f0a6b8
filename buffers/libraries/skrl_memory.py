"""skrl: a replay in place of the memory of its off-policy agents."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import numpy as np
from gymnasium import spaces

from ..base.errors import not_copied
from ..base.optional_libraries import load_library
from ..replay.replay import SequenceReplayBuffer
from ..sampling.requests import Transitions
from ..sampling.tensors import ToTensors, load_torch
from ..spec.space_json import recorded_spaces

_NAME: Final = "as_skrl_memory"
_FIELDS: Final = ("observation", "action", "reward")


def as_skrl_memory(replay: SequenceReplayBuffer, *, device: object = None) -> SkrlMemory:
    """Give a replay the methods of skrl's memories, for its DQN, DDQN, DDPG, TD3 and SAC.

    Each ``memory.sample`` of an agent is a draw from the replay. The next observation is the true
    one, and ``terminated`` marks terminations alone.

    Args:
        replay: A replay that recorded the spaces of its env; a Collector may go on writing into it.
        device: Torch device of the tensors; None: the one that skrl's agents take by default.

    Returns:
        An agent's ``memory``, with ``observation_space`` and ``action_space`` of the replay. It
        takes no samples: ``agent.update(timestep=0, timesteps=0)`` learns, not a trainer.

    Raises:
        ImportError: skrl or PyTorch is not installed, or skrl is older than 2.1.
        ValueError: The replay has no spaces, its actions are not counted from 0, or there is no
            such device.

    Example:
        >>> import stepwell as sw
        >>> import torch
        >>> memory = as_skrl_memory(sw.load_dataset("cartpole/random", seed=0))
        >>> memory.create_tensor("actions", size=memory.action_space, dtype=torch.int64)
        True
        >>> (observations, actions), = memory.sample(["observations", "actions"], batch_size=32)
        >>> observations.shape, actions.shape, len(memory)
        (torch.Size([32, 4]), torch.Size([32, 1]), 10003)
    """
    return SkrlMemory(replay, device)


class SkrlMemory:
    """A replay with the methods of skrl's memories; made by `as_skrl_memory`."""

    def __init__(self, replay: SequenceReplayBuffer, device: object) -> None:
        skrl = load_library("skrl", _NAME, install="'stepwell[skrl]'", at_least="2.1")
        self._torch: Any = load_torch(_NAME)
        self._spaces_of_skrl: Any = load_library("skrl.utils.spaces.torch", _NAME, install="skrl")
        if device is not None:
            ToTensors(device)  # raises where there is none: skrl would take another one
        self.replay, self.device = replay, skrl.config.torch.parse_device(device)
        self.observation_space, self.action_space = recorded_spaces(replay, _NAME)
        if np.any(getattr(self.action_space, "start", 0)):
            raise ValueError(
                f"{_NAME}: expected actions that are counted from 0, as skrl's agents choose them, "
                f"got {self.action_space}; wrap the env so that they are"
            )
        self._spaces: dict[str, Any] = {
            "observations": self.observation_space,
            "next_observations": self.observation_space,
            "actions": self.action_space,
            **dict.fromkeys(("rewards", "terminated", "truncated"), 1),  # numbers
        }
        self._dtypes: dict[str, Any] = {}

    def __len__(self) -> int:
        """Transitions that can be drawn now."""
        return self.replay.count(Transitions(1))

    def __reduce__(self) -> NoReturn:
        not_copied("a replay in skrl's place", "make one there, as_skrl_memory(replay)")

    def create_tensor(
        self, name: str, *, size: Any, dtype: Any = None, keep_dimensions: bool = False
    ) -> bool:
        """Note the dtype that an agent wants of a column; its ``init`` calls this.

        ``size`` is a space or 1; None, of a column that the agent does not use, gives False.

        Raises:
            ValueError: A replay has no such column, or the space is another one than the replay's.
        """
        if size is None:
            return False
        wanted = self._spaces.get(name)
        if wanted is None or keep_dimensions:
            raise ValueError(
                f"{_NAME}: expected an agent that learns from {', '.join(self._spaces)}, such as "
                f"DQN or SAC, got one that asks for {name}; give it a memory of skrl"
            )
        boxes = isinstance(size, spaces.Box) and isinstance(wanted, spaces.Box)
        if size.shape != wanted.shape if boxes else size != wanted:  # agents see no bounds
            raise ValueError(
                f"{name}: expected the space of the replay, {wanted}, got {size}; make the agent "
                f"with memory.observation_space and memory.action_space"
            )
        self._dtypes[name] = dtype
        return True

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Any]]:
        """Draw ``batch_size`` transitions uniformly, B.

        Returns:
            One list of tensors in the order of ``names``: observations and actions [B, D], flat as
            skrl flattens their spaces, ``rewards``, ``terminated`` and ``truncated`` [B, 1]; None
            for other names, such as ``states``. Those without a dtype of `create_tensor` are
            float32.

        Raises:
            NotEnoughData: There is no transition yet.
            ValueError: Several minibatches, or sequences, are asked for.
        """
        if mini_batches != 1 or sequence_length != 1:
            raise ValueError(
                f"{_NAME}: expected mini_batches=1 and sequence_length=1, got {mini_batches} and "
                f"{sequence_length}; train an agent without a recurrent state"
            )
        batch = self.replay.sample(Transitions(batch_size, fields=_FIELDS))
        columns = {
            "observations": batch.observation,
            "next_observations": batch.next_observation,
            "actions": batch.action,
            "rewards": batch.reward,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
        }
        return [[self._tensor(name, columns[name]) if name in columns else None for name in names]]

    def add_samples(self, **tensors: Any) -> NoReturn:
        """Raise TypeError: a Collector writes the rows."""
        raise TypeError(
            f"{_NAME}: expected an agent that learns by agent.update(timestep=0, timesteps=0), got "
            f"samples of a trainer; let a Collector write them into the replay"
        )

    def _tensor(self, name: str, rows: Any) -> Any:
        """A column [B, D] in the dtype that the agent asked for."""
        space = self._spaces[name]
        if space == 1:
            found = self._torch.as_tensor(rows, device=self.device)[:, None]
        else:
            whole = self._spaces_of_skrl.tensorize_space(space, rows, device=self.device)
            found = self._spaces_of_skrl.flatten_tensorized_space(whole)
        return found.to(self._dtypes.get(name) or self._torch.float32)
