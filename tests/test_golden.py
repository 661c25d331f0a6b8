"""What users get, as it was when tests/golden.json was last written: rows, batches, names, help.

A change of the structure changes nothing here. What is changed on purpose is changed in the file,
in the same commit: `python tests/test_golden.py` writes it anew, in an environment with all extras.

All is made from fixed seeds, and compared as hashes of the very bytes. Whole numbers and fractions
of two are the same on every machine: FrozenLake, Blackjack, CliffWalking, data sets. Others depend
on what numpy, BLAS, the C library and OpenCV make of a processor, to the last bit (`NEEDS`): these
parts are compared where a probe of it gives what it gave where the file was written.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeAlias, get_args

import cv2
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeAwareObservation

if __name__ == "__main__":  # pytest has these folders from pyproject.toml
    sys.path.insert(1, str(Path(__file__).parents[1] / "examples"))

import stepwell as sw
from demo_rom import write_demo
from stepwell.buffers import Chunk, DiskStorage, End, Field, JoinedStorage, MemoryStorage, Storage
from stepwell.buffers.bridges import export_episodes, format_names, import_episodes
from stepwell.buffers.sampling.requests import Align, Borders, Draw, Goals
from stepwell.collectors.cli.app import every_command
from support.contents import content, hash_of, leaves, sha
from support.crash.disk_faults import NoSyncFiles
from support.exchanged_stores import IMAGE, VECTOR, tagged_store
from support.needed import skip_without
from support.source_tree import PUBLIC_MODULES

FILE = Path(__file__).with_name("golden.json")
Lines = dict[str, str]  # {what: how it is}
NEVER = 1e9  # seconds: rows are stored at the ends of calls, and not when a machine is slow


def rows_of(replay: sw.SequenceReplayBuffer) -> str:
    """All that is known of the episodes, whatever the order in which they were stored."""
    episodes = sorted(replay.iter_episodes(), key=lambda one: (one.stream, one.id))
    values = [
        [one.stream, one.first_row, int(one.end), dict(one.metadata), dict(one.fields)]
        for one in episodes
    ]
    counts = f"{replay.steps} steps in {replay.episodes} episodes"
    return f"{counts}, digest {replay.digest()}, rows {hash_of(values)}"


# Rows: the same envs by `Collector.collect`, by `record`, and as rollouts

Envs: TypeAlias = "gym.Env[Any, Any] | VectorEnv[Any, Any, Any]"
MakeEnvs = Callable[[], Envs]
WRAPPERS: dict[str, tuple[Any, ...]] = {
    "CartPole-v1": (),
    "FrozenLake-v1": (),
    "Blackjack-v1": (),  # a Tuple
    "Pendulum-v1": (),
    "CliffWalking-v1": (partial(TimeAwareObservation, flatten=False),),  # a Dict
    "MountainCar-v0": (partial(FrameStackObservation, stack_size=3),),
}
INFO = {"FrozenLake-v1": {"prob": -1.0}}


def gym_envs(name: str, mode: AutoresetMode | None) -> Envs:
    if mode is None:
        return reduce(
            lambda env, wrap: wrap(env), WRAPPERS[name], gym.make(name, max_episode_steps=20)
        )
    settings = {"autoreset_mode": mode}
    return gym.make_vec(name, 2, "sync", settings, WRAPPERS[name], max_episode_steps=20)


class Choose:
    """A policy with values, and with a state if that is wanted, from which nothing follows."""

    def begin(self, space: gym.Space[Any], rng: np.random.Generator) -> None:
        self.space, self.rng = space, rng

    def __call__(self, observation: Any, is_first: np.ndarray) -> tuple[Any, dict[str, Any]]:
        value = self.rng.integers(-8, 8, len(is_first)) / 4
        return actions(self.space, len(is_first), self.rng), {"value": value.astype(np.float32)}

    def value(self, observation: Any) -> np.ndarray:
        return np.full(len(next(iter(leaves(observation)))[1]), 0.5, np.float32)


class ChooseByAge(Choose):
    def initial_state(self, num_envs: int) -> np.ndarray:
        return np.zeros((num_envs, 2), np.float32)

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any) -> Any:  # type: ignore[override]
        chosen, extras = super().__call__(observation, is_first)
        return chosen, state + 1, extras

    def value(self, observation: Any, state: Any) -> Any:  # type: ignore[override]
        return state[:, 0] / 4


def actions(space: gym.Space[Any], num: int, rng: np.random.Generator) -> np.ndarray:
    if isinstance(space, gym.spaces.Box):
        quarters = rng.integers(-4, 5, (num, *space.shape)) / 4
        return (quarters * space.high).astype(space.dtype)
    assert isinstance(space, gym.spaces.Discrete)
    return rng.integers(0, space.n, num)


def collected(make: MakeEnvs, steps: int = 60, **more: Any) -> str:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(make(), Choose(), replay, seed=3, flush_seconds=NEVER, **more) as collector:
        collector.collect(steps=steps)
        collector.collect(episodes=2)
        collector.collect(seeds=(7, 5))
    return rows_of(replay)


def recorded(make: MakeEnvs, steps: int = 60, **more: Any) -> str:
    replay, rng = sw.SequenceReplayBuffer(), np.random.default_rng(4)
    envs: Any = make()
    single, num = not isinstance(envs, VectorEnv), getattr(envs, "num_envs", 1)
    space = envs.action_space if single else envs.single_action_space
    by_hand = single or envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env: Any = sw.record(envs, replay, flush_seconds=NEVER, **more)
    env.reset(seed=3)
    for step in range(steps):
        env.log_extras(value=np.float32(step) if single else np.full(num, step, np.float32))
        chosen = actions(space, num, rng)
        _, _, terminated, truncated, _ = env.step(chosen[0] if single else chosen)
        if by_hand and np.any(terminated | truncated):
            env.reset(options=None if single else {"reset_mask": terminated | truncated})
    env.close()
    return rows_of(replay)


def rolled(make: MakeEnvs, steps: int = 60, **more: Any) -> str:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(make(), Choose(), replay, seed=3, flush_seconds=NEVER, **more) as collector:
        rollouts = [collector.rollout(rows) for rows in (steps // 2, 7)]
    return f"{rows_of(replay)}, rollouts {hash_of(rollouts)}"


CONSUMERS = {"collect": collected, "record": recorded, "rollout": rolled}


def of_each_consumer(make: MakeEnvs, **more: Any) -> Lines:
    return {name: consume(make, **more) for name, consume in CONSUMERS.items()}


def gym_rows(name: str) -> Lines:
    lines: Lines = {}
    for mode in (*AutoresetMode, None):
        found = of_each_consumer(partial(gym_envs, name, mode), info=INFO.get(name))
        label = "a single env" if mode is None else mode.name
        lines |= {f"{how} {label}": line for how, line in found.items()}
    return lines


def workers_rows() -> Lines:
    make = partial(sw.make_vec, "FrozenLake-v1", 2, env_kwargs={"max_episode_steps": 20})
    return {f"collect, {num} workers": collected(partial(make, num_workers=num)) for num in (0, 2)}


def pong_rows(backend: Any) -> Lines:
    settings: dict[str, Any] = {
        "num_workers": int(backend == "native"),
        "max_frames": 60,
        "size": (21, 21),
    }
    make = partial(sw.make_atari, "Pong", 2, backend=backend, **settings)
    return of_each_consumer(make, steps=24)


def nes_rows() -> Lines:
    skip_without(["cynes"])
    rom, game = write_demo(Path())
    settings: dict[str, Any] = {"num_workers": 0, "max_frames": 60, "noop_max": 9, "size": (21, 21)}
    make = partial(sw.make_nes, rom, 2, game=game, **settings)
    return of_each_consumer(make, steps=24)


# Batches: of a store in which all that the requests name is found

EXTRA = (Field("extra/value", "float32", (), "raw"), Field("extra/state", "float32", (2,), "raw"))
OTHERS = (
    Field("action", "int64", (), "narrow"),
    Field("reward", "float64", (), "narrow"),
    Field("info/lives", "int64", (), "narrow"),
)
FRAMES = sw.Spec(
    (Field("observation", "uint8", (3, 2), "zstd", 3, "zero"), *OTHERS, *EXTRA),
    "observation",
    "action",
)
GOAL_NAMES = ("achieved_goal", "desired_goal", "observation")
GOALS = sw.Spec(
    (*(Field(f"observation/{name}", "float32", (2,), "raw") for name in GOAL_NAMES), *OTHERS),
    {name: f"observation/{name}" for name in GOAL_NAMES},
    "action",
)
ENDS = (End.TERMINATED, End.TRUNCATED, End.NONE, End.TERMINATED | End.TRUNCATED)


def fill(storage: Storage, seed: int) -> Storage:
    """Episodes of 1 to 9 steps in 3 streams and chunks of 4 rows, with all kinds of ends."""
    rng = np.random.default_rng(seed)
    for number in range(14):
        rows = number * 5 % 9 + 2
        columns = {
            field.name: rng.integers(0, 99, (rows, *field.shape)).astype(field.dtype)
            for field in storage.spec.fields
        }
        columns["reward"] = columns["reward"] / 4
        columns["reward"][0] = 0
        for name in ("action", *(field.name for field in EXTRA)):
            if name in columns:
                columns[name][-1] = 0
        task = {"task": "ab"[number % 2]}
        chunk = Chunk(number, number % 3, 0, ENDS[number % 4], columns, task)
        for part in chunk.split(4):
            storage.add([part])
    return storage


@contextlib.contextmanager
def stored(where: str, spec: sw.Spec) -> Iterator[Storage]:
    with contextlib.ExitStack() as stack:
        if where == "in RAM":
            yield fill(MemoryStorage(spec), 0)
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        disk = DiskStorage.create(Path(folder) / "store", spec, files=NoSyncFiles())
        stack.callback(disk.close)
        fill(disk, 0)
        yield disk if where == "on disk" else JoinedStorage([fill(MemoryStorage(spec), 1), disk])


def drawn(storage: Storage, request: Any) -> str:
    """A hash of two draws, or the kind of the error, of a sampler that has drawn nothing yet."""
    replay, rng = sw.SequenceReplayBuffer.of(storage), np.random.default_rng(5)
    try:
        batches = [replay.sample(request, rng=rng)]
    except ValueError as error:
        return type(error).__name__
    if getattr(request, "draw", "") == "priorities":
        replay.update_priorities(batches[0].ids, np.arange(len(batches[0].ids)) / 4)
    return hash_of([*batches, replay.sample(request, rng=rng), replay.count(request)])


def is_task_a(metadata: Mapping[str, object]) -> bool:
    return metadata["task"] == "a"


def sequences(storage: Storage) -> Lines:
    kinds = itertools.product(get_args(Borders), get_args(Draw), get_args(Align))
    requests = {" ".join(kind): sw.Sequences(6, 4, *kind) for kind in kinds}
    options: dict[str, Mapping[str, Any]] = {
        "burn_in": {"burn_in": 2},
        "burn_in of transitions": {"burn_in": 2, "align": "transition", "borders": "pad_after"},
        "stack": {"stack": True},
        "stack, cross": {"stack": True, "borders": "cross"},
        "stack, pad_before": {"stack": True, "borders": "pad_before"},
        "time_major": {"time_major": True},
        "fields": {"fields": ("reward", "extra")},
        "state": {"state": ("state",)},
        "beta": {"beta": 1.0, "draw": "priorities"},
        "where": {"where": {"task": "b"}},
        "where, a function": {"where": is_task_a, "draw": "distinct"},
    }
    requests |= {name: sw.Sequences(6, 4, **given) for name, given in options.items()}
    lines = {name: drawn(storage, request) for name, request in requests.items()}
    return {**lines, **orders(storage)}


def orders(storage: Storage) -> Lines:
    """Sequences by an order of the caller's."""
    replay, request = sw.SequenceReplayBuffer.of(storage), sw.Sequences(5, 3)
    ids = replay.sample(request, rng=np.random.default_rng(6)).ids[::-1]
    return {
        "take": hash_of(replay.take(request, ids)),
        "field_rows": hash_of(replay.field_rows("observation", ids)),
        "epoch": hash_of(list(replay.epoch(request, seed=1))),
        "epoch, in order": hash_of(list(replay.epoch(request, stride=2, shuffle=False))),
        "epoch, shard": hash_of(list(replay.epoch(request, shard=(1, 2), drop_last=True))),
        "iter_episodes": hash_of([one.fields for one in replay.iter_episodes(where={"task": "a"})]),
    }


