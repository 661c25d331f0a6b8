"""`play`: the rows of stored episodes, in pieces, from any number of lanes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Chunk, SequenceReplayBuffer
from stepwell.buffers.provenance.chains import Chain, chains_of
from stepwell.collectors.simulation import player as player_module
from stepwell.collectors.simulation.player import PlayedRows, Player
from stepwell.collectors.simulation.remake import maker_of
from support.replayed import changed_chunk, check_all_equal, proofs, recorded, rewritten


class Nested(gym.Env[Any, Any]):
    """Nested observations and actions, random lengths, and info that is not always there."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 2), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(9), spaces.Box(-1, 1, (), np.float64))),
        }
    )
    action_space = spaces.Tuple(
        (spaces.MultiBinary(3), spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32)}))
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 12))
        return self._observation(0.0), {"left": self.left}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        bits, boxes = action
        self.left -= 1
        value = float(boxes["x"].sum() + bits.sum())
        info = {"left": self.left} if self.left % 2 else {}
        over = self.left == 0
        return self._observation(value), value, over and value > 0, over and value <= 0, info

    def _observation(self, value: float) -> Any:
        image = self.np_random.integers(0, 256, (3, 2), np.uint8)
        return {"image": image, "pair": (np.int64(self.left % 9), np.float64(value / 9))}


def nested(steps: int = 200, **settings: Any) -> SequenceReplayBuffer:
    return recorded(SyncVectorEnv([Nested] * 3), steps, info={"left": -7}, **settings)


def played(
    replay: SequenceReplayBuffer, chains: Iterable[Chain] | None = None, **settings: Any
) -> list[PlayedRows]:
    maker = maker_of(replay.sessions[0], replay.spec, env=Nested)
    found = chains_of(replay.storage)[0] if chains is None else chains
    with Player(found, maker, **settings) as rows:
        return list(rows)


@pytest.mark.proof
@given(piece=st.integers(1, 9), seed=st.integers(0, 5), reseed_steps=st.sampled_from([None, 20]))
def test_pieces_of_any_size_give_the_same_rows(
    piece: int, seed: int, reseed_steps: int | None
) -> None:
    replay = nested(60 + seed, reseed_steps=reseed_steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(player_module, "PIECE_ROWS", piece)
        assert max(rows.rows for rows in played(replay, lanes=1)) <= piece
        check_all_equal(replay, env=Nested)


@pytest.mark.parametrize("lanes", [1, 2])
def test_large_rows_are_played_in_small_pieces(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = nested(reseed_steps=30)
    monkeypatch.setattr(player_module, "_PIECE_BYTES", 2 * replay.spec.row_bytes)
    pieces = played(replay, lanes=lanes)
    assert max(piece.rows for piece in pieces) == 2
    assert sum(piece.is_last for piece in pieces) == replay.episodes
    check_all_equal(replay, env=Nested, lanes=lanes)


def test_the_longest_chains_come_first() -> None:
    replay = nested(reseed_steps=30)
    order: list[int] = []
    for rows in played(replay, lanes=1):
        if not order or order[-1] != rows.chain.steps:
            order.append(rows.chain.steps)
    assert order == sorted(order, reverse=True)


def test_a_chain_that_is_skipped_ends_at_once() -> None:
    replay = nested(reseed_steps=None)
    chains = chains_of(replay.storage)[0]
    maker = maker_of(replay.sessions[0], replay.spec, env=Nested)
    seen = 0
    with Player(chains, maker, 1) as rows:
        for piece in rows:
            if piece.chain is chains[0]:
                rows.skip(chains[0])
                seen += 1
    assert seen == 1


class NestedStacks(gym.ObservationWrapper[Any, Any, Any]):
    """A stack of frames in a dict."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"image": env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"image": observation}


def test_newest_frames_are_taken_of_stacks_in_a_dict_too() -> None:
    def make() -> gym.Env[Any, Any]:
        return NestedStacks(gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 3))

    replay = recorded(SyncVectorEnv([make] * 2), 100, frame_stack=3)
    assert replay.spec["observation/image"].stack == 3
    check_all_equal(replay, env=make)


@pytest.mark.proof
def test_nested_rows_are_proved_and_lies_in_any_part_are_found() -> None:
    replay = nested()
    check_all_equal(replay, env=Nested)
    for field in replay.spec.fields:
        if field.kind == "action":
            continue

        def change(chunk: Chunk, name: str = field.name) -> Chunk:
            rows = chunk.fields[name].copy()
            rows[1] += 1
            fields = {**chunk.fields, name: rows}
            return changed_chunk(chunk, fields=fields) if chunk.episode == 2 else chunk

        found = proofs(rewritten(replay, change), env=Nested)
        assert found[2].first_difference == (field.name, 1)


def test_no_chains_are_played_without_an_env() -> None:
    replay = nested()

    def never() -> Any:
        raise AssertionError

    maker = maker_of(replay.sessions[0], replay.spec, env=Nested)
    object.__setattr__(maker, "make_lane", never)
    assert list(Player([], maker)) == []


@pytest.mark.skipif("'jax' in sys.modules", reason="with JAX there is one process, this one")
def test_a_dead_process_ends_the_play_with_an_error() -> None:
    class Dies(Nested):
        def step(self, action: Any) -> Any:
            import os

            os._exit(3)

    replay = nested()
    maker = maker_of(replay.sessions[0], replay.spec, env=Dies)
    with (
        Player(chains_of(replay.storage)[0], maker, 2) as rows,
        pytest.raises(RuntimeError, match="died"),
    ):
        list(rows)


@pytest.mark.proof
def test_ctrl_c_stops_the_processes() -> None:
    replay = recorded(sw.make_vec("CartPole-v1", 2, num_workers=0), 800)

    def stop(steps: int, _: int) -> None:
        if steps > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        proofs(replay, lanes=2, progress=stop)
