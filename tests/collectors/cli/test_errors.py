"""Whose fault an error is: one sentence for the user's, the traceback for a bug in Stepwell."""

from __future__ import annotations

import errno
import linecache
import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import stepwell.collectors
from stepwell.buffers import StoreNotFound
from stepwell.collectors.cli.errors import exit_on_error, sentence_of, show_error

FOLDER = Path(stepwell.collectors.__file__).parent


def function(file: Path, source: str) -> Callable[[Callable[[], object]], object]:
    """The function `run` of a source that claims to stand in a file."""
    linecache.cache[str(file)] = (len(source), None, source.splitlines(keepends=True), str(file))
    names: dict[str, Callable[[Callable[[], object]], object]] = {}
    exec(compile(source, str(file), "exec"), {"np": np}, names)
    return names["run"]


def raised_by(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
        call()
    return caught.value


def in_stepwell(source: str, call: Callable[[], object] = lambda: None) -> BaseException:
    """The error that a line of Stepwell's raises; the line may call ``call``."""
    run = function(FOLDER / "planted.py", f"def run(call):\n    {source}\n")
    return raised_by(lambda: run(call))


def in_users(source: str) -> Callable[[], object]:
    run = function(Path("/home/user/agent.py"), f"def run(call):\n    {source}\n")
    return lambda: run(lambda: None)


@pytest.mark.parametrize("kind", ["ValueError", "TypeError", "ImportError", "RuntimeError"])
def test_what_stepwell_raises_on_purpose_is_a_sentence(kind: str) -> None:
    assert sentence_of(in_stepwell(f"raise {kind}('x: expected 1,\\n got 2')")) == (
        "x: expected 1, got 2"
    )


@pytest.mark.parametrize(
    "source",
    [
        "np.zeros(3) + np.zeros(4)",  # a ValueError, but numpy's
        "np.stack([np.zeros(3), np.zeros(4)])",  # raised by a line of numpy's own
        "int('x')",
        "{}['x']",
        "assert False, 'this cannot be'",
        "raise KeyError('x')",
    ],
)
def test_a_bug_in_stepwell_is_no_sentence(source: str) -> None:
    assert sentence_of(in_stepwell(source)) is None


def test_an_error_of_the_code_that_stepwell_runs_is_a_sentence_with_its_place() -> None:
    for source in ("[1][5]", "np.zeros(3) + np.zeros(4)", "np.stack([np.zeros(3), np.zeros(4)])"):
        sentence = sentence_of(in_stepwell("call()", in_users(source)))
        assert sentence is not None
        assert sentence.startswith("agent.py:2 raised ")
        assert sentence.endswith("--debug shows the traceback")


def test_errors_of_the_environment_are_sentences_wherever_they_come_from() -> None:
    assert sentence_of(StoreNotFound("a holds no store")) == "a holds no store"
    no_room = OSError(errno.ENOSPC, "No space left on device", "/tmp/a")
    assert sentence_of(no_room) == "No space left on device (/tmp/a)"
    of_hdf5 = OSError(errno.ENOSPC, "file write failed: time = now\n, offset = 0)", None)
    assert sentence_of(of_hdf5) == "file write failed: time = now , offset = 0)"
    missing = gymnasium.error.DependencyNotInstalled("Box2D is not installed")
    assert sentence_of(missing) == "Box2D is not installed"


@pytest.mark.filterwarnings("default")
def test_a_warning_of_stepwell_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(stepwell.collectors.__file__).parent / "loop" / "collector.py"
    with exit_on_error(debug=False):
        warnings.warn_explicit("env 0 is odd", UserWarning, str(own), 1)
        with pytest.warns(UserWarning, match="another"):
            warnings.warn_explicit("another", UserWarning, "/another/library.py", 1)
    assert capsys.readouterr().err == "stepwell: warning: env 0 is odd\n"


def test_debug_lets_every_error_through() -> None:
    with pytest.raises(StoreNotFound, match="gone"), exit_on_error(debug=True):
        raise StoreNotFound("gone")


def test_a_terminal_is_given_no_commands_by_what_a_text_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_error("field 'a\x1b[2Jb\x07\x9b' of é [/]")
    shown = capsys.readouterr().err
    assert "field 'a\\x1b[2Jb\\x07\\x9b' of é [/]" in shown


def test_out_of_memory_says_for_what_where_stepwell_knows_it() -> None:
    planted = in_stepwell("raise MemoryError('episode 3 takes 9 GB')")
    assert sentence_of(planted) == "episode 3 takes 9 GB"
    elsewhere = raised_by(in_users("raise MemoryError"))
    assert "--num-envs" in str(sentence_of(elsewhere))
