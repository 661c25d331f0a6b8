"""WorkerVectorEnv: same rows as gymnasium's for any workers; dead workers; no orphans."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_equal

import stepwell as sw
from stepwell.wrappers.seeded_resets import SeededResets, derived_seed
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv
from support.actor_hosts import left_of
from support.envs.fakes import (
    CounterEnv,
    CrashEnv,
    DictEnv,
    DieEnv,
    GlobalRandomEnv,
    InfoEnv,
    LiveBufferEnv,
    SeededEnv,
)
from support.programs import run_python
from support.tiers import proofs_but

ROOT = Path(__file__).parents[3]
Made = list[WorkerVectorEnv]
Make = Callable[..., WorkerVectorEnv]


@pytest.fixture
def make() -> Generator[Make]:
    """Makes vector envs that are closed at the end of the test, also after an error."""
    made: Made = []

    def build(env_fns: Any, **kwargs: Any) -> WorkerVectorEnv:
        made.append(WorkerVectorEnv(env_fns, **kwargs))
        return made[-1]

    yield build
    for envs in made:
        envs.close()


def worker_pids(envs: WorkerVectorEnv) -> list[int]:
    """Pids of the workers, in order; read from the envs themselves."""
    pids = envs.call("worker_pid")
    return list(dict.fromkeys(pids))


class TellsPid:
    """Returns its process id."""

    def worker_pid(self) -> int:
        return os.getpid()


class PidEnv(TellsPid, CounterEnv):
    pass


class SeededPidEnv(TellsPid, SeededEnv):
    pass


class PidDieEnv(TellsPid, DieEnv):
    pass


class SlowEnv(PidEnv):
    """Sleeps for `seconds` in each step."""

    seconds = 0.0

    def step(self, action: np.int64) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def played(envs: Any) -> list[Any]:
    """Everything that the envs return for the same seeds and actions."""
    actions = envs.action_space
    actions.seed(7)
    options = {"reset_mask": np.arange(envs.num_envs) != 1}
    rows: list[Any] = []
    for given in ({"seed": 5}, {"seed": [9, None, 4, 2, 1][: envs.num_envs]}, {"options": options}):
        rows += [envs.reset(**given), *(envs.step(actions.sample()) for _ in range(20))]
    return rows


def assert_same(found: Any, expected: Any) -> None:
    """The same values, of the same dtypes."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = ([one[key] for key in expected] for one in (found, expected))
    if isinstance(expected, tuple | list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert_equal(found, expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype


ENV_FNS: dict[str, list[Callable[[], Any]]] = {
    "counter": [partial(CounterEnv, [3, 1 + k, 4], tag=k) for k in range(5)],
    "ends": [
        lambda: CounterEnv(3, ends="terminated"),
        lambda: CounterEnv(3, ends="truncated"),
        lambda: CounterEnv(3, ends="both"),
    ],
    "dict": [DictEnv] * 4,
    "info": [partial(InfoEnv, 2 + k) for k in range(4)],
    "seeded": [partial(SeededEnv, 2 + k) for k in range(4)],
    "live": [LiveBufferEnv] * 3,
    "cartpole": [lambda: gym.make("CartPole-v1")] * 4,
}


@pytest.mark.parametrize("name", proofs_but(["ends", "seeded"], ENV_FNS))
def test_rows_are_the_same_for_any_number_of_workers_and_as_gymnasiums(
    name: str, make: Make
) -> None:
    sync = SyncVectorEnv(ENV_FNS[name])
    expected = played(sync)
    sync.close()
    for num_workers in (1, 2, 3):
        assert_same(played(make(ENV_FNS[name], num_workers=num_workers)), expected)
    if name == "counter":
        assert_same(played(make(ENV_FNS[name], num_workers=2, context="spawn")), expected)


def test_what_was_returned_is_never_written_again(make: Make) -> None:
    envs = make([LiveBufferEnv] * 3, num_workers=2)
    held: list[Any] = [envs.reset()]
    held += [envs.step(np.zeros(3, np.int64)) for _ in range(3)]
    assert_equal([int(row[0].max()) for row in held], [0, 1, 2, 3])
    pairs = zip(held[1][:4], held[2][:4], strict=True)
    assert not any(np.shares_memory(a, b) for a, b in pairs)


def test_an_env_may_keep_its_actions(make: Make) -> None:
    envs = make([DictEnv] * 2, num_workers=1)
    envs.reset()
    envs.action_space.seed(0)
    sent = [envs.action_space.sample() for _ in range(3)]
    for action in sent:
        envs.step(action)
    kept = envs.get_attr("actions_seen")[1]
    assert_equal([one["dial"] for one in kept], [one["dial"][1] for one in sent])
    assert_equal([one["stick"][0] for one in kept], [one["stick"][0][1] for one in sent])


def test_the_caller_can_work_between_send_and_recv(make: Make) -> None:
    envs = make([CounterEnv] * 2)
    envs.reset()
    envs.send(np.zeros(2, np.int64))
    with pytest.raises(AlreadyPendingCallError, match=r"recv\(\)"):
        envs.send(np.zeros(2, np.int64))
    with pytest.raises(AlreadyPendingCallError, match=r"recv\(\)"):
        envs.call("render")
    assert_equal(envs.recv()[0][:, 1], [1, 1])
    with pytest.raises(NoAsyncCallError, match=r"send\(actions\)"):
        envs.recv()


def test_reset_discards_a_step_that_was_not_received(make: Make) -> None:
    envs = make([InfoEnv] * 2)
    envs.reset()
    envs.send(np.zeros(2, np.int64))
    time.sleep(0.1)  # most likely the answer is there by now: the worse case
    observation, info = envs.reset()
    assert_equal(observation, [[1, 0, 0], [1, 0, 0]])
    assert_equal(info["only_reset"], [1, 1])
    assert "t" not in info
    assert_equal(envs.step(np.zeros(2, np.int64))[4]["t"], [1, 1])


def test_attributes_and_methods_are_reached_in_the_workers(make: Make) -> None:
    envs = make([partial(CounterEnv, 3, tag=k) for k in range(3)], num_workers=2)
    envs.set_attr("length", [2, 3, 4])
    assert envs.get_attr("length") == (2, 3, 4)
    envs.set_attr("tag", 9)
    assert envs.get_attr("tag") == (9, 9, 9)
    envs.reset()
    assert_equal(envs.call("observation"), [[0, 0, 9]] * 3)
    with pytest.raises(ValueError, match=r"values.*3.*got 2"):
        envs.set_attr("tag", [1, 2])
    with pytest.raises(AttributeError, match="no_such") as caught:
        envs.get_attr("no_such")
    assert "raised in env 0" in caught.value.__notes__[0]
    assert_equal(envs.step(np.zeros(3, np.int64))[0][:, 1], [1, 1, 1])


# What goes wrong inside an env


def test_an_exception_names_the_env_and_shows_the_workers_traceback(make: Make) -> None:
    envs = make([CounterEnv, CounterEnv, lambda: CrashEnv(2)], num_workers=2)
    envs.reset()
    envs.step(np.zeros(3, np.int64))
    with pytest.raises(ZeroDivisionError, match="planted at step 2") as caught:
        envs.step(np.zeros(3, np.int64))
    (note,) = caught.value.__notes__
    assert "raised in env 2, in worker process 1" in note
    assert "fakes.py" in note
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError.*reset\(\)"):
        envs.step(np.zeros(3, np.int64))
    assert_equal(envs.reset()[0][:, 0], [1, 1, 1])
    assert_equal(envs.step(np.zeros(3, np.int64))[0][:, 1], [1, 1, 1])
    assert envs.restarts == 0


class OddError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class OddErrorEnv(CounterEnv):
    """Raises an exception that cannot travel."""

    def step(self, action: np.int64) -> Any:
        raise OddError(1, 2)


class OddInfoEnv(CounterEnv):
    """Puts something into info that cannot be pickled."""

    def step(self, action: np.int64) -> Any:
        return *super().step(action)[:4], {"fine": 1, "odd": threading.Lock()}


class WrongShapeEnv(CounterEnv):
    """Gives an observation that numpy would broadcast into the right shape."""

    def observation(self) -> Any:
        return np.array([self.t])


class WrongDtypeEnv(CounterEnv):
    """Gives floats where integers are declared."""

    def observation(self) -> Any:
        return np.full(3, 0.5)


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (OddErrorEnv, RuntimeError, "OddError: 1 and 2"),  # it arrives as its text
        (OddInfoEnv, TypeError, r"info\['odd'\].*env 1.*lock"),
        (WrongShapeEnv, ValueError, r"observation.*\(3,\).*\(1,\)"),
        (WrongDtypeEnv, ValueError, r"observation.*int64.*float64"),
    ],
)
def test_what_cannot_be_sent_or_does_not_fit_is_told(
    env: type[CounterEnv], error: type[Exception], message: str, make: Make
) -> None:
    envs = make([CounterEnv, env], num_workers=1)

    def step() -> None:
        envs.reset()
        envs.step(np.zeros(2, np.int64))

    with pytest.raises(error, match=message):
        step()


