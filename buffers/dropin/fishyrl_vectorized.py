"""A row of each env before each step, and windows of each env's rows: FishyRL's buffer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
from gymnasium.vector import AutoresetMode

from stepwell.buffers.dropin.arrival_rows import FLAGS, ArrivalRows, as_column
from stepwell.buffers.dropin.ring import check_whole, new_replay
from stepwell.buffers.dropin.snapshot import chunks_of, snapshot
from stepwell.buffers.episode_buffer import EpisodeBuffer
from stepwell.buffers.errors import NotEnoughData, SpecMismatch
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Borders, Sequences
from stepwell.buffers.spec import Codec

__all__ = ["IndependentVectorizedBuffer"]

_MADE_BY = "fishyrl"
_FEW_ROWS = 32
_FLAGS = ("terminations", "truncations")


class IndependentVectorizedBuffer:
    """Takes a row of each of N envs before each step, and draws windows of rows.

    A row holds what *arrived* with the observation, so ``rewards``, ``terminations`` and
    ``truncations`` are the result of the action before, and the action chosen from it. Each env has
    its own episodes. Draws are uniform over all windows of all envs. While less than a hundredth of
    the rows is new, and fewer than 32 of each env, the new ones wait until there are more of them,
    or `flush` is called.

    Args:
        num_buffers: Number of envs N.
        capacity: Rows that are kept at least for each env: N times as many in all, and up to a
            fifteenth more. The oldest go first, whatever their env.
        validate_keys: Means nothing: every call must give the keys of the first one.
        seed: Seed of the draws.
        path: Folder of a Stepwell store, which is continued if it is there; None keeps all in RAM.
        codec: How observations are kept; None: raw in RAM, images as zstd in a folder.
        autoreset_mode: That of the vector env, which says what a row with a flag is: under
            NEXT_STEP, and where nobody resets (DISABLED), the last one of its episode; under
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
        self._rng = np.random.default_rng(seed)
        self._replay = new_replay(self._num_envs * self._capacity, path)
        self._rows: ArrivalRows | None = None
        self._episodes: EpisodeBuffer | None = None
        self._is_open = np.zeros(self._num_envs, np.bool_)
        self._waiting = 0  # rows that the replay does not have yet
        if self._replay.is_bound:
            try:
                self._continue()
            except BaseException:
                self._replay.close()
                raise

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The replay beneath."""
        return self._replay

    @property
    def capacity(self) -> int:
        """Rows that are kept at least for each env."""
        return self._capacity

    @property
    def size(self) -> int:
        """Rows stored now, of all envs, at most ``capacity`` for each."""
        stored = self._replay.storage.table.rows if self._replay.is_bound else 0
        return min(stored + self._waiting, self._num_envs * self._capacity)

    @property
    def is_full(self) -> bool:
        """From now on old rows go for new ones."""
        return self.size >= self._num_envs * self._capacity

    def add(
        self,
        experience: Mapping[str, np.ndarray],
        mask: Sequence[bool] | np.ndarray | None = None,
        *,
        final_obs: Sequence[Any] | np.ndarray | None = None,
    ) -> None:
        """Take up a row of every env, or of some; everything is copied.

        Args:
            experience: Arrays [N, ...] under ``obs``, ``rewards``, ``terminations``,
                ``truncations``, ``actions``, and other names. What an episode's last row has for an
                action was never done: zeros are stored there.
            mask: [N] bool: the envs whose entries are taken; None for all.
            final_obs: [N]: under SAME_STEP the observations with which episodes ended, as in
                ``infos["final_obs"]``; those of envs without a flag mean nothing. They get rows of
                their own, with the rewards and flags; the other names' values stand in both rows.

        Raises:
            ValueError: Something is not like the first time, or the final observations are missing,
                or not wanted; nothing was taken up.
            SpecMismatch: The folder holds other rows.
        """
        self._check_final(final_obs)
        rows = self._rows or ArrivalRows.of(experience)
        given = rows.checked(experience, self._num_envs)
        envs = self._chosen(mask)
        if envs is not None and not len(envs):
            return
        flags = [given[key].astype(np.bool_, copy=False) for key in _FLAGS]
        ended = flags[0] | flags[1]
        closing, last = self._all[:0], None
        if np.count_nonzero(ended):
            closing = np.flatnonzero(ended if envs is None else ended & np.isin(self._all, envs))
        if len(closing) and self._is_same_step:
            last = self._final_rows(rows, final_obs, closing)
        episodes, values = self._settle(rows), rows.arrived(given)
        if last is None:
            self._observe(episodes, values, envs, flags if len(closing) else None)
        else:
            self._observe(episodes, values | {"observation": last}, closing, flags)
            self._observe(episodes, values | _without_rewards(values, ended), envs, None)
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
            borders: What a window does where an episode ends: it goes on with the env's next one
                (``"cross"``), lies ``"inside"`` one, or is padded: see
                `SequenceReplayBuffer.sample_sequences`.
            flags: What to give beside the columns: some of ``is_first``, ``is_last``, ``cut`` and
                ``mask``.

        Returns:
            Arrays [B, L, ...] under the names that `add` was given, in their dtypes, and under
            those of the flags. Where only the recording stopped (another run, `load_state_dict`)
            and the window goes on with another episode, ``truncations`` says so.

        Raises:
            NotEnoughData: No env, or with other borders no episode, has so many rows.
            ValueError: An argument makes no sense.
        """
        strange = [name for name in flags if name not in FLAGS]
        if strange:
            raise ValueError(f"flags: expected some of {', '.join(FLAGS)}, got {strange[0]!r}")
        if self._rows is None:
            raise NotEnoughData(
                f"sequence_length={sequence_length}: expected {sequence_length} rows of one env, "
                f"got none yet; add some"
            )
        if self._waiting > self._patience:
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
        """Make every row drawable; in a folder they are stored for good."""
        if self._waiting:
            self._store(everything=True)

    def cut(self) -> None:
        """Stop recording all open episodes: the next row of each env begins another one."""
        self.flush()  # or else a row that is all there is of its episode would be left out
        self._is_open[:] = False

    def reset(self) -> None:
        """Forget all rows, and what they were; the generator goes on.

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
        """What `load_state_dict` needs, in another process too; arrays and JSON-able values.

        In RAM that is a copy of all stored rows: as many bytes as they have. In a folder the rows
        are stored for good, and the state is small.
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
        return state | ({"rows": snapshot(self._replay)} if self._replay.is_bound else {})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on as the buffer of `state_dict` would have; each env's next row begins an episode.

        In RAM its rows replace those that are here. In a folder what was stored since stays.

        Raises:
            ValueError: The state is none of this class, or one of other envs or another folder;
                nothing has changed.
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
            raise ValueError(
                "state_dict: expected that of a buffer with rows where they are here, in RAM or in "
                "a folder, got the other; make the buffer as it was"
            )
        if self._replay.path is None:
            self._load_rows(state_dict["rows"], state_dict["columns"])
        else:
            self.flush()
            self._replay.load_state_dict(state_dict["store"])
            self.cut()
        self._rng.bit_generator.state = state_dict["generator"]

    def close(self) -> None:
        """Store what there is and release files and locks; closing twice is harmless."""
        self.flush()
        self._replay.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _patience(self) -> int:
        """Rows that may wait: a learner that draws at every step would store one-row chunks."""
        rows = len(self._replay)
        return max(rows // 1000, min(rows // 100, _FEW_ROWS * self._num_envs))

    def _check_final(self, final_obs: object) -> None:
        if final_obs is not None and not self._is_same_step:
            raise ValueError(
                "final_obs: expected none but under autoreset_mode=SAME_STEP, got some; leave them "
                "out, or name the mode of the envs"
            )

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
        self, rows: ArrivalRows, final_obs: Sequence[Any] | np.ndarray | None, ended: np.ndarray
    ) -> np.ndarray:
        """Observations [N, ...] of which those of envs whose episodes ended mean something."""
        column = rows.columns["obs"]
        last = np.zeros((self._num_envs, *column.shape), column.dtype)
        for env in ended.tolist():
            shown = None if final_obs is None else final_obs[env]
            if shown is None:
                raise ValueError(
                    f"final_obs: expected that of env {env}, whose episode has ended, under "
                    f'autoreset_mode=SAME_STEP, got none; give infos["final_obs"]'
                )
            last[env] = as_column("final_obs", shown, column.dtype, column.shape)
        return last

    def _observe(
        self,
        episodes: EpisodeBuffer,
        values: Mapping[str, np.ndarray],
        envs: np.ndarray | None,
        flags: Sequence[np.ndarray] | None,
    ) -> None:
        """Begin a row of each of some envs.

        Args:
            episodes: Takes them.
            values: Arrays [N, ...] by field.
            envs: Which envs; None for all.
            flags: Terminated and truncated, each [N] bool; None where no such row is.
        """
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

    def _settle(self, rows: ArrivalRows) -> EpisodeBuffer:
        """Bind the replay, the first time."""
        if self._episodes is None:
            spec = rows.spec(self._replay.path, self._codec)
            self._replay.bind(spec, _facts(rows))
            following = self._replay.storage.table.next_episode
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
        """Go over to another replay, of rows that are not known yet."""
        self._replay = replay
        self._rows = self._episodes = None
        self._is_open[:] = False
        self._waiting = 0

    def _continue(self) -> None:
        """Go on with what the folder holds."""
        recipe = cast("dict[str, Any]", (*self._replay.sessions, {})[0].get("recipe", {}))
        if recipe.get("made_by") != _MADE_BY:
            raise SpecMismatch(
                f"{self._replay.path} holds other rows: expected those of this class, got others; "
                f"open another folder, or read this one with SequenceReplayBuffer"
            )
        self._settle(ArrivalRows.from_json(recipe["columns"]))

    def _load_rows(self, rows: Mapping[str, Any] | None, columns: object) -> None:
        """Replace what is here by a snapshot."""
        replay = new_replay(self._num_envs * self._capacity)
        known = None
        if rows is not None:
            known = ArrivalRows.from_json(columns)
            replay.bind(known.spec(None, self._codec), _facts(known))
            replay.add(chunks_of(rows))
        self._begin_with(replay)
        if known is not None:
            self._settle(known)

    def _check_enough(self, request: Sequences) -> None:
        """Say what is missing where no window can be drawn."""
        if request.borders != "cross" or self._replay.count(request):
            return  # the replay's own words are right
        records = self._replay.storage.table.records
        runs = records["stream_row"] + records["rows"] - records["stream_head"]
        longest, wanted = int(runs.max(initial=0)), request.length
        raise NotEnoughData(
            f"sequence_length={wanted}: expected {wanted} rows of one env that follow one another, "
            f"got {longest} at most, {len(np.unique(records['stream']))} envs having rows; add "
            f"more, or ask for a shorter length"
        )


def _without_rewards(values: Mapping[str, np.ndarray], some: np.ndarray) -> dict[str, np.ndarray]:
    """The rewards of rows [N], with zeros for some envs."""
    names = [name for name in ("reward", "info/rewards") if name in values]
    return {name: np.where(some, np.zeros_like(values[name]), values[name]) for name in names}


def _facts(rows: ArrivalRows) -> dict[str, object]:
    """What a store notes about the rows."""
    return {"recipe": {"made_by": _MADE_BY, "columns": rows.to_json()}}
