"""`stepwell merge`, `filter` and `copy`: results, output and errors."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import pytest

import stepwell as sw
from stepwell.buffers import Codec, DiskStorage, Episode, SequenceReplayBuffer
from stepwell.buffers.base.row_guard import InterruptGuard
from stepwell.buffers.view.summary import digest_of
from stepwell.collectors.cli.app import main
from support.command_line import CommandLine, Result, has_parts
from support.rows.labelled_rows import contents_of

POLE = "collect CartPole-v1 --num-envs 4 --workers 0 --steps 300"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two stores of CartPole."""
    folder = tmp_path_factory.mktemp("stores")
    for name, seed in (("a", "1"), ("b", "2")):
        assert main([*POLE.split(), "--quiet", "--seed", seed, "--out", str(folder / name)]) == 0
    return folder


@pytest.fixture
def pole(stepwell: CommandLine, stores: Path) -> CommandLine:
    """A command line next to two stores, a file and a folder that is in use."""
    for name in "ab":
        shutil.copytree(stores / name, name)
    Path("file").write_text("precious")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("precious")
    return stepwell


def episodes_of(path: str) -> list[Episode]:
    with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
        return list(replay.iter_episodes())


def contents(path: str) -> list[Any]:
    """All of each episode; of its session the facts, as its index is another in a merge."""
    found: list[Any] = []
    with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
        for episode in replay.iter_episodes():
            *rows, metadata = contents_of(episode)
            session = replay.sessions[cast("int", metadata["session"])]
            found.append((*rows, {**metadata, "session": session}))
    return found


def files(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(path).iterdir()}


def test_copy_gives_the_same_rows_and_the_same_digest(pole: CommandLine) -> None:
    before = files("a")
    digest = digest_of(Path("a"))
    Path("link").symlink_to("full")
    Path("full/notes.txt").unlink()
    for out in ("new/copy", "link"):
        result = pole(f"copy a --out {out} --digest")
        assert (result.code, result.err) == (0, "")
        first, second = result.out.splitlines()
        steps = sum(one.steps for one in episodes_of("a"))
        assert first.startswith(f"{len(episodes_of('a'))} episodes  {steps} steps  ")
        assert "kB -> " in first
        assert second == f"in {out}  digest {digest}"
        assert contents(out) == contents("a")
        assert digest_of(Path(out)) == digest
    assert Path("link").readlink() == Path("full")
    assert not list(Path().glob("*.part"))
    assert files("a") == before
    facts = pole.json("copy a --out copy --codec observation=zstd --codec reward=raw --digest")
    with SequenceReplayBuffer.open("copy", read_only=True) as copy:
        codecs: list[Codec] = [field.codec for field in copy.spec.fields]
        assert codecs == ["zstd", "narrow", "raw"]
    assert contents("copy") == contents("a")
    assert facts["digest"] == digest == digest_of(Path("copy"))


def test_merge_puts_one_store_after_the_other(pole: CommandLine) -> None:
    facts = pole.json("merge a b --out both --digest")
    assert contents("both") == contents("a") + contents("b")
    assert facts["digest"] == digest_of(Path("both"))
    with SequenceReplayBuffer.open("both", read_only=True) as both:
        assert [one.get("seed") for one in both.sessions] == ["1", "2", None]
    assert pole("collect CartPole-v0 --steps 9 --workers 0 --out c --quiet").code == 0
    pole.refused("merge a c --out new", "/c |/a: |'CartPole-v1', got 'CartPole-v0'|--any-envs")
    assert pole("merge a c --out new --any-envs").code == 0


@pytest.mark.parametrize("invert", ["", "--invert"])
def test_filter_keeps_what_matches_or_the_rest(invert: str, pole: CommandLine) -> None:
    conditions = "--where stream_episode=1 --max-steps 30"
    all_of = episodes_of("a")
    fits = {e.id: e.metadata["stream_episode"] == 1 and e.steps <= 30 for e in all_of}
    kept = [one for one in all_of if fits[one.id] == (not invert)]
    dropped = [one for one in all_of if fits[one.id] != (not invert)]
    assert kept, "the test needs both"
    assert dropped, "the test needs both"
    dry = pole.json(f"filter a {invert} {conditions} --dry-run")
    assert dry["kept"]["episodes"] == [one.id for one in kept]
    assert dry["dropped"]["episodes"] == [one.id for one in dropped]
    for fate, pile in (("kept", kept), ("dropped", dropped)):
        assert dry[fate]["steps"] == sum(one.steps for one in pile)
        returns = [one.total_reward for one in pile]
        assert dry[fate]["returns"]["mean"] == pytest.approx(sum(returns) / len(returns))
    before = files("a")
    result = pole(f"filter a {invert} {conditions} --out new")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{len(kept)} of {len(all_of)} episodes  ")
    assert [one[:-1] for one in contents("new")] == [contents_of(one)[:-1] for one in kept]
    assert [one.metadata for one in episodes_of("new")] == [one.metadata for one in kept]
    assert files("a") == before
    with SequenceReplayBuffer.open("new", read_only=True) as new:
        facts = new.sessions[-1]
    others = {"others": True} if invert else {}
    assert facts["command"] == "filter"
    assert facts["conditions"] == {"where": {"stream_episode": 1}, "max_steps": 30, **others}
    report = pole.json(f"filter a {invert} {conditions} --out more")
    assert report["episodes"] == report["chosen_episodes"] == len(kept)
    assert report["steps"] == sum(one.steps for one in kept)
    assert report["left_out_episodes"] == len(dropped)
    assert (report["sources"], report["path"]) == (["a"], "more")
    assert report["disk_bytes"] == sum(map(len, files("more").values()))


