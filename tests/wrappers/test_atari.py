# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
import contextlib
import importlib.metadata
import inspect
import json
import re
import warnings
from collections.abc import Callable, Generator
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.vector import VectorEnv, VectorWrapper

import stepwell as sw
from stepwell.wrappers import ale_env, atari, make_atari
from stepwell.wrappers.ale_env import SeededLoads
from stepwell.wrappers.atari import TESTED_ALE_PY
from stepwell.wrappers.atari_settings import find_game

DOCS = Path(__file__).parents[2] / "docs" / "atari.md"


def make(backend: Any, **changes: Any) -> VectorEnv[Any, Any, Any]:
    """Two envs of a short Breakout, in this process or in one thread."""
    workers = {"native": 1, "python": 0}[backend]
    return make_atari("Breakout", 2, backend=backend, num_workers=workers, **changes)


@pytest.mark.proof
def test_the_recipes_differ_in_the_backend_alone() -> None:
    native, python = (make(backend).metadata["stepwell"] for backend in ("native", "python"))
    assert json.loads(json.dumps(native)) == native
    differing = {key for key in native if native[key] != python[key]}
    assert differing == {"backend", "final_observation", "versions"}
    assert set(python["versions"]) == {*native["versions"], "opencv-python"}  # resizes
    assert (native["final_observation"], python["final_observation"]) == ("stale", "true")
    assert (native["maker"], native["game"], native["sticky"]) == ("make_atari", "breakout", 0.25)
    assert (native["frame_stack"], native["stack_padding"]) == (4, "zero")
    assert set(native["versions"]) == {"gymnasium", "ale-py", "numpy"}


OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"frame_skip": 0}, r"frame_skip.*from 1 to.*got 0"),
    ({"pool": "mean"}, r"pool.*'max'.*'mean'"),
    ({"noop_max": -1}, r"noop_max.*from 0 to.*got -1"),
    ({"size": (84,)}, r"size.*got \(84,\)"),
    ({"size": (0, 84)}, r"size.*got \(0, 84\)"),
    ({"frame_stack": 0}, r"frame_stack.*from 1 to.*got 0"),
    ({"sticky": 1.0}, r"sticky.*got 1.0"),
    ({"max_frames": 0}, r"max_frames.*from 1 to.*got 0"),
    ({"max_frames": 2**31}, r"max_frames.*got 2147483648"),
    ({"life_loss": "yes"}, r"life_loss.*'ignore'.*'yes'"),
    ({"num_envs": 0}, r"num_envs.*got 0"),
    ({"game": "Braekout"}, r"got 'Braekout'; .* breakout"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((backend, *case) for backend in ("native", "python") for case in OUT_OF_RANGE),
    ("envpool", {}, r"backend.*'native'.*'envpool'"),
    ("native", {"life_loss": "end"}, r"life_loss='end'.*backend='python'"),
    ("native", {"mode": 0}, r"mode=0.*backend='python'"),
    ("native", {"difficulty": 1}, r"difficulty=1.*native"),
    ("native", {"num_workers": 0}, r"num_workers.*got 0"),
    ("native", {"snapshots": True}, r"snapshots: .*backend='python'"),
    ("python", {"mode": 77}, r"mode: .*\[0, .*\].*77"),
    ("python", {"difficulty": 9}, r"difficulty: .*\[0, 1\].*9"),
    *(  # ale-py loses a part of their states
        ("python", {"game": game, "snapshots": True}, f"snapshots: .*{find_game(game)}.*ale-py")
        for game in ("qbert", "MiniatureGolf", "alien", "tic_tac_toe_3d", "YarsRevenge")
    ),
]


