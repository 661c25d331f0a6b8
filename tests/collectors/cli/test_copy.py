"""`stepwell merge`, `filter` and `copy`: results, output and errors."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import pytest

import stepwell as sw
from stepwell.buffers import Chunk, Codec, DiskStorage, End, Episode, SequenceReplayBuffer
from stepwell.buffers.base.row_guard import InterruptGuard
from stepwell.buffers.view.summary import digest_of
from stepwell.collectors.cli.app import main
from support.command_line import CommandLine, has_parts
from support.rows.labelled_rows import SPEC, contents_of, whole

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
    result = pole("copy a --out new/copy --digest")
    assert (result.code, result.err) == (0, "")
    assert contents("new/copy") == contents("a")
    digest = digest_of(Path("a"))
    assert digest_of(Path("new/copy")) == digest
    assert digest in result.out
    first, second = result.out.splitlines()
    steps = sum(one.steps for one in episodes_of("a"))
    assert first.startswith(f"{len(episodes_of('a'))} episodes  {steps} steps  ")
    assert "kB -> " in first
    assert second == f"in new/copy  digest {digest}"
    assert files("a") == before


def test_copy_keeps_fields_in_another_way(pole: CommandLine) -> None:
    facts = pole.json("copy a --out copy --codec observation=zstd --codec reward=raw --digest")
    with SequenceReplayBuffer.open("copy", read_only=True) as copy:
        codecs: list[Codec] = [field.codec for field in copy.spec.fields]
        assert codecs == ["zstd", "narrow", "raw"]
    assert contents("copy") == contents("a")
    assert facts["digest"] == digest_of(Path("a")) == digest_of(Path("copy"))


def test_json_reports_what_was_done(pole: CommandLine) -> None:
    facts = pole.json("filter a --min-steps 20 --out copy")
    kept = [one for one in episodes_of("a") if one.steps >= 20]
    assert facts["episodes"] == facts["chosen_episodes"] == len(kept)
    assert facts["steps"] == sum(one.steps for one in kept)
    assert facts["left_out_episodes"] == len(episodes_of("a")) - len(kept)
    assert (facts["sources"], facts["path"]) == (["a"], "copy")
    assert facts["disk_bytes"] == sum(map(len, files("copy").values()))


def test_merge_puts_one_store_after_the_other(pole: CommandLine) -> None:
    facts = pole.json("merge a b --out both --digest")
    assert contents("both") == contents("a") + contents("b")
    assert facts["digest"] == digest_of(Path("both"))
    assert [one.id for one in episodes_of("both")] == list(range(facts["episodes"]))
    with SequenceReplayBuffer.open("both", read_only=True) as both:
        assert [one.get("seed") for one in both.sessions] == ["1", "2", None]


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


def test_the_command_is_recorded_in_the_copy(pole: CommandLine) -> None:
    pole("filter a --min-steps 20 --where stream_episode=1 --invert --out new")
    with SequenceReplayBuffer.open("new", read_only=True) as new:
        facts = new.sessions[-1]
    assert facts["command"] == "filter"
    conditions = {"where": {"stream_episode": 1}, "min_steps": 20, "others": True}
    assert facts["conditions"] == conditions


def labelled(path: str, spec: Any = SPEC, store: int = 0, **recipe: object) -> None:
    """A store whose episodes' metadata is worth filtering."""
    with SequenceReplayBuffer(path) as replay:
        replay.bind(spec, {"recipe": {"id": "A-v0", **recipe}})
        for number, task in enumerate(["door", "key", "door", "3"]):
            chunk = whole(store, number, 4 + number, End.TERMINATED)
            metadata = {"task": task, "level": number, "won": number > 1}
            replay.add([Chunk(number, 0, 0, chunk.end, chunk.fields, metadata)])


def test_stores_of_other_envs_are_merged_only_on_request(stepwell: CommandLine) -> None:
    labelled("a", frame_skip=4)
    labelled("b", store=1, frame_skip=2)
    result = stepwell("merge a b --out new")
    assert result.code == 2
    assert has_parts(result.err, "/b |/a: |frame_skip 4, got 2|--any-envs"), result.err
    assert not Path("new").exists()
    assert stepwell("merge a b --out new --any-envs").code == 0
    assert len(episodes_of("new")) == 8