def test_actions_that_do_not_fit_are_refused_before_anything_moves(make: Make) -> None:
    envs = make([CounterEnv] * 2)
    envs.reset()
    with pytest.raises(ValueError, match=r"actions.*\(2,\).*\(3,\)"):
        envs.step(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"actions.*int64.*float64"):
        envs.step(np.zeros(2))
    assert_equal(envs.step(np.zeros(2, np.int32))[0][:, 1], [1, 1])


def test_an_env_that_cannot_be_built_says_why() -> None:
    def broken() -> CounterEnv:
        if os.getpid() != parent:
            raise FileNotFoundError("no rom")
        return CounterEnv()

    parent = os.getpid()
    with pytest.raises(FileNotFoundError, match="no rom") as caught:
        WorkerVectorEnv([CounterEnv, broken], num_workers=2)
    assert "raised in env 1" in caught.value.__notes__[0]


# Dead workers


def test_a_dead_worker_is_replaced_and_its_rows_are_marked(make: Make) -> None:
    fns = [CounterEnv, CounterEnv, lambda: DieEnv(3), lambda: CounterEnv(9, tag=3)]
    envs = make(fns, num_workers=2)
    envs.reset(seed=0)
    rows = [envs.step(np.zeros(4, np.int64)) for _ in range(4)]
    assert ["worker_restarted" in row[4] for row in rows] == [False, False, True, False]
    observation, reward, terminated, truncated, info = rows[2]
    assert_equal(info["worker_restarted"], [False, False, True, True])
    assert_equal(observation[:, 1], [3, 3, 0, 0])
    assert_equal(reward, [3, 3, 0, 0])
    assert not (terminated | truncated).any()
    assert_equal(rows[3][0][:, 1], [4, 4, 1, 1])
    assert envs.restarts == 1


