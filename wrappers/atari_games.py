"""The Atari games that can be made, and the names they go by."""

from __future__ import annotations

import difflib

import gymnasium

__all__ = ["atari_games", "atari_name", "find_game", "game_ids"]


def game_ids() -> dict[str, str]:
    """Map each single-player game that ale-py brings to its Gymnasium id.

    Example:
        >>> game_ids()["ms_pacman"]
        'ALE/MsPacman-v5'
    """
    import ale_py

    gymnasium.register_envs(ale_py)
    specs = gymnasium.registry.items()
    return {spec.kwargs["game"]: name for name, spec in specs if name.startswith("ALE/")}


def atari_games() -> tuple[str, ...]:
    """Name the games that `make_atari` can make, in alphabetical order.

    Example:
        >>> "pong" in atari_games()
        True
    """
    return tuple(sorted(game_ids()))


def find_game(name: str) -> str:
    """Find the game that a name means: "ms_pacman", "MsPacman" or "ALE/MsPacman-v5".

    Args:
        name: A game's own name, in any case and with or without underscores, or its Gymnasium id.

    Returns:
        The name in snake case, as ale-py has it.

    Raises:
        ValueError: No such game; the message names the nearest ones.

    Example:
        >>> find_game("ALE/MsPacman-v5")
        'ms_pacman'
    """
    games = {_key(game): game for game in game_ids()}
    key = _key(name.removeprefix("ALE/").removesuffix("-v5"))
    if key in games:
        return games[key]
    nearest = [games[near] for near in difflib.get_close_matches(key, games, cutoff=0.5)]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "atari_games() names them all"
    raise ValueError(
        f"unknown Atari game: expected a name such as 'pong', 'Pong' or 'ALE/Pong-v5', "
        f"got {name!r}; {hint}"
    )


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def atari_name(env: str) -> str | None:
    """The game that a name means for `make_atari`; None when it is another env's name.

    Example:
        >>> atari_name("ALE/Pong-v5"), atari_name("Pong"), atari_name("CartPole-v1")
        ('ALE/Pong-v5', 'Pong', None)
    """
    if env.startswith("ALE/"):
        find_game(env)  # says which games there are
        return env
    if ":" in env or env in gymnasium.registry:
        return None
    try:
        find_game(env)
    except ValueError:
        return None
    return env
