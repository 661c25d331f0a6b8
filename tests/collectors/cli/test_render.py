"""`stepwell render`: output and exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import Chunk, End, Field
from support.command_line import CommandLine, has_parts
from support.pictures import decoded, read_gif, read_webp


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


def test_a_clip_and_a_film_strip_are_written(stepwell: CommandLine, pong: Path) -> None:
    said = stepwell(f"render {pong} --episode last -o a.png --frames 5 --scale 2")
    assert has_parts(said.out, "a.png|film strip of 5 rows|168 x 848|B")
    assert "fps" not in said.out
    assert decoded(Path("a.png").read_bytes()).shape == (168, 848, 3)
    assert stepwell.json(f"render {pong} --episode 0 -o a.gif --rows 5:9") == {
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
    stepwell.refused(f"render {pong} --episode 0 -o a.gif", "a.gif|--overwrite")
    said = stepwell(f"render {pong} --episode 0 -o a.gif --overwrite")
    assert said.code == 0
    assert "colours rounded, .webp is exact" in " ".join(said.out.split())
    assert len(read_gif(Path("a.gif").read_bytes()).frames) > 4


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
    stepwell.refused(
        "render robot --episode 0 -o c.webp --field left",
        r"observation/left, observation/right\x1b[2J|'left'",
    )


def test_a_store_without_images_is_refused_with_the_cure(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 30 --out pole --quiet")
    stepwell.refused(
        "render pole --episode 0 -o a.gif",
        "observation: float32 (4,)|AddRenderObservation|stepwell view",
    )


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("render PONG --episode x -o a.gif", "--episode|an id, or best, worst|'x'"),
        ("render PONG --episode 99 -o a.gif", "episode|99"),
        ("render PONG --episode 0 -o a.gif --rows 5", "--rows|100:400|'5'"),
        ("render PONG --episode 0 -o a.gif --rows=-5:", "--rows|'-5:'"),
        ("render PONG --episode 0 -o a.gif --fps fast", "--fps|'fast'"),
        ("render PONG --episode 0 -o a.gif --scale 0", "--scale|0"),
        ("render PONG -o a.gif", "--episode"),
        ("render PONG --episode 0", "--out"),
        ("render nowhere --episode 0 -o a.gif", "nowhere"),
        ("render a.swa -e 0 -o a.png", "a.swa|stepwell restore"),
        ("report a.swa -o a.html", "a.swa|stepwell restore"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    stepwell: CommandLine, pong: Path, command: str, parts: str
) -> None:
    Path("a.swa").write_bytes(b"")
    stepwell.refused(command.replace("PONG", str(pong)), parts)
