"""`stepwell render`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import Chunk, End, Field
from support.command_line import CommandLine, has_parts
from support.pictures import as_rgb, decoded, read_gif, read_webp


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of Pong, which are cut."""
    folder = tmp_path_factory.mktemp("stores") / "pong"
    envs = sw.make_atari("Pong", num_envs=3, backend="python", num_workers=0)
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        collector.collect(steps=180)
    return folder


def frames_of(folder: Path, number: int) -> np.ndarray:
    with sw.SequenceReplayBuffer.open(folder, read_only=True) as replay:
        (found,) = (one for one in replay.iter_episodes() if one.id == number)
        return as_rgb(found.frames(), 3)


def test_a_film_strip_is_a_picture(stepwell: CommandLine, pong: Path) -> None:
    said = stepwell(f"render {pong} --episode last -o a.png --frames 5 --scale 2")
    assert has_parts(said.out, "a.png|film strip of 5 rows|168 x 848|B")
    assert "fps" not in said.out
    assert decoded(Path("a.png").read_bytes()).shape == (168, 848, 3)


def test_the_facts_are_printed_as_json(stepwell: CommandLine, pong: Path) -> None:
    made = json.loads(stepwell(f"render {pong} --episode 0 -o a.gif --rows 5:9 --json").out)
    assert made == {
        "path": "a.gif",
        "episode": 0,
        "field": "observation",
        "other_fields": [],
        "rows": 4,
        "first_row": 5,
        "last_row": 8,
        "fps": 15.0,
        "height": 84,
        "width": 84,
        "nbytes": Path("a.gif").stat().st_size,
        "store": str(pong),
    }


def test_a_file_is_only_replaced_on_request(stepwell: CommandLine, pong: Path) -> None:
    Path("a.gif").write_text("mine")
    said = stepwell(f"render {pong} --episode 0 -o a.gif")
    assert (said.code, said.out) == (2, "")
    assert has_parts(said.err, "a.gif|--overwrite")
    assert Path("a.gif").read_text() == "mine"
    said = stepwell(f"render {pong} --episode 0 -o a.gif --overwrite")
    assert said.code == 0
    assert "colours rounded, .webp is exact" in " ".join(said.out.split())
    assert len(read_gif(Path("a.gif").read_bytes()).frames) == len(frames_of(pong, 0))


def test_several_fields_of_images_are_named(stepwell: CommandLine) -> None:
    names = ("observation/left", "observation/right\x1b[2J")
    images = [Field(name, "uint8", (16, 16), "raw") for name in names]
    layout = {"left": names[0], "right": names[1]}
    spec = sw.Spec((*images, Field("reward", "float64", (), "raw")), layout, {})
    rows = {name: np.zeros((3, *spec[name].shape), spec[name].dtype) for name in spec.names}
    rows[names[1]] += 9
    with sw.SequenceReplayBuffer("robot") as replay:
        replay.bind(spec, {})
        replay.add([Chunk(0, 0, 0, End.TERMINATED, rows)])
    said = stepwell("render robot --episode 0 -o a.webp")
    assert has_parts(said.out, "a.webp|30 fps|0.1 s")
    # A terminal would run the control character.
    shown = r"observation/left|--field|observation/right\x1b[2J"
    assert has_parts(said.out.splitlines()[1], shown)
    assert stepwell(f"render robot --episode 0 -o b.webp --field {names[1]}").code == 0
    assert (read_webp(Path("a.webp").read_bytes()).frames == 0).all()
    assert (read_webp(Path("b.webp").read_bytes()).frames == 9).all()
    said = stepwell("render robot --episode 0 -o c.webp --field left")
    assert said.code == 2
    assert has_parts(said.err, r"observation/left, observation/right\x1b[2J|'left'")


def test_a_store_without_images_is_refused_with_the_cure(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 30 --out pole --quiet")
    said = stepwell("render pole --episode 0 -o a.gif")
    assert (said.code, said.out) == (2, "")
    assert has_parts(said.err, "observation: float32 (4,)|AddRenderObservation|stepwell view")
    assert len(said.err.splitlines()) == 1
    assert not Path("a.gif").exists()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--episode 99 -o a.gif", "episode|99"),
        ("--episode x -o a.gif", "--episode|an id, or best, worst|'x'"),
        ("--episode 5x -o a.gif", "--episode|'5x'"),
        ("--episode 0 -o a.jpg", ".mp4|.gif|.webp|.png|'a.jpg'"),
        ("--episode 0 -o a.gif --rows 5", "--rows|100:400|'5'"),
        ("--episode 0 -o a.gif --rows=-5:", "--rows|'-5:'"),
        ("--episode 0 -o a.gif --rows 5:99999", "rows|5:99999"),
        ("--episode 0 -o a.gif --fps fast", "--fps|'fast'"),
        ("--episode 0 -o a.gif --fps 0", "fps|0.1|1000|got 0"),
        ("--episode 0 -o a.gif --scale 0", "--scale|0"),
        ("--episode 0 -o a.gif --scale 200", "scale|97|200"),
        ("--episode 0 -o a.png --frames 257", "frames|256|257"),
        ("--episode 0 -o a.gif --field reward", "field|observation|'reward'"),
        ("-o a.gif", "--episode"),
        ("--episode 0", "--out"),
        ("--episode 0 -o missing/a.gif --field reward", "'reward'"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    stepwell: CommandLine, pong: Path, options: str, parts: str
) -> None:
    said = stepwell(f"render {pong} {options}")
    assert (said.code, said.out) == (2, "")
    assert has_parts(said.err, parts)
    assert len(said.err.splitlines()) == 1
    assert not list(Path().glob("a.*"))
    assert not Path("missing").exists()


def test_a_missing_store_is_named(stepwell: CommandLine) -> None:
    said = stepwell("render nowhere --episode 0 -o a.gif")
    assert said.code == 2
    assert "nowhere" in said.err


@pytest.mark.parametrize("command", ["render a.swa -e 0 -o a.png", "report a.swa -o a.html"])
def test_an_archive_is_not_taken_for_a_store(stepwell: CommandLine, command: str) -> None:
    Path("a.swa").write_bytes(b"")
    said = stepwell(command)
    assert said.code == 2
    assert has_parts(said.err, "a.swa|stepwell restore")
    assert not list(Path().glob("a.[ph]*"))
