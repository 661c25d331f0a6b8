"""Completions for a shell: bash, zsh or fish ask with each Tab, and are answered in some 50 ms.

``stepwell --install-completion`` gives the shell a script of Typer's, which runs the command with
the words of the line in its environment. Loading the command's modules takes half a second, so that
the names of commands and options come from the file ``completions.txt`` instead, which
``.ci/write_completions.py`` writes. Stores, files and ids of envs are looked up.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Candidate", "Parameter", "answer", "candidates", "table"]

_TABLE = Path(__file__).with_name("completions.txt")
_MANY = "..."
_FLAG = "-"
_DEPTH = 3  # of folders below the one that is named
_MOST_ENTRIES = 5_000
_BREAKS = frozenset(":=")  # bash makes words of their own of these
# Other names would have to be quoted, and a shell might run what is in them.
_PLAIN = re.compile(r"(?!-)[\w./+-]+")


class Candidate(NamedTuple):
    """A word that may stand at the cursor, with a text about it."""

    word: str
    help: str = ""


class Parameter(NamedTuple):
    """An argument or an option of a command, as `table` has it.

    Args:
        names: ``--out`` and ``-o``, or the argument's name in capitals.
        is_many: It may be given more than once.
        values: ``-`` for a flag; names with ``|`` between them, or what is looked up, such as
            ``<stores>``; empty for a value that nothing is known about.
        help: One sentence.
    """

    names: tuple[str, ...]
    is_many: bool
    values: str
    help: str

    @property
    def is_option(self) -> bool:
        """True for an option, False for an argument."""
        return self.names[0].startswith("-")


class Command(NamedTuple):
    """A command: one sentence about it, and its parameters in order."""

    help: str
    parameters: list[Parameter]


def table() -> dict[str, Command]:
    """Read the commands by name; the command of the name "" is `stepwell` itself.

    Example:
        >>> sorted(table())[:3]
        ['', 'archive', 'collect']
        >>> table()["collect"].parameters[0].names
        ('ENV',)
    """
    commands: dict[str, Command] = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        command, names, values, text = line.split("\t")
        if not names:
            commands[command] = Command(text, [])
            continue
        bare = names.removesuffix(_MANY)
        commands[command].parameters.append(
            Parameter(tuple(bare.split(",")), bare != names, values, text)
        )
    return commands


def answer(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Answer a shell.

    Args:
        environment: What a script of Typer's has set.

    Returns:
        The text for standard output, and the exit code; None if it asks for something else.
    """
    asked = environment["_STEPWELL_COMPLETE"]
    if asked == "complete_bash":
        words, hidden = _of_bash(environment["COMP_WORDS"], int(environment["COMP_CWORD"]))
        found = candidates(words[1:-1], words[-1])
        return "\n".join(each.word[hidden:] for each in found), 0
    if asked not in ("complete_zsh", "complete_fish"):
        return None
    line = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)
    if not words or line.endswith(" "):
        words.append("")
    found = candidates(words[1:-1], words[-1])
    if asked == "complete_zsh":
        described = "\n".join(_in_zsh(each) for each in found)
        return (f"_arguments '*: :(({described}))'" if found else "_files"), 0
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", not found  # with 1, fish completes names of files
    return "\n".join(f"{each.word}\t{each.help}" if each.help else each.word for each in found), 0


def candidates(words: Sequence[str], word: str) -> list[Candidate]:
    """List the words that may stand at the cursor; none leaves it to the shell to name files.

    Args:
        words: The words between `stepwell` and the cursor.
        word: The one at the cursor, as far as it is written.

    Example:
        >>> [each.word for each in candidates([], "ev")]
        ['evaluate']
        >>> [each.word for each in candidates(["collect", "Pong", "--pool"], "")]
        ['max', 'none']
    """
    commands = table()
    name = next((each for each in words if not each.startswith("-")), None)
    if name is None and not word.startswith("-"):
        return [
            Candidate(each, command.help)
            for each, command in commands.items()
            if each and each.startswith(word)
        ]
    command = commands.get(name or "")
    if command is None:
        return []
    after = words[words.index(name) + 1 :] if name else words
    options = {each: one for one in command.parameters if one.is_option for each in one.names}
    arguments = [one for one in command.parameters if not one.is_option]
    given: set[Parameter] = set()
    number, waiting = 0, None  # of arguments; the option whose value comes next
    are_options = True
    for each in after:
        if waiting is not None:
            waiting = None
        elif are_options and each == "--":
            are_options = False
        elif are_options and each.startswith("-") and each != "-":
            option, equals, _ = each.partition("=")
            if option in options:
                given.add(options[option])
                waiting = None if equals or options[option].values == _FLAG else options[option]
        else:
            number += 1
    if waiting is not None:
        return _values(waiting, word)
    option, equals, value = word.partition("=")
    if are_options and equals and option in options:
        return [
            Candidate(f"{option}={found}", text) for found, text in _values(options[option], value)
        ]
    if are_options and word.startswith("-"):
        return [
            Candidate(each, one.help)
            for each, one in options.items()
            if each.startswith(word) and (one.is_many or one not in given)
        ]
    for argument in arguments[number:] or [one for one in arguments[-1:] if one.is_many]:
        return _values(argument, word)
    return []