def transitions(storage: Storage) -> Lines:
    options: dict[str, Mapping[str, Any]] = {
        **{draw: {"draw": draw} for draw in get_args(Draw)},
        **{f"{draw}, n_step": {"draw": draw, "n_step": 3, "gamma": 0.5} for draw in get_args(Draw)},
        "stack=False": {"stack": False},
        "fields": {"fields": ("reward", "extra")},
        "where": {"where": {"task": "b"}, "n_step": 2, "gamma": 0.5},
    }
    return {name: drawn(storage, sw.Transitions(9, **given)) for name, given in options.items()}


def hindsight(storage: Storage) -> Lines:
    def reward(achieved: Any, desired: Any, infos: list[Mapping[str, Any]]) -> Any:
        return (achieved - desired).sum(-1) + [float(one["lives"]) for one in infos]

    requests = itertools.product(get_args(Goals), (4, 1.5))
    return {
        f"{strategy} {number}": drawn(
            storage, sw.Transitions(9, relabel=sw.Hindsight(reward, strategy, number))
        )
        for strategy, number in requests
    }


def episodes(storage: Storage) -> Lines:
    options: dict[str, Mapping[str, Any]] = {
        **{align: {"align": align} for align in get_args(Align)},
        "stack": {"stack": True},
        "time_major": {"time_major": True},
        "fields": {"fields": ("action",)},
        "where": {"where": {"task": "b"}},
    }
    return {name: drawn(storage, sw.Episodes(4, **given)) for name, given in options.items()}


