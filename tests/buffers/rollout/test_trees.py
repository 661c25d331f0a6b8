"""Nested values are gone through array by array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.buffers.rollout.trees import map_tree, named_leaves


class Hidden(NamedTuple):
    h: object
    c: object


def test_a_mapped_tree_has_the_form_of_the_first() -> None:
    tree = {"a": (np.zeros(1), [np.zeros(2), None]), "b": Hidden(np.zeros(3), np.zeros(4))}
    assert map_tree(len, tree) == {"a": (1, [2, None]), "b": Hidden(3, 4)}
    assert type(map_tree(len, tree)["b"]) is Hidden
    assert map_tree(len, np.zeros(5)) == 5
    assert map_tree(len, None) is None


def test_leaves_are_named_by_the_way_to_them() -> None:
    tree = {"a": (np.zeros(1), [np.zeros(2), None]), "b": Hidden(np.zeros(3), np.zeros(4))}
    found = [(name, len(leaf)) for name, leaf in named_leaves("state", tree)]
    assert found == [("state/a/0", 1), ("state/a/1/0", 2), ("state/b/0", 3), ("state/b/1", 4)]
    assert [name for name, _ in named_leaves("action", np.zeros(1))] == ["action"]