@pytest.mark.proof
def test_the_seeds_of_a_replaced_worker_are_in_the_info(make: Make) -> None:
    envs = make([SeededPidEnv] * 4, num_workers=2)
    assert "reset_seed" not in envs.reset(seed=11)[1]
    seeds: list[int] = []
    for _ in range(2):
        os.kill(worker_pids(envs)[1], signal.SIGKILL)
        observation, *_, info = envs.step(np.zeros(4, np.int64))
        assert_equal(info["_reset_seed"], [False, False, True, True])
        for env in (2, 3):
            seeds.append(int(info["reset_seed"][env]))
            assert_equal(observation[env], SeededEnv().reset(seed=seeds[-1])[0])
    assert len({11, 12, 13, 14, *seeds}) == 8
    mask = np.array([False, False, True, False])
    os.kill(worker_pids(envs)[1], signal.SIGKILL)
    info = envs.reset(seed=[1, 2, 3, 4], options={"reset_mask": mask})[1]
    assert_equal(info["reset_seed"][2:], [3, 4])  # env 3 begins anew with the given seed too


@pytest.mark.proof
def test_seeded_resets_go_on_from_the_seed_after_a_restart(make: Make) -> None:
    envs = make([lambda: SeededResets(SeededPidEnv(2))] * 2, num_workers=2)
    seed, number = int(envs.reset(seed=5)[1]["reset_seed"][1]), 0
    found = [seed]
    for step in range(20):
        is_killed = step in (7, 14)
        if is_killed:
            os.kill(worker_pids(envs)[1], signal.SIGKILL)
        info = envs.step(np.zeros(2, np.int64))[4]
        assert is_killed == ("worker_restarted" in info)
        if "reset_seed" in info and info["_reset_seed"][1]:
            found.append(int(info["reset_seed"][1]))
            seed, number = (found[-1], 0) if is_killed else (seed, number + 1)
            assert found[-1] == (derived_seed(seed, number) if number else seed)
    assert len(found) == len(set(found)) == 8