def batches_of(draw: str, where: str) -> Lines:
    with stored(where, GOALS if draw == "hindsight" else FRAMES) as storage:
        return DRAWS[draw](storage)


def minibatches() -> Lines:
    lines: Lines = {}
    for policy, mode in itertools.product((Choose, ChooseByAge), AutoresetMode):
        with sw.Collector(gym_envs("FrozenLake-v1", mode), policy(), seed=3) as collector:
            rollout = collector.rollout(12)
        name = f"{policy.__name__} {mode.name}"
        lines[f"{name}, advantages"] = hash_of(rollout.advantages(0.5, 0.5))
        lines[name] = hash_of(list(rollout.minibatches(5, epochs=2)))
        lines[f"{name}, drop_last"] = hash_of(list(rollout.minibatches(5, drop_last=True)))
        for length in (None, 4) if policy is ChooseByAge else (None,):
            lines[f"{name}, sequences of {length}"] = hash_of(
                list(rollout.sequences(1, length=length))
            )
    return lines


# Data sets: what lies in their files, as the library of each kind of file reads it


def exported(name: str) -> Lines:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(Path.cwd()))
        return exported_here(name)


def exported_here(name: str) -> Lines:
    lines: Lines = {}
    for kind, field in (("images", IMAGE), ("vectors", VECTOR)):
        replay, out = tagged_store(field), f"{kind}/{name}-v0"
        Path(kind).mkdir(exist_ok=True)
        try:
            export_episodes(replay, name, out)
        except ImportError as error:
            pytest.skip(f"needs {error.name}")
        except ValueError:
            lines[kind] = "refused"
            continue
        found = sorted(path for path in Path(kind).rglob("*") if path.is_file())
        for suffix in sorted({path.suffix for path in found}):
            files = [path for path in found if path.suffix == suffix]
            lines[f"{kind}, {len(files)} files *{suffix}"] = hash_of(
                [(path.as_posix(), content(path)) for path in files]
            )
        back = sw.SequenceReplayBuffer()
        import_episodes(name, out, back)
        lines[f"{kind}, read back"] = rows_of(back)
    return lines


