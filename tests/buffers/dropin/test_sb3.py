"""Stepwell's buffers for Stable-Baselines3, beside SB3's own on the same calls."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData, SequenceReplayBuffer, SpecMismatch, StoreLocked
from stepwell.buffers.rows.episode_buffer import EpisodeBuffer
from support.crash.other_processes import in_fork

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")

import torch
from stable_baselines3 import A2C, DQN, TD3
from stable_baselines3.common import buffers as theirs
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from stepwell.buffers.dropin import sb3 as ours

SEEN: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9, 9, (3,)),
    "double": spaces.Box(-9, 9, (2, 2), np.float64),
    "number": spaces.Discrete(5),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (2, 8, 8), np.uint8),
    "large": spaces.Box(0, 255, (1, 40, 40), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "n": spaces.Discrete(3)}),
}
ACTS: dict[str, spaces.Space[Any]] = {
    "number": spaces.Discrete(3),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(2),
    "box": spaces.Box(-1, 1, (2,)),
    "wide": spaces.Box(-2, 2, (1, 3), np.float64),
}
Step = tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]


def drawn(space: Any, n: int, rng: np.random.Generator) -> Any:
    """Observations or actions of n envs."""
    if isinstance(space, spaces.Dict):
        return {key: drawn(part, n, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, n)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (n, len(space.nvec)))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (n, *space.shape), np.int8)
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (n, *space.shape), np.uint8)
    return rng.random((n, *space.shape)).astype(space.dtype)


def mixed(first: Any, second: Any, is_second: np.ndarray) -> Any:
    if isinstance(first, dict):
        return {key: mixed(first[key], second[key], is_second) for key in first}
    found = first.copy()
    found[is_second] = second[is_second]
    return found


def played(
    seen: spaces.Space[Any], acts: spaces.Space[Any], n: int, steps: int, seed: int
) -> list[Step]:
    """Steps of envs that end, run out of time, and are sometimes reset without either."""
    rng = np.random.default_rng(seed)
    now, found = drawn(seen, n, rng), []
    for _ in range(steps):
        then = drawn(seen, n, rng)
        done, is_late = rng.random(n) < 0.2, rng.random(n) < 0.5
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in done & is_late]
        gain = rng.normal(size=n).astype(np.float32)
        found.append((now, then, drawn(acts, n, rng), gain, done, infos))
        now = mixed(then, drawn(seen, n, rng), done | (rng.random(n) < 0.05))
    return found


def both(
    seen: Any, acts: Any, size: int, n: int, kind: str = "ReplayBuffer", /, **options: Any
) -> tuple[Any, Any]:
    """SB3's buffer, and ours."""
    name = "Dict" * isinstance(seen, spaces.Dict) + "NStep" * ("n_steps" in options) + kind
    return tuple(
        getattr(module, name)(size, seen, acts, device="cpu", n_envs=n, **options)
        for module in (theirs, ours)
    )


