"""Make the envs of a recorded session again, from the facts that it stored."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from ...buffers import Field, Spec, Unprovable
from ...buffers.base.number_checks import is_whole
from ...buffers.base.optional_libraries import installed_version
from ...buffers.base.untrusted_json import mapping_of
from ...buffers.spec.space_json import space_to_json
from ...wrappers.atari_settings import AtariSettings, find_game
from ...wrappers.fixed_spaces import with_fixed_spaces
from ...wrappers.make_vector_env import find_spec
from ...wrappers.seeded_resets import SeededResets
from ..loop.session import machine_facts
from ..loop.step_result import info_of
from .guard import CURE, check_recipe, checked_spec, recorded_id, shortened
from .lanes import AnyEnv, RowForm, call_in_bounds

if TYPE_CHECKING:
    from ...wrappers.nes.env import Rom

EnvSource: TypeAlias = "str | Callable[[], AnyEnv]"
"""An env id, or ``"module:callable"``, or a function that makes one env."""

AtariBackend = Literal["native", "python"]

# What recipes may differ in: it does not change what an env shows.
_FREE = ("versions", "maker")
_LONGEST_KEY, _LONGEST_ERROR, _MOST_VERSIONS = 80, 500, 100


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Makes the envs of a session again, without limit."""

    spec: Spec  # the fields of the session's rows
    # The value that means "not there", for each info field by its name
    missing: Mapping[str, np.ndarray]
    facts: Mapping[str, object]  # of the session
    make_single: Callable[[], AnyEnv]  # makes one env with all its wrappers
    make_lane: Callable[[], AnyEnv]  # makes the same env for `play`
    gives_newest_only: bool = False  # envs of ``make_lane`` return newest frames, not stacks
    # The last observations of episodes differ from the stored ones, as those of Atari's two
    # backends do
    has_other_ends: bool = False
    sets_noops: bool = False  # no-ops are those that the metadata of the episodes have
    is_given: bool = False  # the envs are the user's, not made from the session's facts

    def single(self) -> AnyEnv:
        """Make one env with all its wrappers."""
        return with_fixed_spaces(self.make_single())

    def lane(self) -> AnyEnv:
        """Make an env whose resets draw no seed of their own."""
        return with_fixed_spaces(self.make_lane())

    @property
    def form(self) -> RowForm:
        """The form of the session's rows."""
        return RowForm(self.spec, self.missing, not self.gives_newest_only)

    def options(self, metadata: Mapping[str, object]) -> Mapping[str, object] | None:
        """Options of the reset that begins an episode with these metadata."""
        return {"noops": metadata["noops"]} if self.sets_noops else None

    def can_begin(self, metadata: Mapping[str, object]) -> bool:
        """The metadata of an episode have what its reset needs."""
        return not self.sets_noops or is_whole(metadata.get("noops"))

    @property
    def differences(self) -> list[str]:
        """Versions and facts of the machine that were others when the session was recorded."""
        return changed_since(self.facts)


