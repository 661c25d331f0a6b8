"""A RayCollector is refused with one sentence without Ray, and before Ray is started."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

import stepwell as sw
from support.groups import Weighted, walks


def test_without_ray_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'stepwell\[ray\]'") as caught:
        sw.RayCollector(walks, Weighted, groups=1)
    assert caught.value.name == "ray"


def test_more_actors_than_groups_are_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ModuleType("stepwell.collectors.distributed.ray_engine")
    engine.__dict__["RayEngine"] = lambda **_: pytest.fail("Ray was started")
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    for groups, actors in ((2, 3), (0, 1), (2, 0), (2.5, 1)):
        with pytest.raises(ValueError, match=r"(actors|groups): expected .*got"):
            sw.RayCollector(walks, Weighted, groups=groups, actors=actors)  # type: ignore[arg-type]