def test_a_dry_run_shows_a_table_and_writes_nothing(pole: CommandLine) -> None:
    there = sorted(Path().rglob("*"))
    result = pole("filter a --min-steps 20 --dry-run --out new")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].split() == ["episodes", "steps", "mean", "return", "from", "to", "ids"]
    kept = [one.steps for one in episodes_of("a") if one.steps >= 20]
    assert lines[2].split()[:3] == ["kept", str(len(kept)), str(sum(kept))]
    assert lines[3].split()[0] == "dropped"
    assert "nothing was written" in lines[-1]
    assert sorted(Path().rglob("*")) == there


# A command, and parts of its error message, in order.
BAD_COMMANDS = [
    ("merge a --out new", "merge: |two |got one|stepwell copy"),
    ("merge a b", "'--out'|stepwell merge --help"),
    ("merge --out new", "'DIR|stepwell merge --help"),
    ("copy a --out b", "--out b holds a store already"),
    ("copy a --out full", "/full is not empty"),
    ("copy nowhere --out new", "/nowhere |manifest.json"),
    ("copy a --out new --codec observation=jpeg", "--codec: |FIELD=CODEC|got 'observation=jpeg'"),
    ("filter a --out new", "condition|got none|--min-return"),
    ("filter a --invert --dry-run", "condition|got none|--where"),
    ("filter a --ended", "--out |--dry-run, got neither"),
    ("filter a --ended --cut --out new", "--ended or --cut, got both"),
    ("filter a --min-return x --out new", "--min-return: |got 'x'"),
    ("filter a --episodes 5-3 --out new", "--episodes: |3,10-20, got '5-3'"),
    ("filter a --episodes 0,999 --out new", "--episodes: | a |999|0-14"),
    ("filter a --where task --out new", "--where: |key=value|got 'task'"),
    ("filter a --where task=3 --out new", "--where: | a |'task'|seed, session, stream_episode"),
    ("filter a --where seed=1 --where seed=2 --out new", "--where: |got 'seed' twice"),
    ("filter a --top 0 --out new", "--top: |'0'"),
    ("filter a --top 1 --sort reward --out new", "--sort: |'reward'|return, steps, id, seed"),
]


@pytest.mark.parametrize(("command", "parts"), BAD_COMMANDS)
def test_a_bad_command_gets_one_sentence_and_writes_nothing(
    command: str, parts: str, pole: CommandLine
) -> None:
    pole.refused(command, parts)


@pytest.mark.proof
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize(
    "command",
    [
        "copy a --out deep/new",
        "filter a --ended --out folder",
        "copy a --out link",
        "export a --to npz --out new",
        "import arrays --from npz --out new",
    ],
)
def test_ctrl_c_leaves_nothing(
    command: str, when: int, pole: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pole("export a --to npz --out arrays").code == 0
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    before = sorted(Path().rglob("*"))
    calls: list[InterruptGuard] = []

    def check(self: InterruptGuard) -> None:
        calls.append(self)
        if len(calls) == when:
            raise KeyboardInterrupt

    monkeypatch.setattr("stepwell.buffers.curation.episode_writer._ENCODED_BYTES", 1_000)
    monkeypatch.setattr(InterruptGuard, "check", check)
    assert pole(command) == Result(130, "", "stepwell: interrupted; nothing kept\n")
    assert sorted(Path().rglob("*")) == before


@pytest.mark.proof
@pytest.mark.parametrize("more", range(3))
@pytest.mark.parametrize("command", ["copy a", "merge a b"])
def test_ctrl_c_twice_in_the_midst_of_a_write_leaves_nothing(
    command: str, more: int, pole: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(Path().rglob("*"))
    add, rmtree = DiskStorage.add_encoded, shutil.rmtree

    def press(count: int) -> None:
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)

    def added(self: DiskStorage, chunks: Any) -> None:
        add(self, chunks)
        press(2)

    def removed(*arguments: Any, **options: Any) -> None:
        press(min(more, 1))
        rmtree(*arguments, **options)

    monkeypatch.setattr(DiskStorage, "add_encoded", added)
    monkeypatch.setattr("stepwell.buffers.storage.disk.publish.shutil.rmtree", removed)
    interrupted = Result(130, "", "stepwell: interrupted; nothing kept\n")
    assert pole(f"{command} --out new") == interrupted
    assert sorted(Path().rglob("*")) == before


@pytest.mark.proof
@pytest.mark.parametrize("command", ["copy a", "export a --to npz", "import arrays --from npz"])
def test_ctrl_c_that_comes_too_late_does_not_say_that_nothing_is_kept(
    command: str, pole: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pole("export a --to npz --out arrays").code == 0
    rename = os.rename

    def pressed(*names: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        rename(*names)

    monkeypatch.setattr(os, "rename", pressed)
    result = pole(f"{command} --out new")
    assert (result.code, result.err) == (0, "")
    assert "in new" in result.out
    assert Path("new").is_dir()


def test_the_best_are_whole_episodes_and_the_others_are_named(pole: CommandLine) -> None:
    found = episodes_of("a")
    ended = [one for one in found if one.end.is_final]
    best = sorted(ended, key=lambda e: (-e.total_reward, e.id))[: -(-len(ended) // 10)]
    result = pole("filter a --top 10% --out best")
    assert (result.code, result.err) == (0, "")
    assert has_parts(result.out, f"{len(found) - len(ended)} cut |--include-cut")
    assert [e.total_reward for e in episodes_of("best")] == [
        e.total_reward for e in sorted(best, key=lambda e: e.id)
    ]