def maker_of(
    facts: Mapping[str, object],  # one of ``replay.sessions``
    spec: Spec,
    *,
    # How to make one env, where the facts do not suffice: an id, "module:callable" or a function.
    # "module:Id-v0" with the recorded id imports the module, and makes the env with its recorded
    # arguments and wrappers.
    env: EnvSource | None = None,
    rom: Rom | None = None,  # the NES cartridge: a path, or the file's bytes
    backend: AtariBackend | None = None,  # to play an Atari game on; None: the recorded one
    # Make one, unless it is the facts that say how: then `checked_lane` does it.
    is_checked: bool = True,
) -> EnvMaker:
    """Find out how to make a session's envs again; one is made, to compare it with the facts."""
    # Facts come from a file: no module is imported that they name. Ids must be registered, and
    # wrappers be Gymnasium's or Stepwell's, with arguments in the range of `guard`. An env that is
    # made by them is made in a process with bounds.
    known = mapping_of(facts.get("recipe"))
    if isinstance(env, str) and _names_recorded(env, facts):
        env = None  # its module is imported now, and the facts say more than the id
    if env is None and not set(known) - {"source"}:
        source = known.get("source")
        origin = "" if source is None else f", as its rows were imported from {shortened(source)}"
        raise ValueError(
            f"the session has no recipe, from which its envs could be made{origin}: expected rows "
            f"that a Collector recorded; they cannot be played again unless you {CURE}"
        )
    if env is None and facts.get("vector_wrappers"):
        raise ValueError(
            f"the rows went through vector wrappers {facts['vector_wrappers']}: expected those of "
            f"single envs; {CURE}"
        )
    kind = known.get("maker")
    missing = _missing_values(facts, spec)
    base = partial(EnvMaker, spec, missing, facts)
    if backend is not None and (env is not None or kind != "make_atari"):
        raise ValueError(
            f"backend={backend!r}: expected an Atari game of make_atari, got {kind}; leave it out"
        )
    if rom is not None and (env is not None or kind != "make_nes"):
        raise ValueError(f"rom: expected envs of make_nes, got {kind}; leave it out")
    if env is not None:
        make = _given(env)
        maker = base(make, partial(unseeded, make), is_given=True)
    elif kind == "make_atari":
        maker = _atari(base, known, spec, backend)
    elif kind == "make_nes":
        maker = _nes(base, known, spec, rom)
    elif kind == "envpool":
        raise ValueError(
            f"the envs {known.get('id')} are EnvPool's: expected envs that can be stepped one by "
            f"one; say how to make one that plays the same (env=..., --env module:callable)"
        )
    else:
        maker = _registered(base, facts, known)
    if maker.is_given:
        _check_made(maker, known)
    elif is_checked:
        try:
            call_in_bounds(partial(_check_made, maker, known))
        except Unprovable as error:
            raise ValueError(f"the env cannot be made again: {error}") from None
    return maker


def checked_lane(maker: EnvMaker) -> AnyEnv:
    """Make one env to compare it with the facts, and another one for `play`."""
    _check_made(maker, cast("Mapping[str, Any]", maker.facts["recipe"]))
    return maker.lane()


# Atari.


def _atari(
    base: Callable[..., EnvMaker],
    recipe: Mapping[str, Any],
    spec: Spec,
    backend: AtariBackend | None,
) -> EnvMaker:
    recorded = recipe.get("backend")
    if recorded not in ("native", "python") or backend not in (None, "native", "python"):
        raise ValueError(
            f"backend: expected 'native' or 'python', got {recorded!r} and {backend!r}: correct it"
        )
    settings = _atari_settings(recipe, spec)
    chosen: AtariBackend = backend or cast("AtariBackend", recorded)
    if chosen == "native" != recorded and settings.noop_max:
        raise ValueError(
            f"backend='native': expected envs without random no-ops, got noop_max="
            f"{settings.noop_max}, whose numbers the native backend draws itself; use 'python'"
        )
    is_stacked = any(field.stack > 1 for field in spec.of_kind("observation"))
    if chosen == "native":
        make = partial(_native_env, settings)
        lane, newest_only = make, False
    else:
        from ...wrappers.atari import atari_env, check_buildable

        check_buildable(settings)
        make = partial(atari_env, settings)
        lane = partial(_fused_env, settings) if is_stacked else partial(unseeded, make)
        # Of a stack the newest frame is stored: a lane plays faster without stacking.
        newest_only = is_stacked
    # A version of stepwell that reads the settings otherwise would play another game.
    _compare(settings.recipe(cast("AtariBackend", recorded)), recipe)
    return base(
        make,
        lane,
        gives_newest_only=newest_only,
        has_other_ends=chosen != recorded,
        sets_noops=chosen != recorded and settings.noop_max > 0,
    )


def _atari_settings(recipe: Mapping[str, Any], spec: Spec) -> AtariSettings:
    """The settings of a recipe, if they fit the stored rows: a file could ask for any size."""
    names = [field.name for field in dataclasses.fields(AtariSettings)]
    lacking = [name for name in names if name not in recipe]
    if lacking:
        raise ValueError(f"recipe of make_atari: expected {lacking[0]!r} in it, got none")
    check_recipe(recipe)
    values = {name: recipe[name] for name in names}
    size = values["size"]
    values["size"] = tuple(size) if isinstance(size, list) else size
    values["game"] = find_game(str(values["game"]))
    _check_picture(spec, values["frame_stack"], values["size"])
    try:
        return AtariSettings(**values)
    except TypeError as error:
        raise ValueError(f"recipe of make_atari: {error}") from None