@pytest.mark.parametrize(("backend", "given", "message"), REFUSED, ids=str)
def test_what_cannot_be_made_is_refused(backend: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_atari(**{"game": "Breakout", "backend": backend, **given})


def backend_of(**changes: Any) -> object:
    with contextlib.closing(make_atari("Breakout", 1, **changes)) as envs:
        return envs.metadata["stepwell"]["backend"]


@pytest.mark.proof
def test_auto_says_when_it_takes_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("cv2: libGL.so.1 is missing")

    monkeypatch.setattr(atari, "require_opencv", missing)
    with pytest.warns(UserWarning, match=r"backend='native'.*libGL\.so\.1") as caught:
        assert backend_of(backend="auto") == "native"
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend_of(backend="auto", size=None) == "python"  # resizes nothing
        assert backend_of(backend="native") == "native"
    for changes in ({"backend": "python"}, {"backend": "auto", "life_loss": "end"}):
        with pytest.raises(ImportError, match=r"libGL\.so\.1"):
            backend_of(**changes)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        *((found, True) for found in ("0.12.2", "0.13.0rc1", "1.0")),
        *((found, False) for found in (TESTED_ALE_PY, f"{TESTED_ALE_PY}.post1", "0.12", "0.9.1")),
    ],
)
def test_an_ale_py_that_is_newer_than_the_tested_one_gives_a_warning(
    found: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version
    versions = {"ale-py": found}
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: versions.get(name) or real(name)
    )
    for backend in ("native", "python"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(backend)
        assert len(caught) == is_told
        for one in caught:
            assert one.filename == __file__
            assert re.search(f"^ale-py: .*{TESTED_ALE_PY}.*{found}", str(one.message))
    with warnings.catch_warnings():  # as the message says
        warnings.filterwarnings("ignore", message="ale-py")
        make("native")


@pytest.fixture
def newer_ale_py(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """The installed ale-py, which says that it is 9.0, and is checked anew."""
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.0" if name == "ale-py" else real(name)
    )
    ale_env.unlike_facts.cache_clear()
    yield
    ale_env.unlike_facts.cache_clear()


def including_the_greatest(made: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **changes: made(**(changes | {"noop_max": changes.get("noop_max", 1) + 1}))


def answering(change: Callable[..., Any]) -> Callable[..., Any]:
    """A vector env whose steps return something else."""

    class Other(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return change(*self.env.step(actions))

    return lambda made: lambda **changes: Other(made(**changes))


counting_anew = answering(
    lambda *row: (*row[:-1], row[-1] | {"frame_number": row[-1]["episode_frame_number"]})
)
showing_the_end = answering(lambda seen, reward, *ends: (seen ^ (ends[0] | ends[1]), reward, *ends))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (including_the_greatest, "noop_max"),
        (counting_anew, "frame_number"),
        (showing_the_end, "last observation"),
    ],
)
def test_a_newer_ale_py_that_differs_is_an_error_of_the_native_backend(
    change: Callable[..., Any], fact: str, newer_ale_py: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ale_env, "_vector_env", change(ale_env._vector_env))
    with pytest.raises(
        RuntimeError, match=rf"ale-py 9\.0.*{TESTED_ALE_PY}.*that [^;]*{fact}[^;]*;"
    ):
        make("native")
    with pytest.warns(UserWarning, match="ale-py"):
        make("python")


@pytest.mark.proof
def test_a_newer_ale_py_that_differs_is_an_error_of_the_python_backend(
    newer_ale_py: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: SeededLoads, seed: int, real: Any = SeededLoads.load) -> None:
        real(self, seed)
        cast("Any", self)._ale.act(1)  # another state than that of a load

    monkeypatch.setattr(SeededLoads, "load", load)
    with pytest.raises(RuntimeError, match=r"ale-py 9\.0.*seed 1\b.*file"):
        make("python")


def table(text: str) -> list[str]:
    """The rows of the text's first table."""
    lines = [line.strip() for line in text.partition("| setting |")[2].splitlines()]
    return list(takewhile(lambda line: line.startswith("|"), lines[1:]))


def test_the_table_of_the_docs_has_every_setting_and_its_default() -> None:
    rows = {
        name.strip(" `"): cells.split("|")[0].strip()
        for line in table(DOCS.read_text())[1:]
        for names, cells in [line.strip("|").split("|", 1)]
        for name in names.split(",")
    }
    for name, parameter in inspect.signature(make_atari).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and name != "backend":
            assert rows[name].replace(",", "") == json_like(parameter.default), name


def json_like(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).replace(",", "")


@pytest.mark.proof
@pytest.mark.parametrize(
    ("backend", "num_workers"), [("native", None), ("python", 0), ("python", 2)]
)
@pytest.mark.parametrize("grayscale", [True, False])
def test_without_a_frame_stack_observations_have_no_axis_of_frames(
    backend: Any, num_workers: int | None, grayscale: bool
) -> None:
    made = [
        make_atari(
            "Pong",
            2,
            backend=backend,
            num_workers=num_workers,
            frame_stack=size,
            grayscale=grayscale,
            max_frames=40,
        )
        for size in (None, 1, 4)
    ]
    seen = [envs.reset(seed=3)[0] for envs in made]
    shape = (2, 84, 84) if grayscale else (2, 84, 84, 3)
    rng = np.random.default_rng(0)
    for _ in range(25):  # beyond the end of an episode
        assert seen[0].shape == shape == made[0].observation_space.shape
        np.testing.assert_array_equal(seen[0], seen[1][:, 0])
        np.testing.assert_array_equal(seen[0], seen[2][:, -1])
        actions = rng.integers(0, 6, 2)
        results = [envs.step(actions) for envs in made]
        seen = [result[0] for result in results]
        for result in results[1:]:
            np.testing.assert_array_equal(result[1:4], results[0][1:4])
    for envs in made:
        envs.close()


@pytest.mark.proof
@pytest.mark.parametrize("backend", ["native", "python"])
def test_rows_without_a_frame_stack_are_stored_resumed_and_played_again(
    backend: Any, tmp_path: Path
) -> None:
    for _ in range(2):
        envs = make_atari("Pong", 2, backend=backend, frame_stack=None, max_frames=60)
        with sw.SequenceReplayBuffer(tmp_path / "store") as replay:
            with sw.Collector(envs, "random", replay, seed=0, reseed_steps=1) as collector:
                collector.collect(steps=60)
    with sw.SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as replay:
        assert replay.spec["observation"].source_shape == (84, 84)
        proofs = list(sw.resimulate(replay))
        assert proofs
        assert all(proof.is_equal for proof in proofs)
