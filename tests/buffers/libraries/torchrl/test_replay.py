"""as_torchrl_replay: a replay in the place of a TorchRL ReplayBuffer."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import NotEnoughData, StoreCorrupt, StoreNotFound
from stepwell.buffers.sampling.requests import Draw
from support.envs.logged_envs import Kind, Play, place_of, same_tree
from support.models.hindsight_model import a_goal_replay, compute_reward
from support.models.replay_histories import Kind as Rows
from support.models.replay_histories import whole_episodes

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("torchrl", reason="needs torchrl")

from stepwell.buffers.libraries.torchrl.batches import to_tensordict  # noqa: E402
from stepwell.buffers.libraries.torchrl.replay import as_torchrl_replay  # noqa: E402


def test_samples_are_transitions_of_the_replay() -> None:
    play = Play()
    buffer = as_torchrl_replay(play.replay(), batch_size=16)
    assert len(buffer) == len(play.steps)
    for batch in itertools.islice(buffer, 4):
        assert batch.batch_size == (16,)
        for row in batch:
            step = play.steps[place_of(row["observation"].numpy())]
            assert same_tree(row["next", "observation"].numpy(), step.following)
            assert row["next", "reward"].tolist() == [step.reward]
    drawn, info = buffer.sample(5, return_info=True)
    assert drawn["index"] is info["index"]
    assert drawn.batch_size == (5,)


@pytest.mark.parametrize("kind", ["vector", "stack-zero"])
def test_slices_lie_within_an_episode_and_mark_both_ends(kind: Kind) -> None:
    play = Play(kind)
    buffer = as_torchrl_replay(play.replay(), slice_len=3)
    rows = buffer.sample(60)
    assert rows.batch_size == (60,)
    assert rows["is_init"].reshape(20, 3).tolist() == [[True, False, False]] * 20
    assert rows["next", "done"].reshape(20, 3)[:, -1].all()
    assert rows["next", "truncated"].reshape(20, 3)[:, -1].all()
    assert not rows["next", "done"].reshape(20, 3)[:, :-1].any()
    for b, row in enumerate(rows):
        place = place_of(row["observation"].numpy())
        step = play.steps[place]
        assert same_tree(row["observation"].numpy(), step.observation)
        assert same_tree(row["next", "observation"].numpy(), step.following)
        assert row["next", "terminated"].tolist() == [step.terminated]
        if b % 3:
            env, episode, before = place_of(rows["observation"][b - 1].numpy())
            assert place == (env, episode, before + 1)


def test_goals_are_relabelled() -> None:
    relabel = sw.Hindsight(compute_reward, "episode", math.inf)
    with a_goal_replay(Rows()) as played:
        whole_episodes(played, [5, 8, 3])
        batch = as_torchrl_replay(played.replay, 50, relabel=relabel).sample()
        stored = played.replay.field_rows("reward", batch["index"].numpy() + 1)
    goal = batch["observation", "desired_goal"]
    assert (goal[:, 0] == batch["observation", "place"][:, 1]).all()
    assert torch.equal(goal, batch["next", "observation", "desired_goal"])
    assert batch["next", "reward"].shape == (50, 1)
    assert (batch["next", "reward"][:, 0].numpy() != stored.astype(np.float32)).all()


def test_the_priority_of_a_slice_is_its_largest_error() -> None:
    priorities_of: dict[int, float] = {}

    class PriorityRecorder(sw.SequenceReplayBuffer):
        def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
            priorities_of.update(zip(ids.tolist(), priorities.tolist(), strict=True))
            return 0

    replay = PriorityRecorder(seed=0)
    play = Play()
    with sw.Collector(play.envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=60)
    buffer = as_torchrl_replay(replay, slice_len=3)
    buffer.update_priority([7, 7, 7, 5, 5, 5], [1.0, -4.0, 2.0, 0.5, 0.25, 0.0])
    assert priorities_of == {7: 4.0, 5: 0.5}
    steps = as_torchrl_replay(replay, 4, draw="priorities", beta=1.0)
    chosen = steps.sample()
    assert chosen["priority_weight"].dtype == torch.float32
    chosen["td_error"] = torch.tensor([[-1.0], [2.0], [-3.0], [4.0]])
    priorities_of.clear()
    assert steps.update_tensordict_priority(chosen) == 0
    errors = zip(chosen["index"].tolist(), [1.0, 2.0, 3.0, 4.0], strict=True)
    assert priorities_of.items() <= set(errors)
    assert priorities_of.keys() == set(chosen["index"].tolist())


def test_invalid_arguments_are_refused() -> None:
    replay = Play().replay()
    with pytest.raises(ValueError, match=r"batch_size.*got None"):
        as_torchrl_replay(replay).sample()
    with pytest.raises(ValueError, match=r"batch_size.*got None"):
        next(iter(as_torchrl_replay(replay)))
    with pytest.raises(ValueError, match=r"batch_size.*slice_len=4.*got 6"):
        as_torchrl_replay(replay, 6, slice_len=4)
    with pytest.raises(ValueError, match=r"batch_size.*slice_len=4.*got '8'"):
        as_torchrl_replay(replay, "8", slice_len=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"slice_len: .*>= 1.*\b0\b"):
        as_torchrl_replay(replay, slice_len=0)
    with pytest.raises(ValueError, match=r"n_step.*1 .*slice_len.*got 3"):
        as_torchrl_replay(replay, n_step=3, slice_len=4)
    with pytest.raises(ValueError, match=r"relabel.*slice_len"):
        as_torchrl_replay(replay, relabel=sw.Hindsight(compute_reward), slice_len=4)
    buffer = as_torchrl_replay(replay)
    with pytest.raises(ValueError, match=r"priority_key.*'td_error'.*none"):
        buffer.update_tensordict_priority(buffer.sample(3))
    with pytest.raises(ValueError, match=r"priority.*\b3\b.*got 2"):
        buffer.update_priority(torch.arange(3), torch.ones(2))


# --- the other methods of a ReplayBuffer ---


def _filled(replay: sw.SequenceReplayBuffer) -> sw.SequenceReplayBuffer:
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=300)
    return replay


@pytest.mark.parametrize("draw", ["steps", "priorities", "newest"])
@pytest.mark.parametrize("capacity", [None, 120])
@pytest.mark.parametrize("way", ["torch.save", "dumps"])
def test_a_state_has_the_rows_of_a_replay_in_ram_and_draws_the_same(
    way: str, capacity: int | None, draw: Draw, tmp_path: Path
) -> None:
    before = as_torchrl_replay(
        _filled(sw.SequenceReplayBuffer(capacity=capacity, seed=0)), batch_size=16, draw=draw
    )
    batch = before.sample()
    if draw == "priorities":
        before.update_priority(batch["index"], torch.arange(16.0))
    after = as_torchrl_replay(sw.SequenceReplayBuffer(seed=5), batch_size=16, draw=draw)
    if way == "dumps":
        before.dumps(tmp_path / "saved")
        after.loads(tmp_path / "saved")
    else:
        torch.save(before.state_dict(), tmp_path / "saved")
        after.load_state_dict(torch.load(tmp_path / "saved", weights_only=True))
    assert len(after) == len(before)
    assert after.replay.digest() == before.replay.digest()
    for _ in range(3):
        some, others = before.sample(), after.sample()
        for key in ("observation", "action", ("next", "reward"), "priority_weight"):
            assert torch.equal(some[key], others[key])


def test_a_state_of_a_folder_leaves_the_rows_there(tmp_path: Path) -> None:
    with _filled(sw.SequenceReplayBuffer(tmp_path / "a", seed=0)) as replay:
        buffer = as_torchrl_replay(replay, batch_size=16)
        state = buffer.state_dict()
        first = buffer.sample()
    assert sum(tensor.nbytes for tensor in state.values()) < 2_000
    with sw.SequenceReplayBuffer(tmp_path / "a", seed=9) as replay:
        again = as_torchrl_replay(replay, batch_size=16)
        again.load_state_dict(state)
        assert torch.equal(again.sample()["index"], first["index"])
        with pytest.raises(ValueError, match=r"expected.*RAM"):
            again.empty()
        assert len(again) == len(replay) >= 300
    with sw.SequenceReplayBuffer(tmp_path / "b", seed=9) as replay:
        other = as_torchrl_replay(_filled(replay), batch_size=16)
        with pytest.raises(ValueError, match=r"state.*store"):
            other.load_state_dict(state)


def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    state = as_torchrl_replay(_filled(sw.SequenceReplayBuffer(seed=0))).state_dict()
    buffer = as_torchrl_replay(sw.SequenceReplayBuffer(seed=0), batch_size=4)
    for place in range(0, len(state["stepwell"]), 997):
        damaged = state["stepwell"].clone()
        damaged[place] ^= 0xFF
        for wrong in ({"stepwell": damaged}, {"stepwell": state["stepwell"][:place]}):
            with pytest.raises((ValueError, StoreCorrupt)):
                buffer.load_state_dict(wrong)
    own: dict[str, Any] = {"_storage": {}, "_sampler": {}, "_writer": {}}
    for foreign in (own, None, 3, {}, {"stepwell": 3}, {"stepwell": torch.zeros(0)}):
        with pytest.raises((ValueError, StoreCorrupt), match=r"state_dict"):
            buffer.load_state_dict(foreign)  # type: ignore[arg-type]
    with pytest.raises(StoreNotFound, match=r"nothing.*dumps"):
        buffer.loads(tmp_path / "nothing")
    assert len(buffer) == 0
    assert not buffer.replay.is_bound


def test_next_write_count_and_empty() -> None:
    buffer = as_torchrl_replay(_filled(sw.SequenceReplayBuffer(seed=0)), batch_size=4)
    steps = len(buffer)
    assert buffer.next().batch_size == (4,)
    assert buffer.write_count == buffer.replay.steps
    recorded = to_tensordict(buffer.replay.sample_episodes(1, align="transition"))[0, :-1]
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)
    with pytest.raises(NotEnoughData):
        buffer.sample()
    assert buffer.extend(recorded.exclude("collector", "index", "priority_weight")) > 0
    assert 0 < len(buffer) < steps


@pytest.mark.parametrize(
    ("name", "right"),
    [("set_sampler", "draw="), ("append_transform", "batch"), ("storage", "replay"), ("x", "'x'")],
)
def test_what_is_missing_is_named(name: str, right: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'.*{right}|{right}"):
        getattr(as_torchrl_replay(sw.SequenceReplayBuffer()), name)


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_trains_and_saves_and_loads(tmp_path: Path) -> None:
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss
    from torchrl.trainers import ReplayBufferTrainer, Trainer

    buffers: list[Any] = []
    for number in range(2):
        env = GymEnv("CartPole-v1", categorical_action_encoding=True)
        net, file = torch.nn.Linear(4, 2), tmp_path / "trainer.pt"
        policy = QValueActor(net, in_keys=["observation"], action_space="categorical")
        loss = DQNLoss(policy, action_space="categorical", delay_value=False)
        loss.make_value_estimator()  # else a loss that has not trained yet cannot be loaded
        replay = sw.SequenceReplayBuffer(seed=number)
        buffers.append(as_torchrl_replay(replay, batch_size=8, draw="priorities"))
        counted: Any = TransformedEnv(TransformedEnv(env, StepCounter()), RewardSum())
        trainer = Trainer(
            collector=Collector(counted, policy, frames_per_batch=40, total_frames=120),
            total_frames=120,
            frame_skip=1,
            optim_steps_per_batch=2,
            loss_module=loss,
            optimizer=torch.optim.Adam(loss.parameters()),
            save_trainer_file=str(file),
            save_trainer_interval=30,
            progress_bar=False,
        )
        ReplayBufferTrainer(buffers[-1], batch_size=8).register(trainer)
        trainer.load_from_file(file) if number else trainer.train()
    buffer, again = buffers
    assert buffer.write_count == 120
    assert 0 < again.write_count <= 120
    some, others = buffer.replay.episode(0), again.replay.episode(0)
    assert np.array_equal(some.reward, others.reward[: some.rows])
