"""What a format writes it reads: the same steps, or every bit where it promises that."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.testing import assert_same_steps, check_format
from support.exchanged_stores import (
    DISCRETE,
    IMAGE,
    PICTURES,
    REWARD,
    VECTOR,
    Wanted,
    assert_same,
    stores,
)
from support.format_packages import require
from support.rows.all_kinds import KINDS
from support.tiers import proofs_but

BOOLS = st.booleans()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A format, and what of a store it can hold."""

    wanted: Wanted = dataclasses.field(default_factory=Wanted)  # the stores
    # Of the export; stacks are not asked for where rows before them are gone.
    options: Mapping[str, st.SearchStrategy[object]]
    needs_steps: bool = False  # a store without a step is refused
    is_exact: bool = False  # every bit comes back, and all that is known of episodes and runs
    has_final: bool = True  # so does the observation after the last action


def showing(*more: tuple[Field, ...]) -> Wanted:
    return Wanted(observations=[*Wanted().observations, *more])


CASES = {
    "npz": Case(options={"compress": BOOLS}, is_exact=True),
    "minari": Case(
        options={
            "data_format": st.sampled_from(["hdf5", "arrow"]),
            "compress": BOOLS,
            "stack": BOOLS,
        },
        needs_steps=True,
    ),
    "parquet": Case(
        wanted=showing(
            *((picture,) for picture in PICTURES),
            (Field("observation", "uint16", (2, 1, 2, 2, 3), "raw"),),
            (
                Field("observation/none", "float32", (0,), "raw"),
                Field("observation/never", "int8", (0, 3), "raw"),
                Field("observation/small", "float16", (), "raw"),
                Field("observation/big", "uint64", (2,), "raw"),
            ),
        ),
        options={
            "images": st.sampled_from(["png", "array"]),
            "stack": BOOLS,
            "next_observation": BOOLS,
        },
        needs_steps=True,
    ),
    "lerobot": Case(
        wanted=showing(*((picture,) for picture in PICTURES)),
        options={},
        needs_steps=True,
        has_final=False,
    ),
    "rlds": Case(
        wanted=showing(*((Field("observation", dtype, shape, "raw"),) for dtype, shape in KINDS)),
        options={"stack": BOOLS},
    ),
    "dreamerv3": Case(options={"chunk": st.sampled_from([1, 2, 3, 5, 1024])}),
    "d3rlpy": Case(
        wanted=Wanted(
            actions=[
                (DISCRETE,),
                (Field("action", "float32", (2,), "raw"),),
                (Field("action", "float64", (), "raw"),),
            ]
        ),
        options={"compress": BOOLS, "channels_first": BOOLS},
        has_final=False,
    ),
}


def moved_channels(name: str, options: Mapping[str, object], field: Field) -> tuple[int, int]:
    """The axis of the channels of an observation, and where the format puts it."""
    if name == "d3rlpy" and options["channels_first"] and field.shape == IMAGE.shape:
        return -1, 1
    is_picture = name == "lerobot" or (name == "parquet" and options["images"] == "png")
    is_whole_stack = bool(options.get("stack")) and field.stack > 1
    if is_picture and not is_whole_stack and field.shape == (3, 16, 18):
        return 1, -1
    return 0, 0


def test_streams_are_compared_in_the_order_in_which_they_began() -> None:
    stored, back = (SequenceReplayBuffer() for _ in range(2))
    episodes = [(0, 1), (1, 3), (0, 2)]  # streams and rows; the first one has no step
    for replay, order in ((stored, episodes), (back, [*episodes[::2], episodes[1]])):
        replay.bind(Spec((VECTOR, DISCRETE, REWARD), "observation", "action"), {})
        for number, (stream, count) in enumerate(order):
            rows = {f.name: np.zeros((count, *f.shape), f.numpy_dtype) for f in replay.spec.fields}
            replay.add([Chunk(number, stream, 0, End.NONE, rows, {})])
    assert_same_steps(back, stored)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize(
    "name", proofs_but([name for name in CASES if name not in ("npz", "dreamerv3")], CASES)
)
def test_the_same_steps_come_back(name: str, data: st.DataObject, tmp_path: Path) -> None:
    case = CASES[name]
    require(name)
    replay = data.draw(stores(case.wanted))
    episodes = list(replay.iter_episodes())
    assume(not case.needs_steps or any(episode.steps for episode in episodes))
    options: dict[str, Any] = data.draw(st.fixed_dictionaries(dict(case.options)))
    if options.get("stack"):
        is_whole = all(episode.first_row == 0 for episode in episodes)
        options["stack"] = is_whole and all(len(f.source_shape) <= 5 for f in replay.spec.fields)
        if name == "parquet":  # the other table has single frames
            options["next_observation"] |= options["stack"]
    is_dict = name == "dreamerv3" and replay.spec.action != "action"
    first = replay.spec.fields[0]
    out = tmp_path / "out-v0"
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)

    def shown(rows: np.ndarray) -> np.ndarray:
        is_first = rows.dtype == first.numpy_dtype and rows.shape[1:] == first.shape
        return np.moveaxis(rows, *moved_channels(name, options, first)) if is_first else rows

    exported, imported, back = check_format(
        name,
        out,
        replay,
        export_options=options,
        import_options={"actions": "a, b"} if is_dict else None,
        shown=shown,
        has_final_observation=case.has_final,
    )
    if case.is_exact:
        assert_same(back, replay)
        assert imported.digest == replay.digest()
        assert (exported.episodes, exported.steps) == (imported.episodes, imported.steps)