def _check_picture(spec: Spec, frame_stack: object, size: object) -> None:
    """Refuse to make pictures of other sizes than the stored ones, which may be enormous."""
    fields = spec.of_kind("observation")
    shape: tuple[int | None, ...] = fields[0].source_shape if fields else ()
    if frame_stack is None:  # no axis
        shape = (None, *shape)
    if shape[:1] != (frame_stack,):
        raise _other("frame_stack", shape[:1], frame_stack)
    if size is not None and size != shape[1:3]:
        raise _other("size", shape[1:3], size)


def _fused_env(settings: AtariSettings) -> AnyEnv:
    from ...wrappers.atari_python import FusedAtari  # loads ale-py

    return FusedAtari(settings)


def _native_env(settings: AtariSettings) -> AnyEnv:
    from ...wrappers.atari_native import NativeAtari  # loads ale-py

    return OneOfVector(NativeAtari(settings, 1, 1))


class OneOfVector(gymnasium.Env[Any, Any]):
    """A vector env of one env, such as an Atari game of the native backend, as an env."""

    # Its reset of all envs equals the automatic one at the end of an episode.

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self._envs = envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.metadata = envs.metadata

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset it."""
        observation, info = self._envs.reset(seed=seed, options=options)
        return observation[0], info_of(info, 0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step it."""
        observation, reward, terminated, truncated, info = self._envs.step(np.array([action]))
        flags = bool(terminated[0]), bool(truncated[0])
        return observation[0], float(reward[0]), *flags, info_of(info, 0)

    def close(self) -> None:
        """Close the vector env."""
        self._envs.close()


# NES.


def _nes(
    base: Callable[..., EnvMaker], recipe: Mapping[str, Any], spec: Spec, rom: Rom | None
) -> EnvMaker:
    from ...wrappers.nes.cartridge import Cartridge

    cartridge = mapping_of(recipe.get("cartridge"))
    if rom is None:
        raise ValueError(
            f"the rows are of the NES cartridge {cartridge.get('name')!r} (SHA-256 "
            f"{cartridge.get('sha256')}): expected its file, got none; give it "
            f"(rom=..., --rom FILE)"
        )
    read = Cartridge.read(rom)
    if read.sha256 != cartridge.get("sha256"):
        raise ValueError(
            f"rom: expected the cartridge with the SHA-256 {cartridge.get('sha256')}, got "
            f"{read.name} with {read.sha256}; give the file that the rows were recorded with"
        )
    if recipe.get("start") is not None:
        raise ValueError(
            "the episodes begin at snapshots, of which the store has only fingerprints: expected "
            "boot scripts; say how to make one env (env=..., --env module:callable)"
        )
    check_recipe(recipe)
    size = None if recipe.get("ram_obs") else recipe.get("size")
    _check_picture(spec, recipe.get("frame_stack"), tuple(size) if isinstance(size, list) else size)
    make = partial(_nes_env, read, dict(recipe))
    return base(make, partial(unseeded, make))


def _nes_env(cartridge: Any, recipe: Mapping[str, Any]) -> AnyEnv:
    from ...wrappers.nes.env import NesEnv
    from ...wrappers.nes.ram_map.game import Game
    from ...wrappers.nes.vector import PictureSettings, with_wrappers

    # JSON has lists where the settings are tuples.
    def pair(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    try:
        game = Game.load(cast("Mapping[str, Any]", recipe["game"]))
        picture = PictureSettings(
            crop=pair(recipe["crop"]),
            size=pair(recipe["size"]),
            grayscale=bool(recipe["grayscale"]),
            frame_stack=recipe["frame_stack"],
            life_loss=recipe["life_loss"],
            reward_clip=recipe["reward_clip"],
        )
        names = ("allow_opposites", "frame_skip", "pool", "noop_max", "sticky", "boot")
        limits = ("max_frames", "stuck_frames", "ram_obs")
        bare = partial(
            NesEnv,
            cartridge,
            backend=recipe["backend"],
            game=game,
            actions="multibinary" if recipe["is_multibinary"] else recipe["actions"],
            start_rule=recipe["start_rule"] or "random",
            **{name: recipe[name] for name in (*names, *limits)},
        )
    except KeyError as error:
        raise ValueError(f"recipe of make_nes: expected {error} in it, got none") from None
    picture.check(game, ram_obs=bool(recipe["ram_obs"]), has_info=True)
    env = with_wrappers(bare, picture)
    env.metadata = {
        **env.metadata,
        "stepwell": {**env.unwrapped.metadata["stepwell"], **picture.recipe()},
    }
    return env


# All others.


def _given(env: EnvSource) -> Callable[[], AnyEnv]:
    """The user's way to make an env."""
    if callable(env):
        return env
    if not isinstance(env, str):
        raise TypeError(
            f"env: expected an id, 'module:callable' or a function that makes an env, got {env!r}"
        )
    module, colon, name = env.partition(":")
    if not colon or "-v" in name:
        return partial(gymnasium.make, find_spec(env), disable_env_checker=True)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"env {env!r}: expected module:callable, got {error}; correct it"
        ) from None
    if not callable(found):
        raise ValueError(f"env {env!r}: expected a function, got {type(found).__name__}")
    return cast("Callable[[], AnyEnv]", found)