# Names and help


def names(module: str) -> Lines:
    """The public names of a module, each with its parameters, and those of its own methods."""
    lines: Lines = {}
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        value = getattr(loaded, name)
        lines[name] = parameters(value)
        if module != "stepwell" and inspect.isclass(value):
            lines |= {f"{name}.{one}": parameters(what) for one, what in members(value)}
    return lines


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that Stepwell's own classes define."""
    for each in reversed(owner.__mro__):
        if each.__module__.startswith("stepwell"):
            for name, value in vars(each).items():
                if not name.startswith("_") and (
                    callable(value) or isinstance(value, property | classmethod | staticmethod)
                ):
                    yield name, value


def parameters(value: Any) -> str:
    """The parameters of a function or a class, without types; or what else it is."""
    value = getattr(value, "__func__", value)
    if not callable(value):
        return type(value).__name__
    try:
        signature = inspect.signature(value)
    except ValueError:  # an error's class, which is not written in Python
        return "class"
    plain_types = (int, float, str, tuple, type(None), np.ndarray)
    told = []
    for one in signature.parameters.values():
        default = one.default
        if default is not one.empty and type(default) not in (*plain_types, bool):
            default = Ellipsis
        told.append(one.replace(annotation=one.empty, default=default))
    return str(signature.replace(parameters=told, return_annotation=signature.empty))


