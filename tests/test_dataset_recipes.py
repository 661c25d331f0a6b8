"""The recipes of the catalogue make what is shipped, and the page of cards shows that."""

from __future__ import annotations

from pathlib import Path

import pytest

import cards
import make
import recipes
import stepwell as sw
from stepwell.collectors import list_datasets
from stepwell.collectors.catalogue.index import EXTRAS
from support.needed import skip_without
from support.tiers import proofs_but

SHIPPED = {one.name: one for one in list_datasets()}
IN_EVERY_RUN = ("cartpole/expert",)
SMALL = [name for name, one in SHIPPED.items() if not (one.extra or name.startswith("atari/"))]


def test_each_data_set_has_a_recipe() -> None:
    known = recipes.all_recipes()
    assert set(SHIPPED) <= set(known)
    for name, one in SHIPPED.items():
        recipe = known[name]
        assert (one.policy, one.extra) == (recipe.words, recipe.extra), name
        assert recipe.steps <= one.steps < recipe.steps + 8, name


@pytest.mark.parametrize("name", proofs_but(IN_EVERY_RUN, SMALL))
def test_a_recipe_makes_the_rows_that_are_shipped(name: str) -> None:
    recipe = recipes.all_recipes()[name]
    replay = make.collected(recipe)
    assert replay.digest() == SHIPPED[name].digest


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(SHIPPED) - set(SMALL)))
def test_a_large_recipe_makes_the_rows_that_are_shipped(name: str) -> None:
    recipe = recipes.all_recipes()[name]
    skip_without([EXTRAS[recipe.extra].module] if recipe.extra else [])
    assert make.collected(recipe).digest() == SHIPPED[name].digest


def test_a_made_data_set_is_in_the_index_and_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make.py", "frozenlake/exp*", "--out", str(tmp_path / "out")])
    short = {"frozenlake/expert": recipes.tables()["frozenlake/expert"].shortened(100)}
    monkeypatch.setattr(recipes, "all_recipes", lambda: short)
    make.main()
    assert "frozenlake/expert" in capsys.readouterr().out
    with sw.load_dataset("frozenlake/expert", index=tmp_path / "out" / "index.toml") as replay:
        assert 100 <= replay.steps < 104
        assert "info/prob" in next(replay.iter_episodes()).fields


def test_the_page_of_cards_is_current() -> None:
    assert cards.PAGE.read_text("utf-8") == cards.page(), "python examples/datasets/cards.py"