def _names_recorded(env: str, facts: Mapping[str, object]) -> bool:
    """The user names the module that registers the env of the facts; it is imported."""
    module, colon, name = env.rpartition(":")
    if not (colon and module and name == recorded_id(facts)):
        return False
    find_spec(env)
    return True


def _registered(
    base: Callable[..., EnvMaker], facts: Mapping[str, object], recipe: Mapping[str, Any]
) -> EnvMaker:
    """A maker by the env spec of the facts."""
    text = facts.get("env_spec")
    if facts.get("shared_generator"):
        raise ValueError(
            "one generator drew for all envs of the session, so that none can be played alone: "
            "expected envs with one each; collect with stepwell.make_vec, or with "
            "vectorization_mode='sync'"
        )
    if not isinstance(text, str):
        raise ValueError(f"{_why_no_spec(recipe)}; {CURE}")
    make = partial(_made_of, checked_spec(text, facts.get("env_module")))
    return base(make, partial(unseeded, make))


def _made_of(spec: EnvSpec) -> AnyEnv:
    """The env of a spec; stores of earlier versions have its tuples as lists."""
    try:
        return gymnasium.make(spec)
    except Exception:
        kwargs = {name: _as_tuple(value) for name, value in spec.kwargs.items()}
        if kwargs == spec.kwargs:
            raise
        with contextlib.suppress(Exception):
            return gymnasium.make(dataclasses.replace(spec, kwargs=kwargs))
        raise


def _as_tuple(value: object) -> object:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _why_no_spec(recipe: Mapping[str, Any]) -> str:
    """The reason why a session has no env spec."""
    found = recipe.get("wrappers")
    for wrapper in found if isinstance(found, list) else ():
        if isinstance(wrapper, Mapping) and wrapper.get("kwargs") is None:
            return (
                f"the wrapper {wrapper.get('name')} did not record its arguments: expected "
                f"wrappers with gymnasium.utils.RecordConstructorArgs"
            )
    return (
        f"the session does not say how its envs {recipe.get('id') or recipe.get('env')} were made: "
        f"expected an env spec of gymnasium's, got none"
    )


def unseeded(make: Callable[[], AnyEnv]) -> AnyEnv:
    """An env whose resets draw no seed of their own: episodes begin with the seeds of the store."""
    env = make()
    while isinstance(env, SeededResets):
        env = env.env
    return env


# Comparison with the facts.


def _check_made(maker: EnvMaker, recipe: Mapping[str, Any]) -> None:
    """Make one env, and compare it with the facts."""
    try:
        env = maker.make_single()
        env = with_fixed_spaces(env) if isinstance(env, gymnasium.Env) else env
    except ImportError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]
        raise ValueError(
            f"the env cannot be made again: expected no error, got {what}; {CURE}"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"env: expected a function that makes an env, got {type(env).__name__}")
    try:
        _check_spaces(maker, env)
        if not maker.is_given and recipe.get("maker") != "make_atari":
            _check_recipe(env, recipe)
    finally:
        env.close()


