"""The replay of FishyRL (DreamerX): a row of each env before each step, windows of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias, cast

import numpy as np
from gymnasium.vector import AutoresetMode

from ..base import forks
from ..base.errors import NotEnoughData, SpecMismatch
from ..base.number_checks import check_whole
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode_buffer import EpisodeBuffer
from ..sampling.batch import Batch
from ..sampling.rate import ReplayRatio
from ..sampling.requests import Borders, Sequences
from ..sampling.tensors import load_torch
from ..spec.exact_values import exactly
from ..spec.spec import Codec, Field, Spec, plain_array
from ..storage.encoded_chunk import unpack_chunks
from ..storage.ram import packed_rows
from .transition_writer import ReplayOwner, new_replay, row_field

__all__ = [
    "IndependentVectorizedBuffer",
    "Ratio",
    "SequentialBuffer",
    "convert_samples_to_tensors",
]

_MADE_BY = "fishyrl"
_FEW_ROWS = 32
_FLAGS = ("terminations", "truncations")
FLAGS = ("is_first", "is_last", "cut", "mask")
"""Flags that `sample` can return with the columns."""

_PER_ENV = ("rewards", *_FLAGS)
_NEEDED = ("obs", "actions", *_PER_ENV)
# Batches hold rewards as float32, which holds all of these.
_EXACT_REWARDS = frozenset("float32 float16 bool int8 uint8 int16 uint16".split())
_Columns: TypeAlias = "dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]]"


class _WindowBuffer(ReplayOwner):
    """Rows of N envs, and windows of them."""

    def __init__(
        self,
        num_buffers: int,
        capacity: int,
        validate_keys: bool = True,
        seed: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        codec: Codec | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        check_whole("num_buffers", num_buffers, 1)
        check_whole("capacity", capacity, 1)
        if not isinstance(autoreset_mode, AutoresetMode):
            raise ValueError(
                f"autoreset_mode: expected one of gymnasium.vector.AutoresetMode, got "
                f"{autoreset_mode!r}; look it up in envs.metadata['autoreset_mode']"
            )
        self._num_envs, self._capacity = int(num_buffers), int(capacity)
        self._all = np.arange(self._num_envs)
        self._codec: Codec | None = codec
        self._is_same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._rng = forks.generator(seed)
        self._rows: ExperienceFormat | None = None
        self._episodes: EpisodeBuffer | None = None
        self._is_open = np.zeros(self._num_envs, np.bool_)
        self._waiting = 0  # rows that the replay does not have yet
        self._open(new_replay(self._num_envs * self._capacity, path))

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The underlying replay."""
        return self._replay

    @property
    def capacity(self) -> int:
        """Rows that are kept at least for each env."""
        return self._capacity

    @property
    def size(self) -> int:
        """Rows stored now, of all envs, at most ``capacity`` for each."""
        stored = self._replay.storage.index.rows if self._replay.is_bound else 0
        return min(stored + self._waiting, self._num_envs * self._capacity)

    @property
    def is_full(self) -> bool:
        """True if new rows replace old ones."""
        return self.size >= self._num_envs * self._capacity

    def _add(
        self,
        experience: Mapping[str, np.ndarray],
        mask: Sequence[bool] | np.ndarray | None,
        final_obs: Sequence[Any] | np.ndarray | None,
    ) -> None:
        if final_obs is not None and not self._is_same_step:
            raise ValueError(
                "final_obs: expected none but under autoreset_mode=SAME_STEP, got some; leave them "
                "out, or name the mode of the envs"
            )
        rows = self._rows or ExperienceFormat.of(experience)
        given = rows.checked(experience, self._num_envs)
        envs = self._chosen(mask)
        if envs is not None and not len(envs):
            return
        flags = [given[key].astype(np.bool_, copy=False) for key in _FLAGS]
        ended = flags[0] | flags[1]
        # A vector env that resets within the step gives the next episode's first observation with
        # the reward of the last step. So there are two rows: the final observation with the reward,
        # and that of the reset without one.
        closing, last = self._all[:0], None
        if np.count_nonzero(ended):
            closing = np.flatnonzero(ended if envs is None else ended & np.isin(self._all, envs))
        if len(closing) and self._is_same_step:
            last = self._final_rows(rows, final_obs, closing)
        episodes, values = self._settle(rows), rows.received(given)
        if last is None:
            self._observe(episodes, values, envs, flags if len(closing) else None)
        else:
            self._observe(episodes, values | {"observation": last}, closing, flags)
            # The first observation of the next episode comes without a reward.
            names = [name for name in ("reward", "info/rewards") if name in values]
            none = {n: np.where(ended, np.zeros_like(values[n]), values[n]) for n in names}
            self._observe(episodes, values | none, envs, None)
        actions = given["actions"]
        episodes.act({"action": actions if envs is None else actions[envs]}, env_ids=envs)
        if episodes.is_due:
            self._store(everything=False)

    def sample(
        self,
        batch_size: int,
        sequence_length: int,
        *,
        borders: Borders = "cross",
        flags: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """Draw windows of rows, uniformly and with replacement.

        Args:
            batch_size: Number of windows, B >= 1.
            sequence_length: Rows in each, L >= 1.
            borders: Where a window may end an episode: it continues with the env's next one
                (``"cross"``), stays ``"inside"`` one, or is padded: see
                `SequenceReplayBuffer.sample_sequences`.
            flags: Flags to return with the columns: some of ``is_first``, ``is_last``, ``cut`` and
                ``mask``.

        Returns:
            Arrays [B, L, ...] under the names that `add` was given, in their dtypes, and under
            those of the flags. Where only the recording stopped (another run, `load_state_dict`)
            and the window continues with another episode, ``truncations`` is True.

        Raises:
            NotEnoughData: No env, or with other borders no episode, has that many rows.
            ValueError: An argument is invalid.
        """
        strange = [name for name in flags if name not in FLAGS]
        if strange:
            raise ValueError(f"flags: expected some of {', '.join(FLAGS)}, got {strange[0]!r}")
        if self._rows is None:
            raise NotEnoughData(
                f"sequence_length={sequence_length}: expected {sequence_length} rows of one env, "
                f"got none yet; add some"
            )
        rows = len(self._replay)  # drawing at every step would otherwise store one-row chunks
        if self._waiting > max(rows // 1000, min(rows // 100, _FEW_ROWS * self._num_envs)):
            self.flush()
        request = Sequences(batch_size, sequence_length, borders, fields=self._rows.fields)
        try:
            batch = self._replay.sample(request, rng=self._rng)
        except NotEnoughData:
            self.flush()
            self._check_enough(request)
            batch = self._replay.sample(request, rng=self._rng)
        return self._rows.handed_out(batch, flags)

    def flush(self) -> None:
        """Make every row drawable; in a folder it is durable then."""
        if self._waiting:
            self._store(everything=True)

    def cut(self) -> None:
        """Stop recording all open episodes: the next row of each env begins another one."""
        self.flush()  # otherwise an episode of a single row would be left out
        self._is_open[:] = False

    def reset(self) -> None:
        """Forget all rows and their columns; the generator keeps its state.

        Raises:
            ValueError: The rows lie in a folder.
        """
        if self._replay.path is not None:
            raise ValueError(
                f"reset: expected a buffer in RAM, got the folder {self._replay.path}; open "
                f"another one, or remove this one yourself"
            )
        self._begin_with(new_replay(self._num_envs * self._capacity))

    def state_dict(self) -> dict[str, Any]:
        """The state for `load_state_dict`, in any process: arrays and JSON-able values.

        In RAM that is a copy of all stored rows: as many bytes as they have. In a folder the rows
        become durable, and the state is small.
        """
        self.flush()
        state: dict[str, Any] = {
            "num_buffers": self._num_envs,
            "generator": self._rng.bit_generator.state,
            "columns": None if self._rows is None else self._rows.to_json(),
            "store": None,
            "rows": None,
        }
        if self._replay.path is not None:
            return state | {"store": self._replay.state_dict()}
        if self._replay.is_bound:
            state["rows"] = np.frombuffer(packed_rows(self._replay.storage), np.uint8)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the state of `state_dict`; each env's next row begins an episode.

        In RAM its rows replace the present ones. In a folder rows that were stored since remain.

        Raises:
            ValueError: The state is of another class, other envs or another folder; the buffer is
                unchanged, as it is where StoreCorrupt says that the state's rows are damaged.
        """
        if set(state_dict) != {"num_buffers", "generator", "columns", "store", "rows"}:
            raise ValueError(
                f"state_dict: expected what this class gave, got the keys "
                f"{', '.join(map(str, state_dict))}; a checkpoint of FishyRL itself cannot be read"
            )
        if state_dict["num_buffers"] != self._num_envs:
            raise ValueError(
                f"state_dict: expected that of {self._num_envs} envs, got one of "
                f"{state_dict['num_buffers']}; make the buffer as it was"
            )
        if (state_dict["store"] is None) != (self._replay.path is None):
            there = "RAM" if state_dict["store"] is None else "a folder"
            raise ValueError(
                f"state_dict: expected that of a buffer with path={self._replay.path}, got one "
                f"that kept its rows in {there}; make the buffer as it was"
            )
        forks.load_generator(np.random.default_rng(), state_dict["generator"])  # or refuses it
        if self._replay.path is None:
            replay = new_replay(self._num_envs * self._capacity)
            if state_dict["rows"] is not None:
                known = ExperienceFormat.from_json(state_dict["columns"])
                replay.bind(known.spec(None, self._codec), self._facts(known))
                replay.add_encoded(unpack_chunks(state_dict["rows"].tobytes(), replay.spec))
            self._begin_with(replay)
        else:
            self.flush()
            self._replay.load_state_dict(state_dict["store"])
            self.cut()
        self._rng.bit_generator.state = state_dict["generator"]

    def _store_rest(self) -> None:
        self.flush()

    def _chosen(self, mask: Sequence[bool] | np.ndarray | None) -> np.ndarray | None:
        """Indices of the envs whose entries are taken; None for all."""
        if mask is None:
            return None
        wanted = np.asarray(mask)
        if wanted.dtype != np.bool_ or wanted.shape != (self._num_envs,):
            raise ValueError(
                f"mask: expected {self._num_envs} bools, one for each env, got {wanted.dtype} "
                f"{wanted.shape}"
            )
        return None if wanted.all() else np.flatnonzero(wanted)

    def _final_rows(
        self,
        rows: ExperienceFormat,
        final_obs: Sequence[Any] | np.ndarray | None,
        ended: np.ndarray,
    ) -> np.ndarray:
        """Observations [N, ...]: the final ones of envs whose episodes ended, zeros elsewhere."""
        dtype, shape = rows.columns["obs"]
        last = np.zeros((self._num_envs, *shape), dtype)
        for env in ended.tolist():
            shown = None if final_obs is None else final_obs[env]
            if shown is None:
                raise ValueError(
                    f"final_obs: expected that of env {env}, whose episode has ended, under "
                    f'autoreset_mode=SAME_STEP, got none; give infos["final_obs"]'
                )
            last[env] = as_column("final_obs", shown, dtype, shape)
        return last

    def _observe(
        self,
        episodes: EpisodeBuffer,
        values: Mapping[str, np.ndarray],
        envs: np.ndarray | None,
        flags: Sequence[np.ndarray] | None,
    ) -> None:
        """Begin a row [N, ...] of each selected env; flags [N] are terminated and truncated."""
        some: slice | np.ndarray = slice(None) if envs is None else envs
        first = ~self._is_open[some]
        ends: list[np.ndarray | None] = [None, None]
        if flags is not None:
            ends = [each[some] if np.count_nonzero(each) else None for each in flags]
        episodes.observe(
            values if envs is None else {name: array[envs] for name, array in values.items()},
            is_first=first if np.count_nonzero(first) else None,
            terminated=ends[0],
            truncated=ends[1],
            env_ids=envs,
        )
        self._is_open[some] = True if flags is None else ~(flags[0] | flags[1])[some]
        self._waiting += len(first)

    def _facts(self, rows: ExperienceFormat) -> dict[str, object]:
        """The facts about the rows that the store keeps."""
        recipe = {"made_by": _MADE_BY, "columns": rows.to_json()}
        return {"source": f"FishyRL {type(self).__name__}", "recipe": recipe}

    def _settle(self, rows: ExperienceFormat) -> EpisodeBuffer:
        """Bind the replay on the first call."""
        if self._episodes is None:
            spec = rows.spec(self._replay.path, self._codec)
            self._replay.bind(spec, self._facts(rows))
            following = self._replay.storage.index.next_episode
            self._episodes = EpisodeBuffer(
                spec, self._num_envs, next_episode=following, capacity=self._replay.capacity
            )
            self._rows = rows
        return self._episodes

    def _store(self, *, everything: bool) -> None:
        assert self._episodes is not None
        chunks = self._episodes.take(everything=everything)
        self._replay.add(chunks)
        self._waiting -= sum(chunk.rows for chunk in chunks)

    def _begin_with(self, replay: SequenceReplayBuffer) -> None:
        """Switch to another replay."""
        self._replay = replay
        self._rows = self._episodes = None
        self._is_open[:] = False
        self._waiting = 0
        self._begin()

    def _begin(self) -> None:
        if not self._replay.is_bound:
            return
        recipe = cast("dict[str, Any]", (*self._replay.sessions, {})[0].get("recipe", {}))
        if recipe.get("made_by") != _MADE_BY:
            raise SpecMismatch(
                f"{self._replay.path} holds other rows: expected those of this class, got others; "
                f"open another folder, or read this one with SequenceReplayBuffer"
            )
        self._settle(ExperienceFormat.from_json(recipe["columns"]))

    def _check_enough(self, request: Sequences) -> None:
        """Raise NotEnoughData if no window can be drawn."""
        if request.borders != "cross" or self._replay.count(request):
            return  # the replay's own error fits
        records = self._replay.storage.index.records
        runs = records["stream_row"] + records["rows"] - records["stream_head"]
        longest, wanted = int(runs.max(initial=0)), request.length
        raise NotEnoughData(
            f"sequence_length={wanted}: expected {wanted} rows of one env that follow one another, "
            f"got {longest} at most, {len(np.unique(records['stream']))} envs having rows; add "
            f"more, or ask for a shorter length"
        )


class IndependentVectorizedBuffer(_WindowBuffer):
    """Takes a row of each of N envs before each step, and draws windows of rows.

    A row holds an observation, the action chosen from it, and the ``rewards``, ``terminations`` and
    ``truncations`` that the env returned with the observation: the result of the action before.
    Each env has its own episodes. Draws are uniform over all windows of all envs. While less than a
    hundredth of the rows is new, and fewer than 32 of each env, the new ones wait until there are
    more of them, or `flush` is called.

    Args:
        num_buffers: Number of envs N.
        capacity: Rows that are kept at least for each env: N times as many in all, and up to a
            fifteenth more. The oldest rows of all envs are removed first.
        validate_keys: Ignored: every call must have the keys of the first one.
        seed: Seed of the draws.
        path: Folder of a Stepwell store, which is continued if it is there; None keeps all in RAM.
        codec: Codec of the observations; None: raw in RAM, images as patch in a folder.
        autoreset_mode: That of the vector env, which determines what a row with a flag is: under
            NEXT_STEP, and without autoreset (DISABLED), the last one of its episode; under
            SAME_STEP already the first one of the next, and `add` needs ``final_obs``.

    Raises:
        ValueError: A number is out of range, or there is no such mode.
        SpecMismatch: The folder holds other rows.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> buffer = IndependentVectorizedBuffer(2, 1_000, seed=0)
        >>> for step in range(100):
        ...     buffer.add({
        ...         "obs": np.full((2, 4), step, np.float32),
        ...         "rewards": np.ones(2),
        ...         "terminations": np.array([step % 30 == 29, False]),
        ...         "truncations": np.zeros(2, bool),
        ...         "actions": np.eye(2, dtype=np.float32),
        ...     })
        >>> batch = buffer.sample(16, sequence_length=8, flags=["is_first"])
        >>> batch["obs"].shape, batch["rewards"].dtype, batch["is_first"].shape
        ((16, 8, 4), dtype('float64'), (16, 8))
    """

    def add(
        self,
        experience: Mapping[str, np.ndarray],
        mask: Sequence[bool] | np.ndarray | None = None,
        *,
        final_obs: Sequence[Any] | np.ndarray | None = None,
    ) -> None:
        """Add a row of every env, or of some; everything is copied.

        Args:
            experience: Arrays [N, ...] under ``obs``, ``rewards``, ``terminations``,
                ``truncations``, ``actions``, and other names. What an episode's last row has for an
                action was never done: zeros are stored there.
            mask: [N] bool: the envs whose entries are taken; None for all.
            final_obs: [N]: under SAME_STEP the observations with which episodes ended, as in
                ``infos["final_obs"]``; those of envs without a flag are ignored. They get separate
                rows with the rewards and flags; the other names' values are in both rows.

        Raises:
            ValueError: An array differs from the first call, or the final observations are missing,
                or not expected; nothing was added.
            SpecMismatch: The folder holds other rows.
        """
        self._add(experience, mask, final_obs)


class SequentialBuffer(_WindowBuffer):
    """Takes the rows of one env, and draws windows of them.

    Args:
        capacity: See `IndependentVectorizedBuffer`, as for the others.
        validate_keys: Ignored.
        seed: Seed of the draws.
        path: Folder of a Stepwell store.
        codec: Codec of the observations.
        autoreset_mode: That of the vector env.

    Raises:
        ValueError: A number is out of range, or there is no such mode.
        SpecMismatch: The folder holds other rows.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> buffer = SequentialBuffer(1_000, seed=0)
        >>> for step in range(100):
        ...     buffer.add({
        ...         "obs": np.full(4, step, np.float32),
        ...         "rewards": np.float32(1),
        ...         "terminations": np.bool_(step % 30 == 29),
        ...         "truncations": np.bool_(False),
        ...         "actions": np.array([0, 1], np.float32),
        ...     })
        >>> buffer.size, buffer.sample(16, sequence_length=8)["actions"].shape
        (100, (16, 8, 2))
    """

    def __init__(
        self,
        capacity: int,
        validate_keys: bool = True,
        seed: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        codec: Codec | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(
            1, capacity, validate_keys, seed, path=path, codec=codec, autoreset_mode=autoreset_mode
        )

    def add(self, experience: Mapping[str, np.ndarray], *, final_obs: object = None) -> None:
        """Add a row; everything is copied.

        Args:
            experience: Arrays [...], or numbers, by name.
            final_obs: Under SAME_STEP the observation with which the episode ended.

        Raises:
            ValueError: An array differs from the first call, or the final observation is missing,
                or not expected; nothing was added.
            SpecMismatch: The folder holds other rows.
        """
        values = {
            key: plain_array(key, value, ValueError)[None] for key, value in experience.items()
        }
        self._add(values, None, None if final_obs is None else [final_obs])


class Ratio:
    """Counts the updates that are due: ``floor(ratio * step)`` in all, exactly.

    Args:
        ratio: Updates for each env step, >= 0; at 0 none is ever due.

    Raises:
        ValueError: It is negative or not finite.

    Example:
        >>> ratio = Ratio(0.3)
        >>> [ratio(step) for step in (1, 4, 10)]
        [0, 1, 2]
        >>> Ratio(0.0)(5)
        0
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = float(ratio)
        self._owed = ReplayRatio(ratio, start=0)

    def __call__(self, step: int) -> int:
        """Updates that have become due; they count as done from now on.

        Args:
            step: Env steps done since the updates began.

        Raises:
            ValueError: Fewer steps than at the call before.
        """
        return self._owed(step)

    def state_dict(self) -> dict[str, Any]:
        """The ratio and the outstanding updates, as JSON values."""
        return {"ratio": self._ratio, **self._owed.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the state of `state_dict`, with its ratio.

        Raises:
            ValueError: The state does not come from `state_dict`.
        """
        if "ratio" not in state_dict:
            raise ValueError(
                f"state_dict: expected what Ratio.state_dict gave, got {dict(state_dict)}; save it "
                f"again"
            )
        owed = ReplayRatio(state_dict["ratio"], start=0)
        owed.load_state_dict(state_dict)
        self._ratio, self._owed = float(state_dict["ratio"]), owed


def convert_samples_to_tensors(
    samples: Mapping[str, np.ndarray],
    *,
    device: object = None,
    dtype: object = None,
    non_blocking: bool = False,
) -> dict[str, Any]:
    """Samples as torch tensors, which share memory with the arrays if no copy is needed.

    Args:
        samples: Arrays by name.
        device: Torch device of the tensors; None leaves them on the CPU.
        dtype: A dtype of torch for all of them; None keeps that of each array.
        non_blocking: Do not wait for a device, where torch can do without.

    Raises:
        ImportError: PyTorch is not installed.
    """
    torch = load_torch("convert_samples_to_tensors")
    return {
        name: torch.from_numpy(values).to(device=device, dtype=dtype, non_blocking=non_blocking)
        for name, values in samples.items()
    }


class ExperienceFormat:
    """Converts named arrays, each [N, ...], to the fields of rows, and batches back."""

    # A row is added before each step: the env's last result, and the action chosen from it. `obs`,
    # `rewards`, `terminations`, `truncations` and `actions` have their places in a row; other
    # columns are stored as `info/...`. Rewards that float32 cannot hold are stored as
    # `info/rewards` too.

    def __init__(self, columns: _Columns) -> None:
        self.columns = columns
        self._are_rewards_exact = columns["rewards"][0].name in _EXACT_REWARDS
        left = [key for key in _NEEDED if key != "rewards" or self._are_rewards_exact]
        self._info = [(key, "info/" + key) for key in self.columns if key not in left]

    @classmethod
    def of(cls, experience: Mapping[str, np.ndarray]) -> Self:
        """The columns of the first rows, arrays [N, ...] by name."""
        missing = [key for key in _NEEDED if key not in experience]
        if missing:
            raise ValueError(
                f"experience: expected the keys {', '.join(_NEEDED)}, got none of the name "
                f"{', '.join(missing)}; give all of them"
            )
        columns: _Columns = {}
        for key, values in experience.items():
            array = plain_array(key, values, ValueError)
            if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or not array.ndim:
                raise ValueError(
                    f"{key}: expected an array of numbers with one entry for each env, got "
                    f"{array.dtype} {array.shape}; leave the key out or make numbers of it"
                )
            if key in _PER_ENV and array.ndim != 1:
                raise ValueError(
                    f"{key}: expected one number for each env, got shape {array.shape}; reshape it"
                )
            columns[key] = array.dtype, array.shape[1:]
        return cls(columns)

    @classmethod
    def from_json(cls, described: object) -> Self:
        """The columns that `to_json` described."""
        entries = cast("list[tuple[str, str, list[int]]]", described)
        return cls({key: (np.dtype(dtype), tuple(shape)) for key, dtype, shape in entries})

    def to_json(self) -> list[list[object]]:
        """Plain data."""
        return [[key, dtype.name, list(shape)] for key, (dtype, shape) in self.columns.items()]

    def spec(self, path: str | os.PathLike[str] | None, codec: Codec | None) -> Spec:
        """The fields of a row; without a codec that of observations follows from their shape."""
        fields = [
            row_field("observation", *self.columns["obs"], path=path, codec=codec),
            row_field("action", *self.columns["actions"], path=path),
            Field("reward", "float64", (), "narrow"),
        ]
        for key, name in self._info:
            fields.append(row_field(name, *self.columns[key], path=path))
        return Spec(tuple(fields), "observation", "action")

    def checked(self, experience: Mapping[str, np.ndarray], num_envs: int) -> dict[str, np.ndarray]:
        """Rows [N, ...] of all envs as declared; the first dtype must hold all their values."""
        if experience.keys() != self.columns.keys():
            raise ValueError(
                f"experience: expected the keys {', '.join(self.columns)}, got "
                f"{', '.join(experience) or 'none'}; give the same ones each time"
            )
        found: dict[str, np.ndarray] = {}
        for key, (dtype, shape) in self.columns.items():
            values, wanted = experience[key], (num_envs, *shape)
            if type(values) is not np.ndarray or values.dtype != dtype or values.shape != wanted:
                values = as_column(key, values, dtype, wanted)
            found[key] = values
        for key in _FLAGS:
            flags = found[key]
            if flags.dtype != np.bool_ and not np.isin(flags, (0, 1)).all():
                raise ValueError(
                    f"{key}: expected only 0 and 1, got {flags.min()} to {flags.max()}; give flags"
                )
        return found

    def received(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The fields that come with an observation."""
        rows = {
            "observation": given["obs"],
            "reward": given["rewards"].astype(np.float64, copy=False),
        }
        for key, name in self._info:
            rows[name] = given[key]
        return rows

    def handed_out(self, batch: Batch, flags: Sequence[str]) -> dict[str, np.ndarray]:
        """A batch as columns [B, L, ...], in their original dtypes."""
        truncated = batch.truncated.copy()
        # A learner that reads flags must see one where the recording stopped and another episode
        # follows, and may bootstrap there.
        truncated[:, :-1] |= batch.cut[:, :-1] & batch.is_first[:, 1:]
        known: dict[str, np.ndarray] = {
            "obs": batch.observation,
            "actions": batch.action,
            "rewards": batch.reward,
            "terminations": batch.terminated,
            "truncations": truncated,
            **batch.info,
        }
        columns: dict[str, np.ndarray] = {
            key: known[key].astype(dtype, copy=False) for key, (dtype, _) in self.columns.items()
        }
        return columns | {name: getattr(batch, name) for name in flags}

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that all columns are computed from."""
        rewards = ("reward",) if self._are_rewards_exact else ()
        return ("observation", "action", *rewards, *(name for _, name in self._info))


def as_column(
    what: str, values: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> np.ndarray:
    """Values as an array of exactly this shape, in a dtype that holds every one."""
    array = plain_array(what, values, ValueError)
    if array.shape != shape:
        raise ValueError(
            f"{what}: expected shape {shape}, got {array.shape}; give an array of all envs, each "
            f"with the same shape"
        )
    if array.dtype == dtype:
        return array
    is_wider = array.dtype.kind == dtype.kind or array.dtype.itemsize < dtype.itemsize
    if not (is_wider and np.can_cast(array.dtype, dtype, "safe")):
        raise ValueError(
            f"{what}: expected {dtype} like the first one, got {array.dtype}; convert it as it is "
            f"meant first, from the first row on"
        )
    return exactly(array, dtype, shape, what)