def command_lines() -> Lines:
    """A hash of what each command's help is made of, however Typer lays it out, and its options."""
    lines: Lines = {}
    for called, command, _ in every_command():
        name = called.removeprefix("stepwell ")
        words, options = [command.help], list[str]()
        for one in command.params:
            if "--install-completion" in one.opts or "--show-completion" in one.opts:
                continue  # Typer's own
            options += [*one.opts, *one.secondary_opts]
            words += [*one.opts, one.help, one.metavar or "", one.required, one.default]
        lines[name] = sha(" ".join(map(str, words)))
        lines[f"{name}, options"] = " ".join(sorted(options))
    return lines


# The file, part by part


def probes() -> Lines:
    """Hashes of what a processor decides: sines, powers, sums and products; averages of pixels."""
    numbers = np.random.default_rng(0).uniform(0.1, 9.0, (64, 16))
    single = numbers.astype(np.float32)
    found = [np.sin(numbers), np.cos(numbers), np.exp(numbers), numbers**0.6, numbers @ numbers[0]]
    found += [np.sin(single), single**0.6, single @ single[0], single.mean(0), single.std(1)]
    pixels = np.random.default_rng(0).integers(0, 256, (210, 160), np.uint8)
    averages = cv2.resize(pixels, (21, 21), interpolation=cv2.INTER_AREA)
    return {"arithmetic": hash_of(found), "averages": hash_of(averages)}


DRAWS = {draw.__name__: draw for draw in (sequences, transitions, hindsight, episodes)}
PARTS: dict[str, Callable[[], Lines]] = {
    "probes": probes,
    **{f"rows {name}": partial(gym_rows, name) for name in WRAPPERS},
    "rows of workers": workers_rows,
    "rows Pong native": partial(pong_rows, "native"),
    "rows Pong python": partial(pong_rows, "python"),
    "rows NES": nes_rows,
    **{
        f"{draw} {where}": partial(batches_of, draw, where)
        for draw in DRAWS
        for where in ("in RAM", "on disk", "joined")
    },
    "minibatches": minibatches,
    **{f"export {name}": partial(exported, name) for name in format_names()},
    **{f"names of {module}": partial(names, module) for module in PUBLIC_MODULES},
    "formats": lambda: dict.fromkeys(format_names(), "format"),
    "commands": command_lines,
}
GAMES = ("rows Pong native", "rows Pong python", "rows NES")
COMPUTED = ("rows CartPole-v1", "rows MountainCar-v0", "rows Pendulum-v1", "export lerobot")
NEEDS = {
    **dict.fromkeys(GAMES, "averages"),
    **dict.fromkeys(COMPUTED, "arithmetic"),
    **{part: "arithmetic" for part in PARTS if part.startswith((*DRAWS, "minibatches"))},
}
# Rows in RAM and on disk are the same: the batches, too.
ONE_STORE = {f"{draw} on disk": f"{draw} in RAM" for draw in DRAWS}


def golden() -> dict[str, Lines]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


@pytest.mark.parametrize("part", [part for part in PARTS if part != "probes"])
def test_what_users_get_is_as_it_was(part: str) -> None:
    expected = golden().get(ONE_STORE.get(part, part), {})
    if (need := NEEDS.get(part)) and golden()["probes"][need] != probes()[need]:
        pytest.skip(f"the file was written on a machine with other {need}")
    found = PARTS[part]()
    changed = [
        f"{name}: expected {expected.get(name)}, got {found.get(name)}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]
    if changed:
        pytest.fail("\n".join([f"{part}: see the head of this file", *changed]), pytrace=False)


def test_the_file_has_no_other_parts() -> None:
    assert sorted(golden()) == sorted({ONE_STORE.get(part, part) for part in PARTS})


def write() -> None:
    """Write the file anew; parts whose library is missing stay as they are."""
    old, new = golden(), dict[str, Lines]()
    for part, make in PARTS.items():
        name = ONE_STORE.get(part, part)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            try:
                found = make()
            except pytest.skip.Exception as missing:
                print(f"{part}: left as it is: {missing}")
                found = old.get(name, {})
        if name in new and new[name] != found:
            raise SystemExit(f"{part}: expected what {name} is, got something else")
        new[name] = found
    FILE.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write()
