"""Vector envs from the command line: which env is meant, and which options apply to it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import gymnasium

from ...wrappers.atari_settings import atari_name
from ..loop.vector_envs import Vector
from .envs import unknown_env

# The makers' own names, repeated so that `stepwell --help` need not import the makers.
AtariBackend: TypeAlias = Literal["auto", "native", "python"]
NesBackend: TypeAlias = Literal["cynes", "nes-py", "stable-retro"]
Backend: TypeAlias = Literal[AtariBackend, NesBackend]

_CARTRIDGE_SUFFIXES = (".nes", ".zip")
_CARTRIDGE_MAGIC = b"NES\x1a"


# Options of games by the makers' names; one that was not given is absent.
EnvOptions: TypeAlias = dict[str, Any]
ATARI_ONLY = {"fire_reset", "clip_rewards", "full_actions", "mode", "difficulty"}
NES_ONLY = {
    *("game", "actions", "allow_opposites", "boot", "start", "start_rule", "crop"),
    *("stuck_frames", "reward_clip", "ram_obs"),
}
OTHER_NAMES = {"rgb": "grayscale", "ram": "ram_obs"}  # settings, where options have others
_NO_GAME = (
    "leave out what is for games, or wrap the env in a function and name that as module:callable"
)
_OF_PICTURES = ("size", "grayscale", "pool", "crop")


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """The envs to make."""

    env: str  # Atari game, cartridge's file, Gymnasium id, "module:Id-v0" or "module:callable"
    num_envs: int
    backend: Backend | None = None  # of games; None: "cynes" for a cartridge, "auto" for Atari
    num_workers: int | None = None  # threads or processes; None leaves it to the maker
    options: EnvOptions = field(default_factory=dict[str, Any])  # settings of games
    is_filmed: bool = False  # they are made in this process, and render their frames


def make_envs(request: EnvRequest) -> Vector:
    """Make the envs; ValueError where there is no such env, or an option does not apply to it."""
    # The makers are imported where they are called: most commands make no envs.
    env, num_envs = request.env, request.num_envs
    num_workers = 0 if request.is_filmed else request.num_workers
    if is_cartridge(env):
        _check_nes_options(env, request.options)
        console = _backend_of("an NES cartridge", request.backend, "cynes", get_args(AtariBackend))
        from ...wrappers.nes.vector import make_nes

        # Left to the maker unless it is needed, as every option that was not given.
        make: Callable[..., Vector] = make_nes
        if request.is_filmed:
            make = partial(make_nes, render_mode="rgb_array")
        return make(env, num_envs, backend=console, num_workers=num_workers, **request.options)
    game = atari_name(env)
    if game is not None:
        _refuse(env, [name for name in request.options if name in NES_ONLY])
        backend = _backend_of("an Atari game", request.backend, "auto", get_args(NesBackend))
        from ...wrappers.atari import make_atari

        return make_atari(
            game, num_envs, backend=backend, num_workers=num_workers, **request.options
        )
    _refuse(env, request.options, request.backend, _NO_GAME)
    from ...wrappers.make_vector_env import make_vec

    made = id_or_factory(env)
    is_rendered = request.is_filmed and isinstance(made, str)  # a function decides itself
    env_kwargs = {"render_mode": "rgb_array"} if is_rendered else None
    return make_vec(made, num_envs, num_workers=num_workers, env_kwargs=env_kwargs)


def one_env(request: EnvRequest) -> Callable[[], gymnasium.Env[Any, Any]]:
    """A function that makes one of the envs, bare where it is not a game; errors as `make_envs`."""
    env = request.env
    is_pool = env.startswith("envpool:")
    if is_cartridge(env) or atari_name(env) is not None or is_pool:
        from ..simulation.remake import OneOfVector

        alone = replace(request, num_envs=1, num_workers=None if is_pool else 0)
        made_now = [make_envs(alone)]  # options that do not apply are refused before all checks
        return lambda: OneOfVector(made_now.pop() if made_now else make_envs(alone))
    _refuse(env, request.options, request.backend, _NO_GAME)
    made = id_or_factory(env)
    if not isinstance(made, str):
        return made
    from ...wrappers.make_vector_env import find_spec

    return partial(gymnasium.make, find_spec(made), disable_env_checker=True)


def is_cartridge(env: str) -> bool:
    """True for the file of a cartridge: by its name, even if missing, or by its content."""
    path = Path(env)
    if path.suffix.lower() in _CARTRIDGE_SUFFIXES:
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_CARTRIDGE_MAGIC)) == _CARTRIDGE_MAGIC
    except OSError:  # a file that cannot be read is not a cartridge
        return False


def refuse_endless(env: str, options: EnvOptions, otherwise: str = "") -> None:
    """Refuse to count episodes of a cartridge if neither map nor option can ever end one."""
    # ``otherwise`` ends the message: what else the user can do.
    if not is_cartridge(env) or not Path(env).is_file():
        return  # the reader of the file reports that it is missing
    if "max_frames" in options or "stuck_frames" in options or options.get("life_loss") == "end":
        return
    from ...wrappers.nes.ram_map.game import Game

    if Game.load(options.get("game")).terminated is None:
        raise ValueError(
            f"--episodes: expected episodes of {env} that end, got no map that ends them, no "
            f"--max-frames and no --stuck-frames; give one of them{otherwise}"
        )


def id_or_factory(env: str, option: str = "ENV") -> str | Callable[[], gymnasium.Env[Any, Any]]:
    """Return an id that exists, or the factory that is named as module:callable."""
    module, colon, name = env.partition(":")
    if not colon:
        if message := unknown_env(env):
            raise ValueError(message)
        return env
    if not module or not name.replace(".", "").isidentifier():  # an id: it has a version
        return env
    found = load_object(option, env)
    if not callable(found):
        raise ValueError(
            f"{option} {env}: expected a function or class that makes an env, got "
            f"{type(found).__name__}"
        )
    refuse_signature(f"{option} {env}", found, 0, "no arguments")
    return cast("Callable[[], gymnasium.Env[Any, Any]]", found)


# Options that apply to one kind of env only.


def _check_nes_options(env: str, options: EnvOptions) -> None:
    """Refuse Atari's for a cartridge, and those of pictures if memory is observed."""
    _refuse(env, [name for name in options if name in ATARI_ONLY])
    unused = [_option_name(name) for name in _OF_PICTURES if name in options]
    if options.get("ram_obs") and unused:
        raise ValueError(
            f"--ram: expected no {' and no '.join(unused)}, since memory is not a picture; leave "
            f"one or the other out"
        )


