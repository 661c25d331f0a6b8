"""from_tensordict: TorchRL's recordings are stored as the episodes of the envs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import SpecMismatch
from support.envs.fakes import TraceEnv
from support.envs.logged_envs import PLAN, Kind, Log, Play, place_of, same_tree

torch = pytest.importorskip("torch", reason="needs torch")
torchrl: Any = pytest.importorskip("torchrl", reason="needs torchrl")
tensordict: Any = pytest.importorskip("tensordict", reason="needs tensordict")


from stepwell.buffers.libraries.torchrl.batches import from_tensordict, to_tensordict  # noqa: E402
from stepwell.buffers.libraries.torchrl.replay import as_torchrl_replay  # noqa: E402

KINDS: tuple[Kind, ...] = ("vector", "dict", "stack-zero", "stack-repeat")


def torchrl_env(log: Log, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.envs import GymWrapper

        return GymWrapper(log, **options)


def assert_stored(replay: sw.SequenceReplayBuffer, logs: list[Log]) -> None:
    """Assert that the replay holds exactly the logged episodes."""
    stored = list(replay.iter_episodes())
    every = [(n, steps) for n, log in enumerate(logs) for steps in log.episodes if steps]
    assert len(stored) == len(every)
    for episode in stored:
        env, number, _ = place_of(episode.observation[0])
        steps = logs[env].episodes[number]
        assert (episode.stream, episode.first_row, episode.steps) == (env, 0, len(steps))
        shown = [*(step.observation for step in steps), steps[-1].following]
        assert same_tree(episode.observation, np.stack(shown))
        assert episode.action[:-1].tolist() == [step.action for step in steps]
        assert episode.reward.tolist() == [0, *(step.reward for step in steps)]
        assert bool(episode.terminated[-1]) == steps[-1].terminated
        assert bool(episode.truncated[-1]) == steps[-1].truncated


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_torchrl_rollout_is_stored_as_the_envs_episodes(one_hot: bool) -> None:
    log = Log(TraceEnv(PLAN, 0))
    env = torchrl_env(log, categorical_action_encoding=not one_hot)
    replay = sw.SequenceReplayBuffer(seed=0)
    recorded = env.rollout(24, break_when_any_done=False)
    assert from_tensordict(recorded, replay, one_hot_action=one_hot) == 24
    assert_stored(replay, [log])
    assert replay.spec["action"].dtype == "int64"
    assert replay.spec["reward"].dtype == "float64"


def test_batches_of_a_torchrl_collector_are_joined_into_episodes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.collectors import Collector

    log = Log(TraceEnv(PLAN, 0))
    env = torchrl_env(log, categorical_action_encoding=True)
    replay = sw.SequenceReplayBuffer(seed=0)
    buffer = as_torchrl_replay(replay, batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector = Collector(env, None, frames_per_batch=5, total_frames=40)
        for number, batch in enumerate(collector):
            assert buffer.extend(batch) == 5
            assert len(buffer) == 5 * (number + 1)
        collector.shutdown()
    log.episodes = [steps for steps in log.episodes if steps]
    assert_stored(replay, [log])
    assert buffer.sample()["next", "reward"].shape == (8, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_through_torchrl_keeps_all_steps(kind: Kind) -> None:
    first, again = Play(kind).replay(), sw.SequenceReplayBuffer(seed=0)
    again.bind(first.spec, {})
    request = sw.Episodes(1, align="transition", stack=kind.startswith("stack"))
    for episode in first.iter_episodes():
        records = first.storage.index.records
        row = records["row_id"][records["episode"] == episode.id][:1]
        recorded = to_tensordict(first.take(request, row))
        assert from_tensordict(recorded, again, stream=episode.stream) == episode.steps
    assert again.steps == first.steps
    for mine, theirs in zip(again.iter_episodes(), first.iter_episodes(), strict=True):
        assert mine.end == theirs.end
        assert mine.stream == theirs.stream
        for name, rows in theirs.fields.items():
            # Infos of the reset itself are in no transition.
            some = slice(1, None) if name.startswith("info/") else slice(None)
            assert same_tree(mine.fields[name][some], rows[some]), name


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_init", [False, True, None])
def test_an_episode_continues_in_the_next_batch_unless_a_reset_is_possible(
    is_cut: bool, is_init: bool | None
) -> None:
    """All observations are equal, so that one of a reset cannot be recognized."""

    def steps(is_first: bool | None) -> Any:
        flags = {
            name: torch.zeros(2, 1, dtype=torch.bool) for name in ("done", "terminated", "cut")
        }
        flags["cut"] = torch.tensor([[False], [is_cut]])
        flags["truncated"] = flags["done"] = flags["cut"]
        rows = {"reward": torch.ones(2, 1), "observation": torch.zeros(2, 3)}
        found = {"observation": torch.zeros(2, 3), "action": torch.ones(2, dtype=torch.int64)}
        marks = {} if is_first is None else {"is_init": torch.tensor([[is_first], [False]])}
        return tensordict.TensorDict({**found, **marks, "next": {**rows, **flags}}, [2])

    replay = sw.SequenceReplayBuffer()
    buffer = as_torchrl_replay(replay)
    buffer.extend(steps(None if is_init is None else True))
    buffer.extend(steps(is_init))
    goes_on = is_init is False or (is_init is None and not is_cut)
    assert [e.steps for e in replay.iter_episodes()] == ([4] if goes_on else [2, 2])


def test_an_episode_without_its_reset_starts_late() -> None:
    collector, replay = (
        Play(plan=[(50, "truncated")], num_envs=1).collector(),
        sw.SequenceReplayBuffer(),
    )
    collector.rollout(steps=7)
    from_tensordict(to_tensordict(collector.rollout(steps=6)), replay)
    (episode,) = replay.iter_episodes()
    assert episode.first_row == 1
    assert not episode.is_first.any()
    assert episode.steps == 6
    assert episode.cut[-1]


def changed(recorded: Any, key: Any, value: Any) -> Any:
    found = recorded.clone()
    found[key] = value
    return found


def test_invalid_recordings_are_refused_and_nothing_is_stored() -> None:
    env = torchrl_env(Log(TraceEnv(PLAN, 0)), categorical_action_encoding=True)
    recorded = env.rollout(24, break_when_any_done=False)
    replay = sw.SequenceReplayBuffer()
    ends, firsts = ~recorded["next", "done"], torch.ones(24, 1, dtype=torch.bool)
    for data, message in (
        (recorded[torch.arange(23, -1, -1)], r"next observation.*row 1 of env 0.*row 2"),
        (
            recorded.exclude(("next", "terminated")),
            r"expected .*'terminated'\), got .*'observation'",
        ),
        (recorded.exclude("action"), r"expected .*'action', got .*'observation'"),
        (recorded.exclude("observation"), r"observation.*'next'.*'action'"),
        (recorded.reshape(2, 3, 4), r"\[T\] or \[N, T\].*\[2, 3, 4\]"),
        (changed(recorded, ("next", "done"), ends), r"truncated.*done=False in row 0 of env 0"),
        (changed(recorded, "is_init", firsts), r"row 1 of env 0.*terminated.*truncated.*row 2"),
        (changed(recorded, ("collector", "mask"), torch.arange(24) < 20), r"\b4\b.*'mask'\)"),
        (changed(recorded, "steps_to_next_obs", firsts * 3), r"steps_to_next_obs.*1, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            from_tensordict(data, replay)
    with pytest.raises(ValueError, match=r"one-hot.*one_hot_action"):
        from_tensordict(recorded, replay, one_hot_action=True)
    recorded.set_non_tensor("note", "a text")
    for wrong, message in ((recorded, r"NonTensor.*'note'"), ({}, r"TensorDict.*a dict")):
        with pytest.raises(TypeError, match=message):
            from_tensordict(wrong, replay)
    assert not replay.is_bound


def test_a_replay_with_other_fields_is_refused() -> None:
    env = torchrl_env(Log(TraceEnv(PLAN, 0)), categorical_action_encoding=True)
    recorded = env.rollout(6, break_when_any_done=False)
    held = Play().replay()
    before = held.digest()
    with pytest.raises(SpecMismatch, match=r"extra/log_prob.*got action, obs"):
        from_tensordict(recorded, held)
    other = sw.SequenceReplayBuffer()
    from_tensordict(recorded, other)
    wrong = changed(recorded, "observation", recorded["observation"].float())
    wrong["next", "observation"] = wrong["next", "observation"].float()
    with pytest.raises(SpecMismatch, match=r"observation.*float64 \(5,\).*float32 \(5,\)"):
        from_tensordict(wrong, other)
    wrong = changed(recorded, ("next", "reward"), recorded["next", "reward"].long())
    with pytest.raises(SpecMismatch, match=r"reward.*float64 \(\).*int64 \(\)"):
        from_tensordict(wrong, other)
    assert (held.digest(), other.steps) == (before, 6)


def test_inconsistent_frame_stacks_are_refused() -> None:
    first = Play("stack-zero").replay()
    again = sw.SequenceReplayBuffer(seed=0)
    again.bind(first.spec, {})
    rows = to_tensordict(first.take(sw.Episodes(1, align="transition", stack=True), np.array([2])))
    rows["observation"][0, 0, 0] = 9
    with pytest.raises(SpecMismatch, match=r"'observation'.*\b3\b.*zero"):
        from_tensordict(rows, again)


def with_flags(flags: Any) -> Any:
    seen = torch.zeros(5, 2, dtype=torch.bfloat16)
    following = {"observation": seen, "reward": torch.ones(5, 1)}
    following["done"] = following["terminated"] = flags
    columns = {"observation": seen, "action": torch.zeros(5, dtype=torch.long), "next": following}
    return tensordict.TensorDict(columns, batch_size=[5])


def test_flags_are_taken_where_they_are_flags_and_bfloat16_as_float32() -> None:
    replay = sw.SequenceReplayBuffer()
    for flag in (2, 0.5, float("nan")):
        with pytest.raises(ValueError, match=r"from_tensordict: .*terminated.*that bool can hold"):
            from_tensordict(with_flags(torch.full((5, 1), flag)), replay)
    with pytest.raises(ValueError, match=r"from_tensordict: .*one flag for each step"):
        from_tensordict(with_flags(torch.zeros(5, 2, dtype=torch.bool)), replay)
    from_tensordict(with_flags(torch.tensor([[0], [0], [1], [0], [0]])), replay)
    assert [one.steps for one in replay.iter_episodes()] == [3, 2]
    assert replay.spec["observation"].dtype == "float32"


# --- TorchRL's usual transforms ---


def _compose(e: Any) -> Any:
    return e.Compose(e.InitTracker(), e.StepCounter(20), e.RewardSum(), e.DoubleToFloat())


O = ["observation"]  # noqa: E741
# Each with what the replay stores besides observation, action and reward.
TRANSFORMS: dict[str, tuple[Any, set[str]]] = {
    "TargetReturn": (lambda e: e.TargetReturn(10.0), {"target_return"}),
    "TensorDictPrimer": (
        lambda e: e.TensorDictPrimer({"hidden": torchrl.data.Unbounded((3,))}, random=True),
        {"hidden"},
    ),
    "several": (_compose, {"step_count", "episode_reward"}),
    "CatFrames": (lambda e: e.CatFrames(N=3, dim=-1, in_keys=O), set()),
    "BinarizeReward": (lambda e: e.BinarizeReward(), set()),
    "RenameTransform": (lambda e: e.RenameTransform(O, ["obs"]), set()),
    "CatTensors, a copy": (
        lambda e: e.CatTensors(in_keys=O, out_key="vector", del_keys=False),
        {"vector"},
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("way", ["from_tensordict", "extend"])
def test_recordings_of_transformed_envs_are_stored_with_what_a_transform_adds(
    way: str, name: str
) -> None:
    import torchrl.envs

    transform, added = TRANSFORMS[name]
    pole = torchrl.envs.GymEnv("CartPole-v1", categorical_action_encoding=True)
    env = torchrl.envs.TransformedEnv(pole, transform(torchrl.envs))
    torch.manual_seed(0)
    recorded = env.rollout(40, break_when_any_done=False)
    replay = sw.SequenceReplayBuffer(seed=0)
    if way == "from_tensordict":
        assert from_tensordict(recorded, replay) == 40
    else:
        buffer = as_torchrl_replay(replay, batch_size=8)
        assert buffer.extend(recorded[:13]) + buffer.extend(recorded[13:]) == 40
        drawn = buffer.sample()
        assert all(key in drawn.keys() and ("next", key) in drawn.keys(True) for key in added)
    episodes = list(replay.iter_episodes())
    assert sum(episode.steps for episode in episodes) == 40
    more = {name for name in replay.spec.names if not name.startswith(("observation", "action"))}
    assert more - {"reward"} == {f"{kind}/{key}" for key in added for kind in ("extra", "info")}

    def stored(field: str, rows: slice) -> np.ndarray:
        return np.concatenate([episode.fields[field][rows] for episode in episodes])

    def same(field: str, rows: slice, key: Any) -> bool:
        wanted, found = recorded[key].numpy(), stored(field, rows)
        return np.array_equal(found.reshape(wanted.shape), wanted)

    (observed,) = [field for field in replay.spec.names if field.startswith("observation")]
    key = observed.split("/")[-1]
    before, after = slice(0, -1), slice(1, None)
    assert same(observed, before, key)
    assert same(observed, after, ("next", key))
    assert same("reward", after, ("next", "reward"))
    for key in added:
        assert same(f"extra/{key}", before, key)
        assert same(f"info/{key}", after, ("next", key))
