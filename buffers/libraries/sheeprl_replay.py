"""sheeprl: sequences in the form of its world models' training functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast, get_args

import numpy as np
from gymnasium import spaces

from ..base.errors import not_copied
from ..base.number_checks import check_choice, check_whole, whole_number
from ..curation.episode_writer import check_replay
from ..replay.replay import SequenceReplayBuffer
from ..sampling.batch import Batch
from ..sampling.requests import Draw, Sequences
from ..sampling.tensors import ToTensors
from ..spec.space_json import space_of

_NAME: Final = "as_sheeprl_replay"
_CHANNELS: Final = (1, 3, 4)

Channels: TypeAlias = Literal["first", "last"]


def as_sheeprl_replay(
    replay: SequenceReplayBuffer,
    *,
    observation: str | None = None,
    channels: Channels | None = None,
    num_actions: int | Sequence[int] | None = None,
    draw: Draw = "steps",
) -> SheeprlReplay:
    """Give a replay the sampling methods of sheeprl's buffers, for its Dreamers and other RSSMs.

    Stepwell stores the same rows as sheeprl's loop: rewards and flags with the observation they
    came with, and the last observation of an episode as a separate row with a zero action. The
    training functions take the batches unchanged.

    Args:
        replay: The replay; a Collector may continue to write into it.
        observation: Key of an observation that is not a Dict; None for ``"rgb"`` for images and
            ``"state"`` for others, as in sheeprl's own env wrapper.
        channels: Position of the channels in images; None looks for an axis of 1, 3 or 4. Batches
            have channels first, as sheeprl expects, and gray images get an axis.
        num_actions: Number of actions, or numbers of several, for the one-hot vectors of whole
            numbers; None takes them from the env's space as recorded in the store.
        draw: The way sequences are drawn; see `SequenceReplayBuffer.sample_sequences`.

    Returns:
        A replacement of sheeprl's ``rb``, without ``add``.

    Raises:
        NotEnoughData: The replay is empty.
        ValueError: Actions are whole numbers and their number is unknown; or observation or actions
            are nested deeper than sheeprl's.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=400)
        >>> batch = as_sheeprl_replay(replay).sample(16, n_samples=2, sequence_length=8)
        >>> batch["state"].shape, batch["actions"].shape, batch["rewards"].shape
        ((2, 8, 16, 4), (2, 8, 16, 2), (2, 8, 16, 1))
    """
    check_replay("replay", replay)
    if channels is not None:
        check_choice("channels", channels, get_args(Channels))
    return SheeprlReplay(replay, observation, channels, num_actions, draw)


class SheeprlReplay:
    """A replay with the methods of sheeprl's buffers; made by `as_sheeprl_replay`."""

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a replay in sheeprl's place",
            "make one of the replay that was opened there, as_sheeprl_replay(replay)",
        )

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        observation: str | None,
        channels: Channels | None,
        num_actions: int | Sequence[int] | None,
        draw: Draw,
    ) -> None:
        self.replay = replay
        self._draw: Draw = draw
        self._channels = channels
        self._keys = self._observation_keys(observation)
        self._sizes, self._start = self._action_sizes(num_actions)

    def __len__(self) -> int:
        """Env steps stored now."""
        return len(self.replay)

    @property
    def empty(self) -> bool:
        """True if no sequence can be drawn."""
        return len(self.replay) == 0

    def sample(
        self, batch_size: int, *, n_samples: int = 1, sequence_length: int = 1
    ) -> dict[str, np.ndarray]:
        """Draw sequences, which continue into the stream's next episode, as sheeprl's do.

        Args:
            batch_size: Sequences B of each sample.
            n_samples: Samples G: one for each gradient step.
            sequence_length: Rows T of a sequence.

        Returns:
            Arrays ``[G, T, B, ...]``: the observations in their stored dtype, pictures as (C, H,
            W), and float32 ``actions`` (one-hot where they are whole numbers, zeros where none was
            chosen), ``rewards``, ``terminated``, ``truncated`` and ``is_first``, each with a last
            axis.

        Raises:
            NotEnoughData: No stream has that many rows.
        """
        check_whole("n_samples", n_samples, 1)
        request = Sequences(
            batch_size * n_samples,
            sequence_length,
            borders="cross",
            draw=self._draw,
            fields=("observation", "action", "reward"),
            time_major=True,
        )
        batch = self.replay.sample(request)
        columns = {**self._observations(batch), "actions": self._actions(batch)}
        flags = {name: getattr(batch, name) for name in ("terminated", "truncated", "is_first")}
        for name, rows in {"rewards": batch.reward, **flags}.items():
            columns[name] = rows[..., None].astype(np.float32)
        lead = sequence_length, n_samples, batch_size
        return {
            name: rows.reshape(*lead, *rows.shape[2:]).swapaxes(0, 1)
            for name, rows in columns.items()
        }

    def sample_tensors(
        self,
        batch_size: int,
        *,
        n_samples: int = 1,
        sequence_length: int = 1,
        dtype: Any = None,
        device: object = None,
        from_numpy: bool = True,
    ) -> dict[str, Any]:
        """Draw sequences as tensors; see `sample`.

        Args:
            batch_size: Sequences B of each sample.
            n_samples: Samples G: one for each gradient step.
            sequence_length: Rows T of a sequence.
            dtype: A torch dtype for all of them; None leaves them.
            device: A torch device; None leaves them on the CPU.
            from_numpy: Accepted and ignored: the arrays are owned by the caller.
        """
        drawn = self.sample(batch_size, n_samples=n_samples, sequence_length=sequence_length)
        tensors: dict[str, Any] = ToTensors(device)(drawn)
        if dtype is None:
            return tensors
        return {name: tensor.to(dtype) for name, tensor in tensors.items()}

    def add(self, *steps: object) -> None:
        """Reject steps: a Collector writes them.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"{_NAME}: expected a Collector to write into the replay, got a call of add; collect "
            f"in place of stepping the envs by hand"
        )

    def _observation_keys(self, given: str | None) -> list[str]:
        """Keys of the observations for sheeprl."""
        spec = self.replay.spec
        layout = spec.observation
        if isinstance(layout, str):
            is_picture = spec[layout].dtype == "uint8" and len(spec[layout].shape) >= 2
            return [given or ("rgb" if is_picture else "state")]
        parts = layout.values() if isinstance(layout, Mapping) else ()
        if not parts or not all(isinstance(part, str) for part in parts):
            raise ValueError(
                f"{_NAME}: expected an observation that is an array or a Dict of arrays, got "
                f"{spec.observation}; flatten it with a gymnasium wrapper"
            )
        if given is not None:
            raise ValueError(
                f"observation: expected none, as the keys of a Dict observation are used, "
                f"got {given!r}; leave it out"
            )
        return list(cast("Mapping[str, str]", layout))

    def _action_sizes(self, given: int | Sequence[int] | None) -> tuple[list[int], list[int]]:
        """The number of actions of each kind, and the first of each; empty for floats."""
        layout = self.replay.spec.action
        if not isinstance(layout, str):
            raise ValueError(f"{_NAME}: expected actions that are an array, got {layout}")
        field = self.replay.spec[layout]
        if field.numpy_dtype.kind == "f":
            return [], []
        kinds = math.prod(field.shape)
        if given is None:
            sizes, start = _known_sizes(self.replay)
        else:
            sizes = [whole_number("num_actions", n, 1) for n in np.atleast_1d(given).tolist()]
            start = [0] * kinds
        if len(sizes) != kinds:
            raise ValueError(
                f"num_actions: expected {kinds}, one for each whole number of an action, got "
                f"{sizes or 'none, and the store does not record it'}; pass num_actions"
            )
        return sizes, start

    def _observations(self, batch: Batch) -> dict[str, np.ndarray]:
        leaves: Any = batch.observation
        if not isinstance(leaves, Mapping):
            leaves = {self._keys[0]: leaves}
        return {key: self._channels_first(key, leaves[key]) for key in self._keys}

    def _channels_first(self, key: str, rows: np.ndarray) -> np.ndarray:
        """Pictures ``[T, B, C, H, W]``; vectors as they are, and single numbers with an axis."""
        shape = rows.shape[2:]
        if not shape:
            return rows[..., None]
        if rows.dtype != np.uint8 or len(shape) < 2:
            return rows
        if len(shape) == 2:
            return rows[:, :, None]
        where = self._channels or _channels_of(shape)
        if where is None or len(shape) > 3:
            raise ValueError(
                f"channels: expected pictures with an axis of 1, 3 or 4 channels, got {shape} for "
                f"{key!r}; say channels='first' or 'last'"
            )
        return rows if where == "first" else np.moveaxis(rows, -1, 2)

    def _actions(self, batch: Batch) -> np.ndarray:
        """[T, B, A] float32: zeros where no action was chosen."""
        chosen = batch.action
        steps, count = chosen.shape[:2]
        flat = chosen.reshape(steps, count, -1)
        if not self._sizes:
            found = flat.astype(np.float32)
        else:
            parts = [
                self._one_hot(flat[..., kind], size, self._start[kind])
                for kind, size in enumerate(self._sizes)
            ]
            found = np.concatenate(parts, axis=-1)
        found[batch.is_last] = 0
        return np.asarray(found)

    def _one_hot(self, numbers: np.ndarray, size: int, start: int) -> np.ndarray:
        # A row without an action holds 0, even if the first action is not 0.
        places = np.where(numbers == 0, max(start, 0), numbers) - start
        if places.size and (places.min() < 0 or places.max() >= size):
            raise ValueError(
                f"num_actions: expected actions from {start} to {start + size - 1}, got "
                f"{numbers.min()} to {numbers.max()}; say how many there are"
            )
        found: np.ndarray = np.eye(size, dtype=np.float32)[places]
        return found


def _known_sizes(replay: SequenceReplayBuffer) -> tuple[list[int], list[int]]:
    """Numbers of actions from the recorded action space; empty if it is unknown."""
    if not any("spaces" in session for session in replay.sessions):
        return [], []
    space = space_of(replay.sessions, "action")
    if isinstance(space, spaces.Discrete):
        return [int(space.n)], [int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.ravel().tolist(), space.start.ravel().tolist()
    if isinstance(space, spaces.MultiBinary):
        kinds = math.prod(space.shape)
        return [2] * kinds, [0] * kinds
    return [], []


def _channels_of(shape: tuple[int, ...]) -> Channels | None:
    """The axis of a picture's channels, first or last; None if it is ambiguous."""
    is_first, is_last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
    if is_first == is_last:
        return None
    return "first" if is_first else "last"
