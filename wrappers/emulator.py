"""The part of ale-py's emulator that the wrappers use, with types."""

from __future__ import annotations

from typing import Any, Protocol, cast

import gymnasium
import numpy as np
import numpy.typing as npt

__all__ = [
    "Emulator",
    "action_meanings",
    "emulator_actions",
    "emulator_info",
    "emulator_of",
    "quiet_emulators",
]


class Emulator(Protocol):
    """What is used of `ale_py.ALEInterface`."""

    def act(self, action: object, paddle_strength: float, /) -> int:
        """Play one frame and return its reward."""
        ...

    def game_over(self, *, with_truncation: bool) -> bool:
        """Tell whether the game has ended."""
        ...

    def lives(self) -> int:
        """Count the lives that are left."""
        ...

    def getEpisodeFrameNumber(self) -> int:
        """Count the frames since the game was reset."""
        ...

    def getFrameNumber(self) -> int:
        """Count the frames since the game was loaded."""
        ...

    def getScreenGrayscale(self, array: npt.NDArray[np.uint8], /) -> None:
        """Write the screen's gray levels [H, W]."""
        ...

    def getScreenRGB(self, array: npt.NDArray[np.uint8], /) -> None:
        """Write the screen's colours [H, W, 3]."""
        ...

    def getScreenDims(self) -> tuple[int, int]:
        """Rows and columns of the screen."""
        ...

    def getAvailableModes(self) -> list[int]:
        """The game's modes."""
        ...

    def getAvailableDifficulties(self) -> list[int]:
        """The game's difficulties."""
        ...

    def setInt(self, key: str, value: int, /) -> None:
        """Set a setting, which counts from the next time a game is loaded."""
        ...


def emulator_of(env: gymnasium.Env[Any, Any]) -> Emulator:
    """Return the emulator inside an ale-py `AtariEnv`, bare or wrapped.

    Raises:
        ValueError: There is none.
    """
    ale = getattr(env.unwrapped, "ale", None)
    if ale is None:
        raise ValueError(f"expected an env around ale-py's AtariEnv, got {env}")
    return cast("Emulator", ale)


def quiet_emulators() -> None:
    """Keep ale-py's banner off stderr, as its own envs do, but before the first one is made."""
    import ale_py

    mode = ale_py.LoggerMode.Error  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    ale_py.ALEInterface.setLoggerMode(mode)  # pyright: ignore[reportUnknownArgumentType]


def emulator_actions(meanings: list[str]) -> list[object]:
    """Translate the names of actions into what `Emulator.act` takes."""
    import ale_py

    return [getattr(ale_py.Action, meaning) for meaning in meanings]


def emulator_info(ale: Emulator) -> dict[str, Any]:
    """Build the info that ale-py's `AtariEnv` gives at this moment."""
    return {
        "lives": ale.lives(),
        "episode_frame_number": ale.getEpisodeFrameNumber(),
        "frame_number": ale.getFrameNumber(),
    }


def action_meanings(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Name each action, as `["NOOP", "FIRE", ...]`; empty when the env has no names.

    Example:
        >>> import gymnasium
        >>> action_meanings(gymnasium.make("CartPole-v1"))
        []
    """
    meanings = getattr(env.unwrapped, "get_action_meanings", list)
    return cast("list[str]", meanings())
