"""Infos in shared memory, beside the infos that were put in."""

from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from stepwell.wrappers.workers.infos import (
    MOST_NUMBERS,
    MOST_SCHEMAS,
    NO_INFO,
    InfoReader,
    Infos,
    InfoWriter,
    add_info,
)

NUM_ENVS = 3

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False),
    st.sampled_from([0, -0.0, 2**63 - 1, -(2**63), float("inf")]),
)
OTHERS = st.sampled_from([2**63, "text", None, np.float32(0.5), np.int64(3), [1], {"a": 1}])
KEYS = st.sampled_from(["lives", "x", "y", "_x", "final_obs"])
INFOS = st.one_of(
    st.fixed_dictionaries({"lives": st.integers(0, 5), "x": st.floats(allow_nan=False)}),
    st.dictionaries(KEYS, NUMBERS, max_size=4),
    st.dictionaries(KEYS, st.one_of(NUMBERS, OTHERS), max_size=4),
    st.just({f"k{k}": k for k in range(MOST_NUMBERS + 1)}),
)


class Worker:
    """A worker's and the parent's side, joined by a pipe that is a list."""

    def __init__(self) -> None:
        self.schema = np.full(NUM_ENVS, NO_INFO)
        self.words = np.zeros((NUM_ENVS, MOST_NUMBERS), np.int64)
        self.writer = InfoWriter(self.schema, self.words)
        self.reader = InfoReader(self.schema, self.words)
        self.schemas: list[Any] = []
        self.piped = 0

    def send(self, infos: Infos) -> Infos:
        """The infos as the parent gets them."""
        envs = range(NUM_ENVS)
        if self.writer.write(infos, envs):
            columns = self.reader.columns([(envs, self.schemas)])
            schemas = {(*((key, type(value)) for key, value in info.items()),) for _, info in infos}
            assert (columns is not None) == (len(infos) == NUM_ENVS and len(schemas) == 1)
            if columns is not None:
                expected: dict[str, Any] = {}
                for env, info in infos:
                    add_info(expected, info, env, NUM_ENVS)
                assert_same(columns, expected)
            return self.reader.infos(envs, self.schemas)
        self.piped += 1
        self.schemas = self.writer.schemas
        self.writer.is_known = True
        self.reader.forget()
        return infos


def assert_same(columns: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(columns) == list(expected)
    for key, column in expected.items():
        np.testing.assert_array_equal(columns[key], column)
        assert columns[key].dtype == column.dtype
        assert np.signbit(columns[key]).tolist() == np.signbit(column).tolist()


@hypothesis.given(st.lists(st.lists(st.one_of(st.none(), INFOS), min_size=3, max_size=3)))
def test_every_info_arrives_as_it_was(steps: list[list[dict[str, Any] | None]]) -> None:
    worker = Worker()
    for step in steps:
        infos = [(index, info) for index, info in enumerate(step) if info is not None]
        got = worker.send(infos)
        assert got == infos
        assert repr(got) == repr(infos)  # types, order, and the sign of zero


def test_ever_new_keys_do_not_fill_the_memory() -> None:
    worker = Worker()
    for step in range(3 * MOST_SCHEMAS):
        infos: Infos = [(0, {f"key{step}": step})]
        assert worker.send(infos) == infos
    assert len(worker.schemas) == MOST_SCHEMAS


def test_the_columns_are_copies() -> None:
    worker = Worker()
    infos: Infos = [(env, {"lives": env, "x": 0.5, "over": True}) for env in range(3)]
    worker.send(infos)
    worker.send(infos)
    columns = worker.reader.columns([(range(3), worker.schemas)])
    assert columns is not None
    worker.words[:] = 7
    assert columns["lives"].tolist() == [0, 1, 2]
    assert columns["x"].tolist() == [0.5] * 3
    assert columns["over"].tolist() == [True] * 3
