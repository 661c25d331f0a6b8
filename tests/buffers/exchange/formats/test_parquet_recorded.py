"""Tables and RLDS steps of a Collector's recordings equal what the envs logged.

Envs with episodes of 1 to 6 steps that are terminated, truncated, both, or cut by the end of the
recording; frames with and without stacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.exchange.formats.rlds import rlds_episodes
from support.envs.recorded_envs import Listed, frames, recorded, traces

pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")


class Case(NamedTuple):
    """A replay, its episodes, the option `stack`, and the observations that are written of each."""

    replay: SequenceReplayBuffer
    listed: list[Listed]
    stack: bool
    shown: list[list[Any]]


@pytest.fixture(params=["traces", "frames", "stacks", "frames of stacks"])
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    replay, listed = recorded(traces() if name == "traces" else frames(3 if "stack" in name else 1))
    assert len(listed) > 8
    assert any(one.is_cut for one in listed)
    newest = -1 if name == "frames of stacks" else slice(None)
    shown = [[plain(seen[newest]) for seen in one.observations] for one in listed]
    return Case(replay, listed, name == "stacks", shown)


def plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def rows_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [row for file in sorted(files) for row in pq.ParquetFile(file).read().to_pylist()]


def test_parquet_tables_equal_what_the_envs_did(case: Case, tmp_path: Path) -> None:
    options = {"stack": case.stack, "next_observation": True}
    export_episodes(case.replay, "parquet", tmp_path / "out", options=options)
    known = zip(case.listed, case.shown, case.replay.iter_episodes(), strict=True)
    assert rows_of((tmp_path / "out" / "data").glob("*")) == [
        {
            "episode": number,
            "stream": episode.stream,
            "step": step,
            "is_first": step == 0,
            "observation": shown[step],
            "next_observation": shown[step + 1],
            "action": plain(one.actions[step]),
            "reward": one.rewards[step],
            "terminated": one.terminated[step],
            "truncated": one.truncated[step],
        }
        for number, (one, shown, episode) in enumerate(known)
        for step in range(one.steps)
    ]
    ends = rows_of([tmp_path / "out" / "episodes.parquet"])
    for end, one, shown in zip(ends, case.listed, case.shown, strict=True):
        assert end["final/observation"] == (shown[-1][-1] if case.stack else shown[-1])
        assert end["return"] == pytest.approx(sum(one.rewards))
        assert end["cut"] == one.is_cut


def test_live_rlds_steps_equal_what_the_envs_did(case: Case) -> None:
    episodes = rlds_episodes(case.replay, stack=case.stack)
    for episode, one, shown in zip(episodes, case.listed, case.shown, strict=True):
        before_last = [False] * one.steps
        expected = {
            "observation": shown,
            "action": plain(one.actions),
            "reward": [*one.rewards, 0],
            "is_first": [number == 0 for number in range(one.steps + 1)],
            "is_last": [*before_last, True],
            "is_terminal": [*before_last, any(one.terminated)],
            "discount": [*(1 - over for over in one.terminated), 0],
        }
        for _ in range(2):
            steps = list(episode["steps"])
            found = {name: [plain(step[name]) for step in steps] for name in expected}
            found["action"].pop()  # the last one has no meaning
            assert found == expected
