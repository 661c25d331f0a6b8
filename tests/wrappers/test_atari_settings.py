import pytest

from stepwell.wrappers import atari_games
from stepwell.wrappers.atari_settings import find_game


@pytest.mark.parametrize(
    "name", ["ms_pacman", "MsPacman", "mspacman", "Ms_Pacman", "ALE/MsPacman-v5", "MsPacman-v5"]
)
def test_a_game_is_found_by_any_of_its_names(name: str) -> None:
    assert find_game(name) == "ms_pacman"


def test_every_game_is_found_by_its_own_name() -> None:
    games = atari_games()
    assert len(games) > 100
    assert list(games) == sorted(games)
    assert [find_game(game) for game in games] == list(games)


def test_games_without_a_single_player_mode_are_left_out() -> None:
    assert not {"combat", "joust", "maze_craze", "warlords"} & set(atari_games())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Pnog", "pong"),
        ("space_invader", "space_invaders"),
        ("PongNoFrameskip-v4", "give 'pong'"),
        ("Breakout-ramDeterministic-v4", "give 'breakout'"),
        ("Pong-v4", "pong"),
        ("zzzzzzzz", r"atari_games\(\)"),
    ],
)
def test_an_unknown_game_is_refused_with_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"Atari game: .*got '{name}'.*{hint}"):
        find_game(name)