def _check_recipe(env: AnyEnv, stored: Mapping[str, Any]) -> None:
    if stored.get("maker") == "make_nes":
        now = dict(cast("Mapping[str, Any]", env.metadata["stepwell"]))
        now["cartridge"] = {**now["cartridge"], "name": stored["cartridge"].get("name")}
    elif stored.get("maker") == "make_vec":
        from ...wrappers.recipe import recipe_of  # loads all of gymnasium's wrappers

        now = recipe_of(env, None)
    else:
        now = {
            "env": env.spec.id if env.spec is not None else type(env.unwrapped).__qualname__,
            "observation_space": str(env.observation_space),
            "action_space": str(env.action_space),
        }
    _compare(now, stored)


def _compare(made: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse an env of another recipe than the recorded one, with the first difference."""
    now = cast("dict[str, Any]", json.loads(json.dumps(made)))
    for key in sorted({*now, *stored} - {*_FREE}):
        if _plain(now.get(key)) != _plain(stored.get(key)):
            raise ValueError(
                f"the env that can be made again differs from the recorded one: expected "
                f"{key[:_LONGEST_KEY]} {shortened(stored.get(key))}, got "
                f"{shortened(now.get(key))}; {CURE}"
            )


def _plain(value: object) -> object:
    """The value without how it is drawn."""
    if isinstance(value, Mapping):
        return {key: one for key, one in value.items() if key not in ("render_mode", "versions")}
    return value


def _check_spaces(maker: EnvMaker, env: AnyEnv) -> None:
    """Compare the env's spaces with the stored rows, and with those of the facts."""
    found = Spec.from_spaces(env.observation_space, env.action_space)
    for kind in ("observation", "action"):
        stored = {field.name: field for field in maker.spec.of_kind(kind)}
        now = {field.name: field for field in found.of_kind(kind)}
        for name in sorted({*stored, *now}):
            was, new = stored.get(name), now.get(name)
            if was is None or new is None or _form(was) != _form(new):
                raise _other(name, was and _form(was), new and _form(new))
    if (maker.spec.observation, maker.spec.action) != (found.observation, found.action):
        raise _other("structure", maker.spec.observation, found.observation)
    stored_spaces = mapping_of(maker.facts.get("spaces"))
    for name, space in (("observation", env.observation_space), ("action", env.action_space)):
        stored_space = stored_spaces.get(name)
        if stored_space is not None:
            made = space_to_json(space)
            if json.dumps(stored_space) != json.dumps(made):
                raise _other(f"{name} space", shortened(stored_space), shortened(made))


def _form(field: Field) -> tuple[str, tuple[int, ...]]:
    return field.dtype, field.source_shape


def _other(name: str, expected: object, got: object) -> ValueError:
    return ValueError(
        f"the env that can be made again differs from the recorded one: expected {name} "
        f"{expected}, got {got}; {CURE}"
    )


# Info fields and versions.


def _missing_values(facts: Mapping[str, object], spec: Spec) -> dict[str, np.ndarray]:
    """The value that means "not there" of each info field; guessed where facts lack it."""
    known = mapping_of(facts.get("missing"))
    found: dict[str, np.ndarray] = {}
    for field in spec.of_kind("info"):
        dtype = field.numpy_dtype
        usual = {"b": False, "f": np.nan, "c": np.nan, "i": -1, "u": 0}[dtype.kind]
        value = known.get(field.key, usual)
        try:
            found[field.name] = np.broadcast_to(
                np.array(usual if value is None else value, dtype), field.shape
            )
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"missing value of {field.name}: expected {dtype} of shape {field.shape}, got "
                f"{str(value)[:80]}"
            ) from None
    return found


def changes_of(makers: Iterable[EnvMaker]) -> str:
    """The changes since sessions were recorded, as the end of a sentence; empty for none."""
    changed = ", ".join(each for maker in makers for each in maker.differences)
    return f"; since then changed: {changed}" if changed else ""


def changed_since(facts: Mapping[str, object]) -> list[str]:
    """The versions and facts of the machine in facts of a session that are others now."""
    found: list[str] = []
    for name, was in sorted(mapping_of(facts.get("versions")).items())[:_MOST_VERSIONS]:
        # Each is looked for on disk.
        now = installed_version(str(name)) or "not installed"
        if was != now:
            found.append(f"{name} {was!s:.80}, now {now}")
    machine = mapping_of(facts.get("machine"))
    for name, now in machine_facts().items():
        was = machine.get(name)
        if was is not None and was != now:
            found.append(f"{name} {was!s:.80}, now {now}")
    return found