# Values.


def _values(parameter: Parameter, word: str) -> list[Candidate]:
    values = parameter.values
    look = _LOOKS.get(values)
    if look is not None:
        return [Candidate(each) for each in look(word)]
    if values == _FLAG or not values:
        return []
    return [Candidate(each) for each in _beginning(values.split("|"), word)]


def _beginning(names: Sequence[str], word: str) -> list[str]:
    """The names that begin with a word; if there is none, in upper or lower case."""
    same = [each for each in names if each.startswith(word)]
    return same or [each for each in names if each.lower().startswith(word.lower())]


def _envs(word: str) -> list[str]:
    files = _found(word, _ends(".nes"))
    if ":" in word or (files and "/" in word):
        return files
    # Imported here: nothing else needs Gymnasium, whose import takes 0.15 s.
    from stepwell.collectors.cli.env_ids import env_ids

    ids = env_ids()
    games = [each.removeprefix("ALE/").rpartition("-v")[0] for each in ids.atari]
    whole = list(ids.atari) if word.upper().startswith("ALE/") else []
    names = _beginning([*games, *whole, *ids.ready], word) or _beginning(ids.old_atari, word)
    return [*names, *files]


def _policies(word: str) -> list[str]:
    kind = "sb3:"
    files = word.removeprefix(kind) if word.startswith(kind) else ""
    models = [f"{kind}{each}" for each in _found(files, _ends(".zip"))]
    return [each for each in ("random", *models) if each.startswith(word)]


def _is_store(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and os.path.lexists(os.path.join(entry.path, "manifest.json"))


def _ends(suffix: str) -> Callable[[os.DirEntry[str]], bool]:
    return lambda entry: entry.name.endswith(suffix) and entry.is_file()


def _is_store_or_archive(entry: os.DirEntry[str]) -> bool:
    return _is_store(entry) or _ends(".swa")(entry)


def _found(word: str, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """The paths of files or folders that begin with a word, some folders deep.

    Returns:
        None of them if there is too much to look through, or if one of them would have to be
        quoted: the shell then names files, as it does for other commands.
    """
    if "://" in word:
        return []
    head, slash, tail = word.rpartition("/")
    found: list[str] = []
    left = _MOST_ENTRIES
    folders = [(os.path.expanduser(head + slash) or ".", head + slash, 0)]
    for folder, shown, depth in folders:  # which grows meanwhile
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in itertools.islice(entries, left + 1):
                left -= 1
                is_hidden = entry.name.startswith(".") and (depth or not tail.startswith("."))
                if is_hidden or not f"{shown}{entry.name}".startswith(word):
                    continue
                if is_wanted(entry):
                    found.append(f"{shown}{entry.name}")
                elif depth < _DEPTH and entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, f"{shown}{entry.name}/", depth + 1))
        if left < 0:
            return []
    if not all(_PLAIN.fullmatch(each.removeprefix("~/")) for each in found):
        return []
    return sorted(found)


_LOOKS: dict[str, Callable[[str], list[str]]] = {
    "<archives>": lambda word: _found(word, _ends(".swa")),
    "<cartridges>": lambda word: _found(word, _ends(".nes")),
    "<envs>": _envs,
    "<policies>": _policies,
    "<stores>": lambda word: _found(word, _is_store),
    "<stores and archives>": lambda word: _found(word, _is_store_or_archive),
    "<toml files>": lambda word: _found(word, _ends(".toml")),
}


# Shells.


def _of_bash(text: str, cursor: int) -> tuple[list[str], int]:
    """The words up to the cursor, and how much of the last one bash does not replace.

    Bash has ``sb3:model.zip`` as three words, and ``--out=runs`` too.
    """
    words: list[str] = []
    hidden, is_open = 0, False
    for piece in [*text.split("\n"), ""][: cursor + 1]:
        is_break = bool(piece) and _BREAKS.issuperset(piece)
        if words and (is_open or is_break):
            words[-1] += piece
            hidden = len(words[-1]) - (0 if is_break else len(piece))
        else:
            words.append(piece)
            hidden = 0
        is_open = is_break
    return ["".join(_split(each)) for each in words], hidden


def _split(line: str) -> list[str]:
    """Split as a shell does, also a line whose last quotation is still open."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token)
    return words


def _in_zsh(candidate: Candidate) -> str:
    word, text = (
        re.sub(r"[\"']", r"\g<0>\g<0>", each)
        .replace("$", "\\$")
        .replace("`", "\\`")
        .replace(":", r"\\:")
        for each in candidate
    )
    return f'"{word}":"{text}"' if text else f'"{word}"'