@pytest.mark.proof
def test_a_call_on_a_dead_worker_raises_and_the_next_step_replaces_it(make: Make) -> None:
    envs = make([PidEnv] * 2, num_workers=2)
    envs.reset()
    os.kill(worker_pids(envs)[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"env 1.*signal 9, SIGKILL"):
        envs.call("worker_pid")
    info = envs.step(np.zeros(2, np.int64))[4]
    assert_equal(info["worker_restarted"], [False, True])


@pytest.mark.proof
@pytest.mark.parametrize("library", ["python", "numpy", "torch"])
@pytest.mark.parametrize("num_workers", [2, 4])
def test_each_worker_draws_its_own_numbers_from_global_generators(
    make: Make, library: str, num_workers: int
) -> None:
    if library == "torch":
        pytest.importorskip("torch", reason="needs torch")

    def draws(seed: int | None, kills: bool = False) -> Any:
        envs = make([partial(GlobalRandomEnv, library)] * 4, num_workers=num_workers)
        found = [envs.reset(seed=seed)[0]]
        for step in range(12):
            if kills and step == 6:
                os.kill(worker_pids(envs)[0], signal.SIGKILL)
            found.append(envs.step(np.zeros(4, np.int64))[0])
        return np.concatenate(found)

    first, killed = draws(5), draws(5, kills=True)
    assert_equal(draws(5), first)
    assert_equal(killed[:28], first[:28])
    new = killed.reshape(13, 4, 2)[7:, : 4 // num_workers].reshape(-1, 2)  # of the new worker
    rows = np.concatenate([first, draws(100), draws(None), draws(None), new])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_public_attributes_are_those_of_gymnasiums_vector_env(make: Make) -> None:
    env_fns = [SeededEnv] * 3
    ours, theirs = make(env_fns, num_workers=2), SyncVectorEnv(env_fns)
    for envs in (ours, theirs):
        envs.reset(seed=5)
    in_this_process = {"envs"}
    for name in {name for name in dir(theirs) if not name.startswith("_")} - in_this_process:
        wanted, got = getattr(theirs, name), getattr(ours, name)
        if name in ("unwrapped", "np_random") or callable(wanted):
            assert callable(got) == callable(wanted), name
        else:
            assert got == wanted, name
    drawn = [[one.random() for one in envs.np_random] for envs in (ours, theirs)]
    assert drawn[0] == drawn[1]
    assert ours.np_random_seed == (5, 6, 7)


def test_the_global_generators_of_the_process_of_the_user_stay_as_they_are(make: Make) -> None:
    for seed in (np.random.seed, random.seed):
        seed(3)
    wanted = np.random.rand(), random.random()  # noqa: NPY002
    for seed in (np.random.seed, random.seed):
        seed(3)
    envs = make([GlobalRandomEnv] * 2, num_workers=2)
    envs.reset(seed=0)
    sw.make_vec(CounterEnv, 2, num_workers=0).reset(seed=0)
    assert (np.random.rand(), random.random()) == wanted  # noqa: NPY002


@pytest.mark.proof
def test_more_restarts_than_allowed_close_everything_with_a_clear_error(make: Make) -> None:
    envs = make([PidEnv, lambda: PidDieEnv(2)], num_workers=2, max_restarts=1)
    envs.reset()
    pids = [worker_pids(envs)[0]]
    envs.step(np.zeros(2, np.int64))
    envs.step(np.zeros(2, np.int64))
    envs.step(np.zeros(2, np.int64))
    message = r"env 1.*exit code 7.*max_restarts=1"
    with pytest.raises(RuntimeError, match=message):
        envs.step(np.zeros(2, np.int64))
    assert left_of(pids) == []
    with pytest.raises(ClosedEnvironmentError, match=r"WorkerVectorEnv.*close\(\)"):
        envs.reset()


@pytest.mark.proof
def test_a_worker_that_hangs_is_replaced_after_the_timeout(make: Make) -> None:
    envs = make([PidEnv, SlowEnv], num_workers=2, step_timeout=0.3)
    envs.reset()
    envs.set_attr("seconds", [0.0, 60.0])
    info = envs.step(np.zeros(2, np.int64))[4]
    assert_equal(info["worker_restarted"], [False, True])


@pytest.mark.proof
def test_a_dead_worker_is_noticed_though_a_child_of_it_holds_the_pipe(make: Make) -> None:
    class ForkAndDieEnv(CounterEnv):
        def step(self, action: np.int64) -> Any:
            if self.t == 1 and os.fork() == 0:
                time.sleep(3)
                os._exit(0)
            result = super().step(action)
            if self.t == 3:
                os._exit(1)
            return result

    envs = make([ForkAndDieEnv])
    envs.reset()
    infos = [envs.step(np.zeros(1, np.int64))[4] for _ in range(3)]
    assert_equal(infos[2]["worker_restarted"], [True])


# The end


def children() -> list[int]:
    """Pids of all child processes."""
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        pids += map(int, (task / "children").read_text().split())
    return pids


def test_close_ends_the_workers_also_in_the_middle_of_a_step(make: Make) -> None:
    envs = make([PidEnv] * 4, num_workers=2)
    envs.reset()
    pids = worker_pids(envs)
    envs.send(np.zeros(4, np.int64))
    envs.close()
    envs.close()
    assert left_of(pids) == []
    with pytest.raises(ClosedEnvironmentError, match=r"WorkerVectorEnv.*close\(\)"):
        envs.step(np.zeros(4, np.int64))


SCRIPT_HEAD = f"""
import os, signal, sys, time
sys.path[:0] = [{str(ROOT / "tests")!r}, {str(ROOT / "tests/wrappers/workers")!r}]
import numpy as np
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv
from test_vector_env import PidEnv, SlowEnv, worker_pids
"""


def start_script(body: str, path: Path) -> subprocess.Popen[str]:
    script = path / "script.py"
    script.write_text(SCRIPT_HEAD + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )


def read_pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.proof
@pytest.mark.parametrize("how", ["killed", "raises", "exits"])
def test_no_worker_outlives_its_parent(how: str, tmp_path: Path) -> None:
    body = """
    envs = WorkerVectorEnv([SlowEnv] * 4, num_workers=2)
    envs.reset()
    print(*worker_pids(envs), flush=True)
    envs.send(np.zeros(4, np.int64))
    """
    ends = {
        "killed": "os.kill(os.getpid(), signal.SIGKILL)",
        "raises": "raise KeyError(1)",
        "exits": "",
    }
    process = start_script(textwrap.dedent(body) + ends[how], tmp_path)
    pids = read_pids(process)
    process.communicate(timeout=60)
    assert len(pids) == 2
    assert left_of(pids) == []


@pytest.mark.proof
def test_ctrl_c_reaches_only_the_parent(tmp_path: Path) -> None:
    body = """
    envs = WorkerVectorEnv([SlowEnv] * 4, num_workers=2)
    envs.reset()
    envs.set_attr("seconds", 0.2)
    envs.send(np.zeros(4, np.int64))
    try:
        print("ready", flush=True)
        while True:
            envs.recv()
            envs.send(np.zeros(4, np.int64))
    except KeyboardInterrupt:
        observation, info = envs.reset()
        print(len(observation), envs.restarts, *worker_pids(envs), flush=True)
    envs.close()
    """
    process = start_script(body, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert err == ""
    num_envs, restarts, *pids = map(int, out.split())
    assert (num_envs, restarts, process.returncode) == (4, 0, 0)
    assert left_of(pids) == []


# Start methods


def test_a_factory_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def build() -> CounterEnv:
        with lock:
            return CounterEnv()

    with pytest.raises(TypeError, match=r"env_fns\[1\].*context='fork'"):
        WorkerVectorEnv([CounterEnv, build], num_workers=1, context="spawn")


@pytest.mark.proof
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_missing_main_guard_is_reported_in_one_sentence(context: str, tmp_path: Path) -> None:
    process = start_script(f"WorkerVectorEnv([PidEnv], context={context!r})", tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert 'top level to be under `if __name__ == "__main__":`' in err.splitlines()[-1]
    assert err.count("Traceback") == 1  # the worker prints nothing


class TextEnv(CounterEnv):
    """Has a space without a fixed shape inside a Dict."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = spaces.Dict({"a": spaces.Text(5)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_fns": [TextEnv]}, r"observation space\['a'\].*Box.*Text"),
        ({"env_fns": [CounterEnv, SeededEnv], "num_workers": 1}, "observation space.*env 0"),
        ({"env_fns": []}, "env_fns.*got none"),
        ({"num_workers": 0}, "num_workers.*got 0"),
        ({"autoreset_mode": AutoresetMode.SAME_STEP}, "NEXT_STEP.*AutoresetMode.SAME_STEP"),
        ({"context": "thread"}, "context.*'thread'"),
        ({"max_restarts": -1}, "max_restarts.*got -1"),
        ({"max_restarts": 1.5}, r"max_restarts.*got 1\.5"),
        ({"step_timeout": 0}, "step_timeout.*got 0"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_process(
    arguments: dict[str, Any], message: str
) -> None:
    before = children()
    with pytest.raises(ValueError, match=message):
        WorkerVectorEnv(**{"env_fns": [CounterEnv], **arguments})
    assert children() == before


def test_seeds_and_masks_of_a_wrong_length_are_refused(make: Make) -> None:
    envs = make([CounterEnv] * 2)
    with pytest.raises(ValueError, match=r"seed.*expected 2.*got 3"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(TypeError, match=r"^seed: .*got 1\.5"):
        envs.reset(seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"reset_mask'\].*bool"):
        envs.reset(options={"reset_mask": np.array([1, 0])})


@pytest.mark.proof
def test_a_worker_leaves_its_parents_garbage_alone(tmp_path: Path) -> None:
    """ale-py's vector envs join threads when they are collected, which a fork does not have."""
    program = tmp_path / "garbage.py"
    program.write_text(
        textwrap.dedent("""
            import gc
            import os

            import gymnasium as gym
            import numpy as np

            import stepwell as sw
            from stepwell.wrappers.workers.vector_env import WorkerVectorEnv

            gc.disable()
            parent = os.getpid()
            for _ in range(10):
                envs = sw.make_atari("pong", 2)
                envs.reset(seed=0)
                envs.step(np.zeros(2, np.int64))
                envs.close()
                cycle = [envs]
                cycle.append(cycle)
                del envs, cycle


            def build():
                if os.getpid() != parent:
                    gc.collect()
                return gym.make("CartPole-v1")


            envs = WorkerVectorEnv([build] * 2, num_workers=2, context="fork")
            print(envs.reset(seed=0)[0].shape)
            envs.close()
        """),
        encoding="utf-8",
    )
    assert run_python(program).stdout == "(2, 4)\n"


class CountingEnv(CounterEnv):
    """A method that takes arguments, and one that fails."""

    calls = 0

    def add(self, number: int) -> tuple[int, int]:
        self.calls += 1
        return self.calls, number

    def fail(self) -> None:
        raise KeyError("lost")


def test_a_method_of_one_worker_is_called_while_others_work() -> None:
    envs = WorkerVectorEnv([CountingEnv] * 3, num_workers=2)
    try:
        envs.begin_call(1, "add", 5)
        envs.begin_call(0, "add", 6)
        assert envs.end_call(0) == [(1, 6)]
        envs.begin_call(0, "add", 7)
        assert envs.end_call(1) == [(1, 5), (1, 5)]
        assert envs.end_call(0) == [(2, 7)]
        envs.begin_call(1, "fail")
        with pytest.raises(KeyError, match="lost"):
            envs.end_call(1)
        assert envs.call("add", 1) == ((3, 1), (2, 1), (2, 1))
        envs.reset(seed=0)
        envs.send(np.zeros(3, np.int64))
        with pytest.raises(AlreadyPendingCallError):
            envs.begin_call(0, "add", 1)
        envs.recv()
    finally:
        envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.end_call(0)
