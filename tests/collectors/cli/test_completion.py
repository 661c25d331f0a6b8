"""Completions: Typer's own where those know the answer, in the shells themselves, and harmless."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import re
import runpy
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ale_py
import gymnasium
import pytest
import typer
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from stepwell.collectors.cli import completion
from stepwell.collectors.cli.app import app
from stepwell.collectors.cli.completion import answer, candidates, table
from stepwell.collectors.cli.envs import catalogue
from support.source_tree import CHECKOUT

WRITER = CHECKOUT / ".ci" / "write_completions.py"
COMMANDS = [name for name in table() if name]
SECONDS = 60.0
PLAIN = re.compile(r"[\w./:=+-]+")


def words(line: str) -> list[str]:
    """The candidates at the end of a line."""
    *before, word = line.split(" ")
    return [each.word for each in candidates(before, word)]


@functools.cache
def typers_command() -> Callable[..., object]:
    return typer.main.get_command(app)


def of_typer(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> set[str]:
    """Typer's own answer, from the commands' signatures."""
    pieces = ["stepwell", *line.split(" ")]
    with monkeypatch.context() as patch:
        patch.setenv("_STEPWELL_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", "\n".join(pieces))
        patch.setenv("COMP_CWORD", str(len(pieces) - 1))
        capsys.readouterr()
        with pytest.raises(SystemExit):
            typers_command()(prog_name="stepwell")
    return set(capsys.readouterr().out.split())


def store(*parts: str) -> None:
    folder = Path(*parts)
    folder.mkdir(parents=True)
    folder.joinpath("manifest.json").touch()


@pytest.mark.skipif(not WRITER.is_file(), reason="needs a checkout")
def test_the_table_is_that_of_the_commands() -> None:
    text = runpy.run_path(str(WRITER))["table_text"]()
    current = Path(completion.__file__).with_name("completions.txt").read_text()
    assert current == text, "run: python .ci/write_completions.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_that_typer_names(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [one for one in table()[command].parameters if one.is_option]
    given = " ".join(
        one.names[0] if one.values == "-" else f"{one.names[0]} 1"
        for one in options[:4]
        if one.names[0] != "--help"
    )
    for line in (f"{command} -", f"{command} x --d", f"{command} {given} --"):
        assert set(words(line)) == of_typer(line, monkeypatch, capsys), line
    for one in options:
        line = f"{command} {one.names[0]} "
        if one.values and one.values[0] not in "<-" and one.names[0] in ("--pool", "--backend"):
            assert set(words(line)) == of_typer(line, monkeypatch, capsys)


@pytest.mark.parametrize("line", ["", "e", "ex", "-", "--", "nothing --", "nothing "])
def test_commands_are_those_that_typer_names(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = of_typer(line, monkeypatch, capsys)
    if line.startswith("nothing"):  # Typer goes on with the options before the command
        expected = set()
    assert set(words(line)) == expected


def test_values_are_looked_up() -> None:
    store("runs", "pong")
    store("runs", "deep", "er", "pole")
    store("runs", "pong", "inner")  # in a store, where none belongs
    store(".hidden", "one")
    Path("link").symlink_to("runs/pong")
    Path("loop").symlink_to(".")
    for name in ("pong.swa", "run.toml", "game.nes", "runs/model.zip", "other.txt"):
        Path(name).touch()
    stores = ["runs/deep/er/pole", "runs/pong"]
    assert words("info r") == words("verify x r") == words("export --to npz r") == stores
    assert words("info ") == ["link", "pong.swa", *stores]
    assert (
        words("info runs/p") == words("info -- runs/p") == words("merge a b runs/p") == stores[1:]
    )
    assert words("info .h") == [".hidden/one"]
    assert words(f"info {os.getcwd()}/runs/po") == [f"{os.getcwd()}/runs/pong"]
    assert words("info x ") == words("info s3://r") == words("info nowhere/") == []
    assert words("restore ") == ["pong.swa"]
    assert words("collect --config ") == ["run.toml"]
    assert words("collect --config=") == ["--config=run.toml"]
    assert words("collect Pong --policy ") == ["random", "sb3:runs/model.zip"]
    assert words("collect Pong --policy sb3:runs/m") == ["sb3:runs/model.zip"]
    assert words("verify runs/pong --rom ") == ["game.nes"]
    assert words("export --to d") == ["d3rlpy", "diamond", "dreamerv3"]
    assert "memmap-replay-buffer" in words("import --from ")
    assert words("merge --duplicates ") == ["refuse", "skip", "keep"]
    assert words("collect Pong --steps ") == words("collect Pong --out ") == []
    assert words("collect Pong --resume g") == words("collect --steps 9 Pong x") == []


def test_home_is_found_and_stays_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store("runs", "pong")
    assert words("info ~/r") == ["~/runs/pong"]


def test_too_many_files_are_left_to_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    store("a")
    monkeypatch.setattr(completion, "_MOST_ENTRIES", 3)
    assert words("info ") == ["a"]
    for number in range(3):
        Path(f"b{number}").touch()
    assert words("info ") == []
    assert words("info a") == []


def test_ids_of_envs() -> None:
    found = catalogue()
    gymnasium.register_envs(ale_py)
    Path("game.nes").touch()
    names = words("collect ")
    assert set(found.ready) < set(names)
    assert {"Pong", "MsPacman", "game.nes"} < set(names)
    assert not set(names) & set(found.atari)
    assert words("collect pong") == ["Pong"]
    assert words("evaluate ALE/P") == [name for name in found.atari if name.startswith("ALE/P")]
    assert words("collect PongN") == [name for name in found.old_atari if name.startswith("PongN")]
    assert words("collect cartp") == ["CartPole-v0", "CartPole-v1"]
    assert words("collect module:") == []


HOSTILE = ["a b", "$(touch x)", "`touch x`", "a;touch x", "-rf", "\\$(touch x)", "a'", 'a"b', "~x"]


@pytest.mark.parametrize("name", [*HOSTILE, "a\nb", "a:b", "*", "ö\x85"])
def test_names_that_a_shell_could_run_are_not_offered(name: str) -> None:
    store("runs", "pong")
    store(name)
    assert words("info ") == []
    assert words("info runs/") == ["runs/pong"]


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1))
def test_any_name_of_a_store_is_offered_plain_or_not_at_all(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        folder = Path("any").absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        patch.chdir(folder)
        try:
            store(name)
        except OSError:  # too long, or "."
            return
        for each in words("info "):
            assert each == name
            assert PLAIN.fullmatch(each)


def environment(shell: str, line: str, **more: str) -> dict[str, str]:
    return {"_STEPWELL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, **more}


def test_zsh_and_fish_get_words_with_help() -> None:
    store("runs", "pong")
    text, code = answer(environment("zsh", "stepwell env")) or ("", 1)
    assert (code, text.count("\n")) == (0, 0)
    assert text.startswith('_arguments \'*: :(("envs":"List the envs to collect from\\\\: Atari')
    assert answer(environment("zsh", "stepwell info runs/")) == (
        "_arguments '*: :((\"runs/pong\"))'",
        0,
    )
    assert answer(environment("zsh", "stepwell info nowhere/")) == ("_files", 0)
    action = "_TYPER_COMPLETE_FISH_ACTION"
    line = "stepwell 'info' \"runs/p"
    assert answer(environment("fish", line, **{action: "get-args"})) == ("runs/pong", 0)
    assert answer(environment("fish", line, **{action: "is-args"})) == ("", 0)
    assert answer(environment("fish", f"{line} x", **{action: "is-args"})) == ("", 1)
    text, _ = answer(environment("fish", "stepwell rep", **{action: "get-args"})) or ("", 1)
    assert [line.split("\t")[0] for line in text.splitlines()] == ["report", "repair"]
    assert answer(environment("powershell", "stepwell ")) is None
    assert answer({"_STEPWELL_COMPLETE": "source_bash"}) is None


def test_texts_are_quoted_for_zsh_as_typer_does() -> None:
    from typer._click.shell_completion import CompletionItem
    from typer._completion_classes import ZshComplete

    typers = ZshComplete(None, {}, "stepwell", "_STEPWELL_COMPLETE")  # type: ignore[arg-type]
    for text in [*HOSTILE, 'it\'s $5: `x` "y"', *(one.help for one in table().values())]:
        ours = completion._in_zsh(completion.Candidate("word", text))
        expected = typers.format_completion(CompletionItem("word", help=text))
        assert ours.split() == expected.split()  # Typer's are folded


def test_nothing_large_is_loaded_for_names_of_commands_and_stores() -> None:
    code = (
        "import os, sys\n"
        "from stepwell.collectors.cli import main\n"
        "assert main() == 0\n"
        "large = {'numpy', 'gymnasium', 'typer', 'rich', 'stepwell.buffers'} & set(sys.modules)\n"
        "assert not large, large"
    )
    for line in ("stepwell co", "stepwell collect Pong --", "stepwell info ru"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment("zsh", line)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A new user's home, with stepwell on the path."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "stepwell"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stepwell.collectors.cli "$@"\n')
    command.chmod(0o755)
    return home


def environment_of(home: Path) -> dict[str, str]:
    more = {
        "HOME": str(home),
        "ZDOTDIR": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PS1": "ready ",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**kept, **more, "TERM": "dumb"}


TERMINALS_OWN = re.compile(r"\r|\x1b\[[?\d;]*[A-Za-z]|\x1b\]0;[^\a]*\a|\x1b\(B")
START = {  # without files of this machine's users and distribution
    "bash": ["bash", "--noprofile", "-i"],
    "zsh": ["zsh", "--no-global-rcs", "-i"],
    "fish": ["fish", "-i"],
}


def read_until(terminal: int, pattern: str) -> re.Match[str]:
    """Read what a shell writes until it fits."""
    seen, until = "", time.monotonic() + SECONDS
    while (found := re.search(pattern, TERMINALS_OWN.sub("", seen))) is None:
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return found


@contextlib.contextmanager
def terminal_of(shell: str, home: Path) -> Iterator[int]:
    """The terminal of a shell whose user has installed the completions."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (home / ".local/share/fish/generated_completions").mkdir(parents=True)  # else of all manuals
    installed = subprocess.run(
        [shell, "-c", "stepwell --install-completion; exit 0"],
        env=environment_of(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{shell} completion installed" in installed.stdout, installed.stderr
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 1000, 0, 0))
    process = subprocess.Popen(
        START[shell],
        env=environment_of(home),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # zsh and fish end without a terminal that controls them.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    if shell == "zsh":  # the first Tab only loads the completions: Typer's script is made so
        read_until(ours, "ready ")
        os.write(ours, b"stepwell \t\x15")
    try:
        yield ours
    finally:
        os.close(ours)
        process.kill()
        process.wait()


@pytest.fixture
def bash(home: Path) -> Iterator[int]:
    with terminal_of("bash", home) as terminal:
        yield terminal


def line_after_tab(terminal: int, line: str) -> str:
    """The line that a shell has made of a beginning and a Tab."""
    os.write(terminal, f"{line}\t".encode() + b"\x01echo '<' \x05 '>'\n")  # Ctrl-A, Ctrl-E
    return read_until(terminal, r"\n< (.*) >")[1]


COMPLETED = {
    "stepwell evalu": "stepwell evaluate",
    "stepwell info runs/": "stepwell info runs/pong",
    "stepwell collect Pon": "stepwell collect Pong",
    "stepwell collect ALE/Pon": "stepwell collect ALE/Pong-v5",
    "stepwell collect Pong --polic": "stepwell collect Pong --policy",
    "stepwell export runs/pong --to mina": "stepwell export runs/pong --to minari",
}


@pytest.mark.parametrize("shell", START)
def test_shells_complete_the_words_of_a_line(shell: str, home: Path) -> None:
    store("runs", "pong")
    with terminal_of(shell, home) as terminal:
        for line, whole in COMPLETED.items():
            assert line_after_tab(terminal, line) == whole


def test_bash_completes_words_that_it_splits_and_names_of_files(bash: int) -> None:
    for name in ("run.toml", "models.zip", "a file"):
        Path(name).touch()
    for line, whole in (
        ("stepwell collect Pong --policy sb3:mo", "stepwell collect Pong --policy sb3:models.zip"),
        ("stepwell collect --config=ru", "stepwell collect --config=run.toml"),
        ("stepwell import a", "stepwell import a file"),  # bash's own names of files, quoted
    ):
        assert line_after_tab(bash, line) == whole


def test_bash_runs_nothing_of_a_name(bash: int) -> None:
    for number, name in enumerate(HOSTILE):
        store(f"in{number}", name)
        line_after_tab(bash, f"stepwell info in{number}/")
    line_after_tab(bash, "stepwell info ")
    assert not Path("x").exists()