def tensors(batch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in batch._asdict().items():
        if isinstance(value, dict):
            found |= {f"{name}/{key}": part for key, part in value.items()}
        elif value is not None:
            found[name] = value
    return found


def assert_equal(batch: Any, expected: Any) -> None:
    got, wanted = tensors(batch), tensors(expected)
    assert type(batch) is type(expected)
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


def add(step: Step, *buffers: Any) -> None:
    for buffer in buffers:
        buffer.add(*copy.deepcopy(step))


def seed_global(seed: int) -> None:
    """SB3 draws from NumPy's global generator."""
    np.random.seed(seed)  # noqa: NPY002


def sampled(buffer: Any, count: int, seed: int = 0, env: Any = None) -> Any:
    seed_global(seed)
    return buffer.sample(count, env=env)


def assert_equal_at(places: np.ndarray, our: Any, their: Any, seed: int = 0) -> None:
    """Both draw the same from these rows; the envs are drawn, too."""
    seed_global(seed)
    expected = their._get_samples(places)
    seed_global(seed)
    assert_equal(our._get_samples(places), expected)


@pytest.mark.parametrize("seen", SEEN)
@settings(max_examples=20)
@given(
    acts=st.sampled_from(list(ACTS)),
    n=st.integers(1, 3),
    size=st.integers(1, 25),
    steps=st.integers(1, 40),
    handles=st.booleans(),
    optimized=st.booleans(),
    n_steps=st.sampled_from([1, 1, 2, 5]),
    seed=st.integers(0, 99),
)
def test_it_gives_what_sb3_gives(
    seen: str,
    acts: str,
    n: int,
    size: int,
    steps: int,
    handles: bool,
    optimized: bool,
    n_steps: int,
    seed: int,
) -> None:
    options: dict[str, Any] = {"handle_timeout_termination": handles}
    optimized = optimized and seen != "dict"
    if n_steps > 1 and seen != "dict" and not optimized:
        options |= {"n_steps": n_steps, "gamma": 0.9}
    their, our = both(SEEN[seen], ACTS[acts], size, n, **options)
    if optimized:  # SB3's gives a reset's observation for an episode's last one: ours the true one
        our = ours.ReplayBuffer(size, SEEN[seen], ACTS[acts], "cpu", n, True, handles)
    for number, step in enumerate(played(SEEN[seen], ACTS[acts], n, steps, seed)):
        add(step, their, our)
        assert (our.pos, our.full, our.size()) == (their.pos, their.full, their.size())
        if number % 7 == 0 and not optimized:
            assert_equal(sampled(our, 16, number), sampled(their, 16, number))
    for seed in range(3):
        assert_equal_at(np.arange(their.size()), our, their, seed)
    assert our.buffer_size == their.buffer_size


def model_rows(seen: Any, acts: Any, n: int, steps: list[Step]) -> Any:
    """The rows that `EpisodeBuffer.add` makes of the steps, one by one."""
    our = both(seen, acts, 10, n)[1]
    replay = SequenceReplayBuffer(seed=0)
    replay.bind(our._spec, {})
    rows = EpisodeBuffer(our._spec, n, store=replay.add)
    for now, then, action, gain, done, infos in steps:
        late = np.array([info["TimeLimit.truncated"] for info in infos])
        chosen = action.astype(np.float32).astype(action.dtype)  # as SB3 keeps them
        rows.add(now, chosen, gain, then, done & ~late, done & late)
    replay.add(rows.take(everything=True))
    return by_stream(replay)


def by_stream(replay: SequenceReplayBuffer) -> Any:
    return sorted(
        (
            *(each.stream, each.metadata["stream_episode"], int(each.end)),
            *((name, rows.dtype.str, rows.tobytes()) for name, rows in each.fields.items()),
        )
        for each in replay.iter_episodes()
    )


@pytest.mark.parametrize("seen", SEEN)
@given(
    acts=st.sampled_from(list(ACTS)),
    n=st.integers(1, 3),
    size=st.integers(1, 20) | st.just(100),
    looks=st.lists(st.integers(0, 60), max_size=4),
    block=st.integers(1, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
def test_a_full_ring_keeps_its_steps_for_a_look(
    seen: str, acts: str, n: int, size: int, looks: list[int], block: int, seed: int
) -> None:
    """However seldom somebody looks, the replay's newest rows are those of the ring."""
    steps = played(SEEN[seen], ACTS[acts], n, 60, seed)
    our = both(SEEN[seen], ACTS[acts], size * n, n)[1]
    our._block = min(block, our.buffer_size)
    for number, step in enumerate(steps):
        our.add(*copy.deepcopy(step))
        if number in looks:
            our.flush()
    our.flush()
    known = {}
    for stream, episode, end, *fields in model_rows(SEEN[seen], ACTS[acts], n, steps):
        known[stream, episode] = end, {name: (kind, data) for name, kind, data in fields}
    assert size < 60 or len(known) == our.replay.episodes
    kept = np.zeros(n, int)
    for each in our.replay.iter_episodes():
        end, data = known[each.stream, each.metadata["stream_episode"]]
        start, stop = each.first_row, each.first_row + len(each.reward)
        whole = np.empty(0)
        for name, rows in each.fields.items():
            kind, values = data[name]
            assert rows.dtype.str == kind
            whole = np.frombuffer(values, kind).reshape(-1, *rows.shape[1:])
            # The first reward of a part is that of the row before, which may be gone.
            skip = int(name == "reward" and start > 0)
            there = whole[start + skip : stop].copy()
            if name == "action" and stop < len(whole):
                there[-1] = rows[-1]  # of a row before steps that were left out
            assert rows[skip:].tobytes() == there.tobytes(), name
        if stop == len(whole):
            assert int(each.end) == end
        kept[each.stream] += each.steps
    assert (kept >= min(60, our.buffer_size)).all()


@pytest.mark.parametrize("seen", SEEN)
@settings(max_examples=15)
@given(
    acts=st.sampled_from(list(ACTS)),
    n=st.integers(1, 3),
    size=st.integers(1, 12),
    gae_lambda=st.sampled_from([0.0, 0.95, 1]),
    batch_size=st.sampled_from([None, 1, 4]),
    seed=st.integers(0, 99),
)
def test_a_rollout_gives_what_sb3_gives(
    seen: str, acts: str, n: int, size: int, gae_lambda: float, batch_size: int | None, seed: int
) -> None:
    options = {"gae_lambda": gae_lambda, "gamma": 0.97}
    their, our = both(SEEN[seen], ACTS[acts], size, n, "RolloutBuffer", **options)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        for now, _, action, gain, done, _ in played(SEEN[seen], ACTS[acts], n, size, seed):
            value, log_prob = (torch.from_numpy(rng.random((n, 1), np.float32)) for _ in "ab")
            for buffer in their, our:
                buffer.add(copy.deepcopy(now), action, gain, done, value, log_prob[:, 0])
        last, over = torch.from_numpy(rng.random((n, 1), np.float32)), rng.random(n) < 0.5
        for buffer in their, our:
            buffer.compute_returns_and_advantage(last, over)
        assert our.advantages.tobytes() == their.advantages.tobytes()
        assert our.returns.tobytes() == their.returns.tobytes()
        batches = []
        for buffer in their, our:
            seed_global(seed)
            batches.append(list(buffer.get(batch_size)))
        for got, wanted in zip(batches[1], batches[0], strict=True):
            assert_equal(got, wanted)
        for buffer in their, our:
            buffer.reset()


def weights(model: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.policy.parameters()])


@pytest.mark.parametrize(
    ("algorithm", "env", "kind", "options", "given"),
    [
        (DQN, "CartPole-v1", "ReplayBuffer", {"train_freq": 4}, {}),
        (
            *(DQN, "CartPole-v1", "ReplayBuffer", {"optimize_memory_usage": True}),
            {"handle_timeout_termination": False},
        ),
        (TD3, "Pendulum-v1", "NStepReplayBuffer", {}, {"n_steps": 3, "gamma": 0.99}),
    ],
)
def test_a_model_learns_the_same_as_with_its_own_buffer(
    algorithm: Any, env: str, kind: str, options: dict[str, Any], given: dict[str, Any]
) -> None:
    found = []
    for module in theirs, ours:
        model = algorithm(
            "MlpPolicy",
            DummyVecEnv([lambda: gym.make(env, max_episode_steps=30)] * 2),
            **options,
            replay_buffer_class=getattr(module, kind),
            replay_buffer_kwargs=dict(given),
            buffer_size=150,
            learning_starts=40,
            batch_size=16,
            policy_kwargs={"net_arch": [16]},
            seed=1,
        )
        model.learn(240)
        found.append(weights(model))
        if module is ours:
            model.replay_buffer.flush()
            # Of an episode whose first rows are gone, its first stored row counts as a step, too.
            assert 150 <= len(model.replay_buffer.replay) <= 152
    assert torch.equal(*found)


def test_normalized_batches_are_those_of_sb3() -> None:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    env.reset()
    for _ in range(20):
        env.step(np.zeros((1, 1), np.float32))
    for options in {}, {"n_steps": 3}:
        their, our = both(env.observation_space, env.action_space, 100, 1, **options)
        for step in played(env.observation_space, env.action_space, 1, 30, 0):
            add(step, their, our)
        assert_equal(sampled(our, 8, env=env), sampled(their, 8, env=env))


def test_a_model_of_rollouts_learns_the_same() -> None:
    found = []
    replay = SequenceReplayBuffer(seed=0)
    for kwargs in (
        {},
        {"rollout_buffer_class": ours.RolloutBuffer, "rollout_buffer_kwargs": {"replay": replay}},
    ):
        model: Any = A2C(
            "MlpPolicy", "CartPole-v1", seed=1, policy_kwargs={"net_arch": [8]}, **kwargs
        )
        model.learn(100)
        found.append(weights(model))
    assert torch.equal(*found)
    model.rollout_buffer.flush()
    assert len(replay) == 100


@pytest.mark.parametrize("seen", ["dict", "large"])
@pytest.mark.parametrize("where", ["ram", "folder"])
def test_it_is_saved_and_loaded(where: str, seen: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if where == "ram" else {"path": tmp_path / "store"}
    steps = played(SEEN[seen], ACTS["box"], 2, 90, 0)
    their, _ = both(SEEN[seen], ACTS["box"], 50, 2)
    made = ours.DictReplayBuffer if seen == "dict" else ours.ReplayBuffer
    our = made(50, SEEN[seen], ACTS["box"], "cpu", 2, **options)
    for number, step in enumerate(steps[:60]):
        add(step, their, our)
        if number == 33:
            our.flush()
    saved = pickle.dumps(our)
    our.close()
    loaded = pickle.loads(saved)
    assert_equal(sampled(loaded, 40), sampled(their, 40))
    for step in steps[60:]:
        add(step, their, loaded)
    assert_equal(sampled(loaded, 40), sampled(their, 40))
    loaded.flush()
    if where == "folder":  # there episodes end by a cut
        assert loaded.replay.path == tmp_path / "store"
        assert loaded.replay.steps == 2 * 90
        loaded.close()
        return
    ends = {(e.stream, e.metadata["stream_episode"]): e for e in loaded.replay.iter_episodes()}
    for stream, episode, end, *fields in model_rows(SEEN[seen], ACTS["box"], 2, steps)[-6:]:
        if (each := ends.get((stream, episode))) is not None:
            assert int(each.end) == end
            for name, kind, data in fields:
                whole = np.frombuffer(data, kind).reshape(-1, *each.fields[name].shape[1:])
                if name != "reward" or not each.first_row:
                    assert (each.fields[name] == whole[each.first_row :]).all()
    loaded.close()


def test_a_saved_buffer_draws_from_no_other_store(tmp_path: Path) -> None:
    our = ours.ReplayBuffer(9, SEEN["large"], ACTS["number"], "cpu", path=tmp_path / "a")
    for step in played(SEEN["large"], ACTS["number"], 1, 5, 0):
        our.add(*step)
    saved = pickle.dumps(our)
    our.close()
    (tmp_path / "a").rename(tmp_path / "b")
    loaded = pickle.loads(saved)
    for buffer in loaded, loaded, pickle.loads(pickle.dumps(loaded)):
        with pytest.raises(ValueError, match="expected the store"):
            buffer.sample(3)
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").rename(tmp_path / "a")
    assert loaded.sample(3).observations.shape == (3, 1, 40, 40)
    loaded.close()


def test_observations_are_kept_once_and_small_in_a_replay_with_room() -> None:
    """Those of 100 steps that wait, and for each other step what has changed."""
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    our = ours.ReplayBuffer(4_000, space, ACTS["number"], "cpu", 4, frame_stack=4)
    frames = np.zeros((1_001 + 3, 4, 84, 84), np.uint8)
    frames[3:, :, 40] = 9
    for row in range(3, len(frames)):
        frames[row, :, row % 84, row // 84] = row % 250
    for t in range(1_000):
        now, then = (frames[t + k : t + k + 4].swapaxes(0, 1) for k in (0, 1))
        our.add(now, then, np.zeros(4), np.zeros(4), np.zeros(4), [{}] * 4)
    assert our.replay.storage.index.records["nbytes"].sum() < 4_000 * 84 * 84 / 20
    batch = our._get_samples(np.arange(1_000))
    which = batch.observations[:, -1, 40].any(1)
    assert which.all()
    assert (batch.next_observations[:, :3] == batch.observations[:, 1:]).all()
    assert torch.equal(batch.observations[500, -1], torch.from_numpy(frames[503, 0]))
    with pytest.raises(ValueError, match="capacity of at least 5184 steps"):
        ours.ReplayBuffer(
            *(4_000, space, ACTS["number"], "cpu", 4),
            replay=SequenceReplayBuffer(capacity=5_183),
            frame_stack=4,
        )


def test_steps_that_could_not_be_stored_are_stored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = SequenceReplayBuffer()
    their, _ = both(SEEN["large"], ACTS["number"], 6, 1)
    our = ours.ReplayBuffer(6, SEEN["large"], ACTS["number"], "cpu", replay=replay)
    steps = played(SEEN["large"], ACTS["number"], 1, 20, 0)
    for step in steps[:5]:
        add(step, their, our)

    def full(chunks: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(replay, "add", full)
        their.add(*copy.deepcopy(steps[5]))
        for step in steps[5:7]:  # the first of them is in the ring, the second one is refused
            with pytest.raises(OSError, match="no space"):
                our.add(*step)
    assert our.size() == 6
    assert_equal(sampled(our, 16), sampled(their, 16))
    for step in steps[6:]:
        add(step, their, our)
    assert_equal(sampled(our, 16), sampled(their, 16))
    our.flush()
    assert replay.steps == 20


def stacked(
    steps: int, padding: Literal["zero", "repeat"], *, dark: bool, n: int = 2, seed: int = 0
) -> list[Step]:
    """Steps of envs that show stacks of 3 frames of 40 x 40; most of dark ones are zero."""
    rng = np.random.default_rng(seed)

    def frames(*shape: int) -> np.ndarray:
        found = rng.integers(0, 256, (*shape, 40, 40), np.uint8)
        found[..., :39, :] *= not dark
        return found

    def reset(frame: np.ndarray) -> np.ndarray:
        return np.stack([frame if padding == "repeat" else 0 * frame] * 2 + [frame])

    now, found = np.stack([reset(frames()) for _ in range(n)]), []
    for _ in range(steps):
        then = np.concatenate([now[:, 1:], frames(n, 1)], axis=1)
        done = rng.random(n) < 0.15
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in done & (rng.random(n) < 0.5)]
        action = rng.integers(0, 3, n)
        found.append((now, then, action, rng.normal(size=n).astype(np.float32), done, infos))
        now = then.copy()
        for env in np.flatnonzero(done | (rng.random(n) < 0.1)):
            shows_again = not done[env] and rng.random() < 0.5  # the newest frame, after a reset
            now[env] = reset(now[env, 2].copy() if shows_again else frames())
    return found


@pytest.mark.parametrize(
    ("where", "n_steps", "dark"),
    [("ram", 1, False), ("ram", 3, True), ("folder", 1, True), ("folder", 3, False)],
)
@pytest.mark.parametrize("padding", ["zero", "repeat"])
def test_stacked_frames_are_stored_once(
    padding: Literal["zero", "repeat"], where: str, n_steps: int, dark: bool, tmp_path: Path
) -> None:
    space, acts = spaces.Box(0, 255, (3, 40, 40), np.uint8), ACTS["number"]
    more: dict[str, Any] = {"path": tmp_path} if where == "folder" else {}
    their, _ = both(space, acts, 80, 2, **({"n_steps": 3} if n_steps > 1 else {}))
    our = ours.ReplayBuffer(
        *(80, space, acts, "cpu", 2), frame_stack=3, stack_padding=padding, n_steps=n_steps, **more
    )
    for number, step in enumerate(stacked(100, padding, dark=dark)):
        add(step, their, our)
        if number % 9 == 0:
            assert_equal(sampled(our, 24, number), sampled(their, 24, number))
        assert_equal_at(np.arange(their.size()), our, their)
    our.flush()
    assert our.replay.spec["observation"].shape == (40, 40)
    our.close()


@pytest.mark.parametrize(
    ("first", "found"), [(1, range(1, 2)), (5, range(5, 6)), (20, range(20, 38))]
)
def test_a_wrong_older_frame_of_a_stack_is_found(first: int, found: range) -> None:
    """Of every stack in the first steps, and of those of one step of 17 later."""
    frames = np.random.default_rng(0).integers(0, 256, (64, 2, 40, 40), np.uint8)
    frames[:2] = 0
    stacks = [np.stack(list(frames[t : t + 3]), axis=1) for t in range(60)]
    space = spaces.Box(0, 255, (3, 40, 40), np.uint8)
    our = ours.ReplayBuffer(80, space, ACTS["number"], "cpu", 2, frame_stack=3)
    refused = None
    for t in range(59):
        now = stacks[t].copy()
        now[1, 0, 7, 7] ^= t >= first
        try:
            our.add(now, stacks[t + 1], np.zeros(2), np.zeros(2), np.zeros(2), [{}, {}])
        except SpecMismatch:
            refused = t
            break
    assert refused in found
    assert our.size() == refused


STACK = spaces.Box(0, 255, (3, 40, 40), np.uint8)


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "error", "match"),
    [
        ("ReplayBuffer", (0, SEEN["vector"]), {}, ValueError, "buffer_size"),
        ("ReplayBuffer", (10, SEEN["dict"]), {}, ValueError, "Dict"),
        ("DictReplayBuffer", (10, SEEN["vector"]), {}, ValueError, "Dict"),
        (
            *("ReplayBuffer", (10, SEEN["vector"])),
            *({"path": "a", "replay": SequenceReplayBuffer()}, ValueError, "path"),
        ),
        ("ReplayBuffer", (10, SEEN["vector"]), {"frame_stack": 4}, ValueError, "frame_stack"),
        ("ReplayBuffer", (10, spaces.Text(3)), {}, NotImplementedError, "Text"),
        *(
            (kind, (9, SEEN["vector"]), {"replay": "a"}, TypeError, r"replay: .*got str")
            for kind in ("ReplayBuffer", "RolloutBuffer")
        ),
        *(
            (
                "ReplayBuffer",
                (9, SEEN["vector"]),
                {"path": wrong},
                (TypeError, ValueError),
                str(wrong),
            )
            for wrong in (5, "s3://a/b")
        ),
    ],
)
def test_a_wrong_argument_is_refused(
    kind: str, arguments: Any, options: Any, error: Any, match: str
) -> None:
    with pytest.raises(error, match=match):
        getattr(ours, kind)(*arguments, ACTS["number"], "cpu", **options)


def test_a_wrong_step_or_draw_is_refused() -> None:
    our: Any = ours.ReplayBuffer(10, SEEN["vector"], ACTS["number"], "cpu")
    with pytest.raises(NotEnoughData, match="empty"):
        our.sample(3)
    for size in (0, -1, 2.5, "2"):
        with pytest.raises(ValueError, match=rf"batch_size: .* >= 1, got {size!r}"):
            our.sample(size)
    stacks = ours.ReplayBuffer(90, STACK, ACTS["number"], frame_stack=3)
    wrong = np.arange(4800, dtype=np.uint16).astype(np.uint8).reshape(1, 3, 40, 40)
    with pytest.raises(SpecMismatch, match="3 frames"):  # noqa: PT012
        stacks.add(wrong, wrong, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        stacks.flush()
    rollout: Any = ours.RolloutBuffer(2, SEEN["vector"], ACTS["number"], "cpu")
    one = torch.zeros(1)
    for _ in range(2):
        with pytest.raises(NotEnoughData, match="full"):
            rollout.get(2)
        rollout.add(np.zeros((1, 3)), np.zeros((1, 1)), np.zeros(1), np.zeros(1), one, one)
    with pytest.raises(ValueError, match=r"batch_size: .*>= 1.*-1"):
        rollout.get(-1)
    with pytest.raises(ValueError, match=r"add: .*2 steps.*reset"):
        rollout.add(np.zeros((1, 3)), np.zeros((1, 1)), np.zeros(1), np.zeros(1), one, one)


@pytest.mark.parametrize("kind", [ours.ReplayBuffer, ours.NStepReplayBuffer])
def test_a_folder_in_use_is_opened_by_a_step_not_by_a_model_that_is_loaded(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"path": "runs/a"}
    model = DQN(
        *("MlpPolicy", "CartPole-v1"),
        buffer_size=99,
        learning_starts=90,
        replay_buffer_class=kind,
        replay_buffer_kwargs=options,
        policy_kwargs={"net_arch": [8]},
    )
    model.learn(8)  # whole rounds of four steps
    model.save("model")
    model.save_replay_buffer("buffer")
    found = sorted(tmp_path.rglob("*"))
    loaded: Any = DQN.load("model", env=gym.make("CartPole-v1"))
    loaded.load_replay_buffer("buffer")
    assert loaded.replay_buffer.size() == 8
    assert sorted(tmp_path.rglob("*")) == found
    with pytest.raises(StoreLocked, match="runs/a"):
        loaded.learn(1)
    with pytest.raises(StoreLocked, match="runs/a"):
        len(loaded.replay_buffer.replay)
    assert loaded.replay_buffer.size() == 8
    held: Any = model.replay_buffer
    held.close()
    loaded.learn(4)
    loaded.replay_buffer.flush()
    assert loaded.replay_buffer.replay.steps == 12
    loaded.replay_buffer.close()


@pytest.mark.parametrize(
    ("seen", "acts", "size"),
    [
        *zip(SEEN, [*ACTS, *ACTS], [40] * len(SEEN), strict=False),
        *(("vector", "number", size) for size in (7, 90)),
        *(("large", "numbers", size) for size in (7, 90)),
    ],
)
def test_a_ring_begins_with_the_newest_steps_of_its_folder(
    seen: str, acts: str, size: int, tmp_path: Path
) -> None:
    steps = played(SEEN[seen], ACTS[acts], 2, 60, 1)
    their, _ = both(SEEN[seen], ACTS[acts], 2 * size, 2)
    kind = ours.DictReplayBuffer if seen == "dict" else ours.ReplayBuffer

    def opened(**options: Any) -> Any:
        options = {"device": "cpu", "n_envs": 2, "path": tmp_path / "a", **options}
        return kind(2 * size, SEEN[seen], ACTS[acts], **options)

    for start in (0, 20):  # it is killed twice
        buffer = opened()
        assert buffer.size() == min(start, size)
        for step in steps[start : start + 20]:
            buffer.add(*step)
        buffer.close()
    buffer = opened()
    for step in steps[40 - min(size, 40) : 40]:
        their.add(*step)
    for more in ([], steps[40:]):
        for step in more:
            their.add(*step)
            buffer.add(*step)
        assert (buffer.size(), buffer.pos) == (their.size(), their.pos)
        for seed in range(3):
            assert_equal(sampled(buffer, 30, seed), sampled(their, 30, seed))
    buffer.close()
    with opened(resume=False) as empty:
        assert empty.size() == 0


def test_returns_of_a_resumed_ring_stop_where_a_run_was_cut(tmp_path: Path) -> None:
    def opened() -> Any:
        space, acts = SEEN["vector"], ACTS["number"]
        return ours.NStepReplayBuffer(20, space, acts, "cpu", n_steps=3, gamma=1.0, path=tmp_path)

    for base in (0.0, 100.0):
        buffer = opened()
        for k in range(4):
            now = np.full((1, 3), base + k, np.float32)
            buffer.add(now, now + 1, np.zeros(1, int), [1.0], [False], [{}])
        buffer.close()
    buffer = opened()
    assert buffer.size() == 8
    batch = buffer._get_samples(np.arange(8))
    assert batch.rewards[:, 0].tolist() == [3, 3, 2, 1, 3, 3, 2, 1]
    assert batch.next_observations[:, 0].tolist() == [3, 4, 4, 4, 103, 104, 104, 104]
    assert not batch.dones.any()
    buffer.close()


def test_a_folder_of_other_rows_is_refused_by_the_first_step(tmp_path: Path) -> None:
    for space, steps in ((SEEN["vector"], 3), (spaces.Box(-1, 1, (2,)), 0)):
        our = ours.ReplayBuffer(9, space, ACTS["number"], "cpu", path=tmp_path / "a")
        for step in played(SEEN["vector"], ACTS["number"], 1, steps, 0):
            our.add(*step)
        if steps:
            our.close()
    now = np.zeros((1, 2), np.float32)
    for _ in range(2):  # it is not left locked
        with pytest.raises(SpecMismatch, match=r"observation.*\(3,\).*\(2,\)"):
            our.add(now, now, np.zeros(1, int), [0.0], [False], [{}])
    with pytest.raises(SpecMismatch):
        our.size()


_ZERO = np.zeros((1, 3), np.float32)
_FITTING: dict[str, dict[str, Any]] = {
    **{
        f"TimeLimit.truncated {type(flag).__name__} {np.shape(flag)}": {
            "infos": [{"TimeLimit.truncated": flag}]
        }
        for flag in (
            *(True, 1, 1.0, np.bool_(True), np.array(True), np.ones(1), np.ones((1, 1)), [True]),
            *(torch.tensor(True), torch.ones(1)),
        )
    },
    **{
        f"done {type(flag).__name__} {np.shape(flag)}": {"done": flag}
        for flag in (
            *(True, 1, [True], [1], [np.bool_(True)], [np.ones(1)], np.ones(1, int)),
            *(np.ones((1, 1)), torch.ones(1, dtype=torch.bool)),
        )
    },
    "reward list": {"reward": [1]},
    "reward number": {"reward": 1.5},
    "reward column": {"reward": np.ones((1, 1))},
    "reward tensor": {"reward": torch.ones(1)},
    "obs list": {"obs": _ZERO.tolist()},
    "obs tensor": {"obs": torch.ones(1, 3)},
    "obs float64": {"obs": np.full((1, 3), 0.1)},
    "action tensor": {"action": torch.ones(1, 1, dtype=torch.int64)},
    "action [N]": {"action": np.ones(1, np.int8)},
    "infos tuple": {"infos": ({"episode": 3},)},
    "infos array": {"infos": np.array([{}])},
}
_STEP: dict[str, Any] = {
    **{"obs": _ZERO, "next_obs": _ZERO, "action": np.zeros((1, 1), int)},
    **{"reward": np.zeros(1), "done": np.zeros(1), "infos": [{}]},
}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # SB3, tensors
@pytest.mark.parametrize("name", _FITTING)
def test_it_takes_what_sb3_takes(name: str) -> None:
    their, our = both(SEEN["vector"], ACTS["number"], 4, 1)
    for buffer in their, our:
        buffer.add(**_STEP | _FITTING[name])
    for part in ("observations", "actions", "rewards", "dones", "timeouts"):
        assert (getattr(our, part) == getattr(their, part)).all()
    assert name.partition(" ")[0] in ("obs", "infos") or any(
        getattr(our, part)[0].any() for part in ("actions", "rewards", "dones", "timeouts")
    )


def test_one_observation_is_not_that_of_all_envs() -> None:
    their, our = both(SEEN["vector"], ACTS["number"], 4, 2)
    two = {"next_obs": np.zeros((2, 3)), "action": np.zeros((2, 1), int), "infos": [{}, {}]}
    step: dict[str, Any] = {
        "reward": np.zeros(2),
        "done": np.zeros(2),
        "obs": np.arange(3.0),
        **two,
    }
    their.add(**step)
    assert (their.observations[0] == np.arange(3)).all()
    with pytest.raises(ValueError, match=r"obs.*\(2, 3\).*\(3,\)"):
        our.add(**step)


_UNFIT: dict[str, tuple[Any, str]] = {
    f"{name} {value!r:.40}": ({name: value}, match)
    for name, value, match in (
        *(("done", [value], rf"done\b.*{value!r}") for value in (2, 0.5, np.nan, None, "1")),
        ("done", np.zeros(2), r"done\b.*\(1,\).*\(2,\)"),
        ("infos", [{"TimeLimit.truncated": None}], r"TimeLimit\.truncated.*None"),
        ("infos", [{"TimeLimit.truncated": 2}], r"TimeLimit\.truncated.*2"),
        ("infos", [{"TimeLimit.truncated": np.ones(2)}], r"TimeLimit\.truncated.*\(2,\)"),
        ("infos", [], r"infos.*\b1\b.*\b0\b"),
        ("infos", None, "NoneType"),
        ("reward", [None], "reward.*None"),
        ("reward", ["1.5"], "reward.*'1.5'"),
        ("reward", [1e39], r"reward.*1e\+39"),
        ("reward", np.ma.masked_array([1.0], [True]), "reward.*masked"),
        ("reward", torch.ones(1, requires_grad=True), "reward.*Tensor.*grad"),
        ("reward", torch.ones(1, dtype=torch.bfloat16), "reward.*Tensor.*BFloat16"),
        ("reward", [2**24 + 1], "reward.*16777217"),
        ("obs", np.full((1, 3), 1e39), r"obs.*1e\+39"),
        ("next_obs", np.zeros((1, 4)), r"next_obs.*\(1, 3\).*\(1, 4\)"),
        ("next_obs", None, "next_obs.*None"),
        ("action", np.full((1, 1), 0.7), r"action.*int64.*0\.7"),
        ("action", np.zeros((1, 2), int), r"\(1, 2\)"),
    )
}


@pytest.mark.parametrize("name", _UNFIT)
@pytest.mark.parametrize("optimized", [False, True])
def test_what_does_not_fit_is_refused_before_a_step_is_overwritten(
    name: str, optimized: bool
) -> None:
    space = SEEN["vector"]
    our = ours.ReplayBuffer(2, space, ACTS["number"], "cpu", optimize_memory_usage=optimized)
    one: dict[str, Any] = {
        **_STEP,
        "obs": _ZERO + 1,
        "reward": [3.0],
        "action": np.ones((1, 1), int),
    }
    one["infos"] = [{"TimeLimit.truncated": True}]
    for _ in range(3):
        our.add(**one)

    def kept() -> list[Any]:
        places = np.arange(2)
        rows = our.actions, our.rewards, our.dones, our.timeouts, *our._observed(places, places)
        return [our.pos, *(np.array(part).tolist() for part in rows)]

    before = kept()
    wrong, match = _UNFIT[name]
    with pytest.raises(ValueError, match=match):
        our.add(**_STEP | wrong)
    assert kept() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kind", ["buffer", "rollout"])
def test_forked_processes_draw_batches_of_their_own(kind: str) -> None:
    their, our = both(SEEN["vector"], ACTS["number"], 50, 1)
    for step in played(SEEN["vector"], ACTS["number"], 1, 50, 0):
        add(step, their, our)
    if kind == "rollout":
        our = both(SEEN["vector"], ACTS["number"], 50, 1, "RolloutBuffer")[1]
        one = torch.zeros(1)
        for number in range(50):
            our.add(np.zeros((1, 3)), np.full((1, 1), number), [0.0], [False], one, one)

    def drawn() -> list[Any]:
        if kind == "rollout":
            return [next(our.get(16)).actions.tolist()]
        return [part.tolist() for part in our.sample(16)[:5]]

    np.random.seed(0)  # noqa: NPY002
    children = [in_fork(drawn) for _ in range(3)]
    mine = drawn()
    assert len({str(mine), *children}) == 4
    np.random.seed(0)  # noqa: NPY002
    if kind == "buffer":  # the forks have changed nothing here
        assert [part.tolist() for part in their.sample(16)[:5]] == mine


@pytest.mark.parametrize("first", ["buffer", "replay"])
def test_a_dropped_buffer_and_a_closed_replay_store_what_waits(first: str, tmp_path: Path) -> None:
    replay = SequenceReplayBuffer(tmp_path)
    buffer = ours.ReplayBuffer(99, SEEN["vector"], ACTS["number"], "cpu", replay=replay)
    for step in played(SEEN["vector"], ACTS["number"], 1, 7, 3):
        buffer.add(*step)
    if first == "buffer":
        del buffer
        assert len(replay) == 7
        replay.close()
    else:
        replay.close()
        replay.close()
        del buffer
    with SequenceReplayBuffer.open(tmp_path, read_only=True) as stored:
        assert len(stored) == 7
