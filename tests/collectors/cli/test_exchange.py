"""`stepwell export`, `import` and `formats`: results, output and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell as sw
from stepwell.buffers.bridges import format_names
from stepwell.buffers.view.summary import digest_of
from stepwell.collectors.cli.app import main
from support.command_line import CommandLine, contents, has_parts

POLE = "collect CartPole-v1 --num-envs 4 --workers 0 --steps 300 --seed 1 --quiet --out"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of CartPole."""
    folder = tmp_path_factory.mktemp("stores") / "pole"
    assert main([*POLE.split(), str(folder)]) == 0
    return folder


@pytest.fixture
def stepwell(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """A command line next to a store, and a folder that is in use."""
    line = CommandLine(monkeypatch, capsys)
    Path("pole").symlink_to(store)
    Path("full").mkdir()
    Path("full/notes.txt").write_text("precious")
    return line


def test_what_is_exported_comes_back_with_the_same_digest(stepwell: CommandLine) -> None:
    exported = stepwell("export pole --to npz --out new/arrays")
    assert (exported.code, exported.err) == (0, "")
    first, *others = exported.out.splitlines()
    with sw.SequenceReplayBuffer.open("pole", read_only=True) as replay:
        assert f"{replay.episodes} episodes  {len(replay)} steps" in first
    assert others == [
        "in new/arrays",
        "  load it:",
        "    import numpy as np",
        '    episode = np.load("new/arrays/000000.npz")',
    ]
    imported = stepwell("import new/arrays --from npz --out new/store")
    assert (imported.code, imported.err) == (0, "")
    digest = digest_of(Path("pole"))
    assert f"digest {digest}" in imported.out.splitlines()[0]
    assert imported.out.splitlines()[1:] == [
        "in new/store",
        "  look at it: stepwell info new/store",
    ]
    assert digest_of(Path("new/store")) == digest


def test_dry_runs_report_and_write_nothing(stepwell: CommandLine) -> None:
    assert stepwell("export pole --to npz --out arrays --quiet").out == ""
    before = contents()
    result = stepwell("export pole --to npz --out more --dry-run")
    assert has_parts(result.out.replace("\n", " "), "would write |nothing was written")
    for out in ("", "--out store"):
        result = stepwell(f"import arrays --from npz --dry-run {out}")
        assert "  observation: float32 (4,), raw\n" in result.out
        assert "nothing was written" in result.out.splitlines()[-1]
    assert contents() == before


def test_only_episodes_that_match_are_exported(stepwell: CommandLine) -> None:
    report = stepwell.json("export pole --to npz --out arrays --cut")
    with sw.SequenceReplayBuffer.open("pole", read_only=True) as replay:
        cut = sum(not episode.end.is_final for episode in replay.iter_episodes())
    assert 0 < cut == report["episodes"] == report["chosen_episodes"]
    assert len(list(Path("arrays").glob("*.npz"))) == cut


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("export pole --to npz --out full", "full is not empty"),
        ("export nowhere --to npz --out a", "/nowhere |manifest.json"),
        ("export pole --to npz --out a --min-return 9999", "none of 15 episodes|exported"),
        ("export pole --to nppz --out a", "format: |got 'nppz'|'npz'"),
        ("export pole --to npz --out a --option zip=1", "npz |'zip'|compress, stack"),
        ("export pole --to npz --out a --option zip", "--option: |NAME=VALUE|got 'zip'"),
        ("export pole --to npz --out a --option zip=1 --option zip=2", "--option: |'zip' twice"),
        ("export pole --to npz --out a --ended --cut", "--ended or --cut, got both"),
        ("export pole --to npz", "'--out'|stepwell export --help"),
        ("import nowhere --from npz --out a", "nowhere: |npz|got no folder"),
        ("import full --from npz --out a", "full: |*.npz, got none"),
        ("import full --from npz", "--out |--dry-run, got neither"),
        ("import full --from npz --out pole", "--out pole holds a store already"),
        ("import full --from npz --out full", "/full is not empty"),
        ("formats nppz", "'nppz'|'npz'"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    command: str, parts: str, stepwell: CommandLine
) -> None:
    stepwell.refused(command, parts)


def test_the_formats_are_listed_with_their_options(stepwell: CommandLine) -> None:
    listed = stepwell("formats")
    assert (listed.code, listed.err) == (0, "")
    heads = [line.split(" ")[0] for line in listed.out.splitlines()[2:]]
    assert [head for head in heads if head] == [*format_names(), "Options"]
    assert "'stepwell[minari]'" in listed.out
    one = stepwell("formats npz")
    assert one.out.startswith("npz  a file of numpy arrays for each episode")
    assert " ".join(one.out.split()).endswith("stepwell import ... --from npz has no options")
    assert "stack=" in one.out
    report = stepwell.json("formats npz")
    assert report["npz"]["export"]["stack"]["values"] == "true or false"
    assert report["npz"]["export"]["stack"]["default"] == "false"