# A command, and parts of its error message, in order.
BAD_COMMANDS = [
    ("merge a --out new", "merge: |two |got one|stepwell copy"),
    ("merge a b a --out new", "merge: |got a twice"),
    ("merge a b --out new --duplicates drop", "duplicates: |'skip' or 'keep', got 'drop'"),
    ("merge a nowhere --out new", "/nowhere |manifest.json"),
    ("merge a b", "'--out'|stepwell merge --help"),
    ("merge --out new", "'DIR|stepwell merge --help"),
    ("copy a --out b", "--out b holds a store already"),
    ("copy a --out a", "--out a holds a store already"),
    ("copy a --out full", "/full is not empty"),
    ("copy a --out file", "/file is a file"),
    ("copy nowhere --out new", "/nowhere |manifest.json"),
    ("copy a --out new --codec observation=jpeg", "--codec: |FIELD=CODEC|got 'observation=jpeg'"),
    ("copy a --out new --codec colour=raw", "codecs |'colour'|action, observation, reward"),
    ("filter a --out new", "condition|got none|--min-return"),
    ("filter a --invert --dry-run", "condition|got none|--where"),
    ("filter a --ended", "--out |--dry-run, got neither"),
    ("filter a --ended --cut --out new", "--ended or --cut, got both"),
    ("filter a --min-return x --out new", "--min-return: |got 'x'"),
    ("filter a --min-return 2 --max-return 1 --out new", "min_return: |max_return=1.0, got 2.0"),
    ("filter a --min-steps few --out new", "--min-steps: |>= 0|got 'few'"),
    ("filter a --min-steps 9999 --out new", "none of 15 episodes|copied"),
    ("filter a --episodes 5-3 --out new", "--episodes: |3,10-20, got '5-3'"),
    ("filter a --episodes 0,999 --out new", "--episodes: | a |999|0-14"),
    ("filter a --where task --out new", "--where: |key=value|got 'task'"),
    ("filter a --where task=3 --out new", "--where: | a |'task'|seed, session, stream_episode"),
    ("filter a --where seed=1 --where seed=2 --out new", "--where: |got 'seed' twice"),
    ("filter nowhere --cut --dry-run", "/nowhere |manifest.json"),
    ("filter a --top 0 --out new", "--top: |'0'"),
    ("filter a --top many --out new", "--top: |'many'"),
    ("filter a --bottom 0% --out new", "bottom: |'0%'"),
    ("filter a --top 1 --bottom 1 --out new", "top=1 and bottom=1"),
    ("filter a --sort steps --out new", "sort='steps'|--top"),
    ("filter a --include-cut --out new", "include_cut|--top"),
    ("filter a --top 1 --sort reward --out new", "--sort: |'reward'|return, steps, id, seed"),
]


@pytest.mark.parametrize(("command", "parts"), BAD_COMMANDS)
def test_a_bad_command_gets_one_sentence_and_writes_nothing(
    command: str, parts: str, pole: CommandLine
) -> None:
    there = {path: path.is_file() and path.read_bytes() for path in sorted(Path().rglob("*"))}
    result = pole(command)
    assert (result.code, result.out) == (2, "")
    assert has_parts(result.err, parts), result.err
    assert result.err.count("\n") == 1
    after = {path: path.is_file() and path.read_bytes() for path in sorted(Path().rglob("*"))}
    assert after == there


@pytest.mark.proof
@pytest.mark.parametrize("was_there", ["", "folder", "link"])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("command", ["copy a", "filter a --ended"])
def test_ctrl_c_leaves_nothing(
    command: str, when: int, was_there: str, pole: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if was_there:
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
    result = pole(f"{command} --out {was_there or 'deep/new'}")
    assert (result.code, result.out) == (130, "")
    assert result.err == "stepwell: interrupted; nothing kept\n"
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
    result = pole(f"{command} --out new")
    assert (result.code, result.out) == (130, "")
    assert result.err == "stepwell: interrupted; nothing kept\n"
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


def test_a_copy_goes_into_the_folder_that_a_link_names(pole: CommandLine) -> None:
    Path("there").mkdir()
    Path("link").symlink_to("there")
    assert pole("copy a --out link").code == 0
    assert Path("link").readlink() == Path("there")
    assert contents("there") == contents("a")
    assert not list(Path().glob("*.part"))


def cut_and_whole(path: str) -> tuple[list[Episode], list[Episode]]:
    both = episodes_of(path)
    return [e for e in both if not e.end.is_final], [e for e in both if e.end.is_final]


def test_the_best_are_whole_episodes_and_the_others_are_named(pole: CommandLine) -> None:
    cut, ended = cut_and_whole("a")
    best = sorted(ended, key=lambda e: (-e.total_reward, e.id))[: -(-len(ended) // 10)]
    result = pole("filter a --top 10% --out best")
    assert (result.code, result.err) == (0, "")
    assert f"{len(cut)} cut " in result.out
    assert "--include-cut" in result.out
    found = [e.total_reward for e in episodes_of("best")]
    assert found == [e.total_reward for e in sorted(best, key=lambda e: e.id)]
    facts = pole.json("filter a --top 10% --invert --out rest")
    assert facts["episodes"] + len(best) == len(cut) + len(ended)
    assert facts["not_whole_episodes"] == len(cut)