def _refuse(env: str, names: Iterable[str], backend: Backend | None = None, cure: str = "") -> None:
    """Refuse options of games for an env that does not have them."""
    options = [_option_name(name) for name in names]
    if backend not in (None, "python"):  # every env runs in Python
        options.append(f"--backend {backend}")
    if options:
        verb, them = ("is", "it") if len(options) == 1 else ("are", "them")
        raise ValueError(
            f"{', '.join(options)} {verb} for {_games_with(names, backend)} only: expected none "
            f"with {env}; {cure or f'leave {them} out'}"
        )


def _backend_of(
    what: str, backend: Backend | None, default: Backend, others: tuple[object, ...]
) -> Any:
    """The backend of a game, whatever is installed; one of another kind of games is refused."""
    if backend in others:
        raise ValueError(
            f"--backend: expected one of those for {what}, got {backend!r}; Atari games have auto, "
            f"native and python, NES cartridges cynes, nes-py and stable-retro: name one of these, "
            f"or none"
        )
    return default if backend is None else backend


def _option_name(name: str) -> str:
    options = {setting: option for option, setting in OTHER_NAMES.items()}
    return f"--{options.get(name, name).replace('_', '-')}"


def _games_with(names: Iterable[str], backend: Backend | None) -> str:
    """Return the kind of games that has all of these options."""
    used = {*names, *([] if backend is None else [backend])}
    if used <= {*ATARI_ONLY, *get_args(AtariBackend)}:
        return "Atari games"
    if used <= {*NES_ONLY, *get_args(NesBackend)}:
        return "NES cartridges"
    return "Atari and NES games"


# Values of options.


def parse_size(option: str, text: str) -> tuple[int, int] | None:
    """Parse "84x96", rows and columns, or "64" for both; None is the unchanged "screen"."""
    if text == "screen":
        return None
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    if match is None:
        raise ValueError(
            f"{option}: expected ROWSxCOLUMNS such as 84x84, one number for both, or 'screen' to "
            f"keep the screen's, got {text!r}"
        )
    return int(match[1]), int(match[2] or match[1])


def parse_actions(text: str) -> str | list[str]:
    """Parse a set of actions: the name of one, or a list such as "NOOP, RIGHT, RIGHT+A"."""
    if "," not in text and "+" not in text:
        return text
    return [action.strip() for action in text.split(",")]


def parse_crop(option: str, text: str) -> str | tuple[int, int, int, int]:
    """Parse the area to cut off: "overscan", or pixels of the console's 240 x 256: "8,8,0,0"."""
    if re.fullmatch(r"[-+0-9., x]*", text) is None:
        return text
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) != 4 or not all(re.fullmatch("[0-9]{1,3}", part) for part in numbers):
        raise ValueError(
            f"{option}: expected a name such as overscan, or pixels as top,bottom,left,right such "
            f"as 8,8,0,0, got {text!r}"
        )
    top, bottom, left, right = map(int, numbers)
    return top, bottom, left, right


# Objects that are named as module:name, for envs and policies.


def load_object(option: str, name: str) -> object:
    """Import the object named "module:name"; the current folder is searched too."""
    module_name, _, path = name.partition(":")
    found = _import_module(option, module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            callables = [each for each in dir(found) if callable(getattr(found, each, None))]
            near = difflib.get_close_matches(part, callables, n=1)
            hint = f"did you mean {near[0]}?" if near else "correct the part after the colon"
            raise ValueError(
                f"{option} {name}: expected {part!r} in {module_name}, got none; {hint}"
            )
        found = cast("object", getattr(found, part))
    return found


def refuse_signature(what: str, found: object, count: int, expected: str) -> None:
    """Refuse an object that cannot be called with ``count`` arguments, before anything is done."""
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # unknown: the first call will show
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise ValueError(f"{what}: expected it to take {expected}, got {signature}") from None


def _import_module(option: str, name: str) -> object:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{option}: expected a module {name!r} in {here} or among the installed ones, got "
                f"none; correct the part before the colon"
            ) from None
        raise ValueError(
            f"{option}: module {name!r} cannot be imported: {_failed_line(error)}"
            f"{type(error).__name__}: {error}"
        ) from error


def _failed_line(error: Exception) -> str:
    """Return the line of the user's module that failed; a SyntaxError contains it itself."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return ""
    users = [frame for frame in frames if "importlib" not in frame.filename]
    last = users[-1] if users else frames[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}: "
