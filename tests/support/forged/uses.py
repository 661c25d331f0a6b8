"""Uses of a folder from an untrusted source, and the checks of each.

A forged store either reads as something consistent, or is refused in a sentence, always in the same
way: `verify` and the reader agree. Nothing outside of the folder is touched, and who only reads
does not touch the folder either.

One case, alone and without limits: ``python tests/support/forged/uses.py NUMBER``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import shutil
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer.main

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    End,
    Episodes,
    NotEnoughData,
    SequenceReplayBuffer,
    Sequences,
    Spec,
    Transitions,
    repair,
    verify,
)
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.provenance.chains import chains_of
from stepwell.collectors.cli import app as command_line
from support.crash.hostile_runner import Canaries, Fault, attempt
from support.forged.folders import KINDS, Store, make_store
from support.forged.forgeries import FORGERIES

__all__ = ["READING", "WRITING", "ForgedCases"]

DONE = "done"
# Words of the refusals of bytes that are not what was written: a forgery did not get past them.
_CHECKSUM = ("wrong checksum", "header is damaged", "are not what was written;")

_SENSELESS = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    struct.error,
)

Use = Callable[[Path, random.Random], object]


@dataclass(frozen=True)
class ForgedCases:
    """Makes what runs the case of a number."""

    folder: Path  # where the stores are

    def __call__(self) -> Callable[[int], Mapping[str, str]]:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "good").mkdir(parents=True)
        stores = {kind: make_store(kind, self.folder / "good") for kind in KINDS}
        warnings.simplefilter("ignore")  # of numpy, about numbers that overflow
        # Built once, not for every command: that takes longer than most of the commands.
        command_line.app = typer.main.get_command(command_line.app)  # type: ignore[assignment]
        return lambda number: _Case(self.folder, stores, number).run()


class _Case:
    """A forged store, what was forged, and the uses that it is put to."""

    def __init__(self, folder: Path, stores: Mapping[str, Store], number: int) -> None:
        self.base = folder / "case"
        self.path, self._good = self.base / "store", folder / "good"
        self.number, self._rng = number, random.Random(number)
        self._stores = stores
        self.name, self.store, self.what = self._forged()
        self._labels = {"forgery": self.name, "store": self.store.kind}

    def run(self) -> Mapping[str, str]:
        """Use it; a fault says what was forged."""
        try:
            self.write()
            self._use()
        except Fault as fault:
            raise Fault(fault.signature, f"{self.what}\n{fault}") from fault.__cause__
        except Exception as error:
            error.add_note(self.what)
            raise
        return self._labels

    def write(self) -> None:
        """Write the store, and the files next to it."""
        shutil.rmtree(self.base, ignore_errors=True)
        (self.base / "beside" / "folder").mkdir(parents=True)
        for name in ("model.bin", "folder/x.bin", "copy.bin"):
            (self.base / "beside" / name).write_bytes(b"precious " * 1000)
        self.store.write(self.path)

    def _forged(self) -> tuple[str, Store, str]:
        names, weights = [*FORGERIES], [each.weight for each in FORGERIES.values()]
        while True:
            chosen = self._rng.choices(names, weights, k=self._rng.choice((1, 1, 1, 2)))
            for kind in self._rng.sample(list(self._stores), len(self._stores)):
                store = self._stores[kind].clone()
                done = self._forge(store, chosen)
                if done is not None:
                    return chosen[0], store, f"{kind}; {'; '.join(done)}"

    def _forge(self, store: Store, names: Sequence[str]) -> list[str] | None:
        """Forge the store; None if it has, or no longer has, the thing to change."""
        done: list[str] = []
        for name in names:
            try:
                what = FORGERIES[name].forge(store, self._rng)
            except _SENSELESS:
                if not done:
                    raise
                return None  # it cannot make sense of what the one before it has left
            if not what:
                return None
            done.append(f"{name}: {what}")
        return done

    def _use(self) -> None:
        all_of_it = Canaries(self.base, frozenset({"out"}))
        digests: list[str] = []
        verified = attempt("verify", lambda: _verified(self.path), ())
        all_of_it.check("verify")
        read = attempt("reading", lambda: digests.append(_read(self.path)), ())
        all_of_it.check("reading")
        self._labels |= {"verify": _first_word(verified), "read": _first_word(read)}
        said = read + verified
        is_stopped = read != DONE and any(word in said for word in _CHECKSUM)
        self._labels["checksums"] = "stopped it" if is_stopped else "passed"
        # What is whole may still be too much for the memory that there is, also where something
        # else is damaged, and a row that comes again in the next chunk may be damaged there without
        # being read.
        is_too_much = read.startswith(f"MemoryError: {'' if verified == DONE else 'episode '}")
        is_unread = read == DONE and verified.startswith("Damaged: ") and _comes_again(self.path)
        if (verified == DONE) != (read == DONE) and not (is_too_much or is_unread):
            raise Fault(
                f"verify and the reader disagree: {_first_word(verified)}, {_first_word(read)}",
                f"verify: {verified}\nthe reader: {read}",
            )
        has_place = str(self.path) in read or "stepwell verify" in read
        if read != DONE and not has_place and not is_too_much:
            raise Fault("refused without the place", read)
        names = self._rng.sample(sorted(READING), self._rng.choice((1, 1, 2)))
        if "checkpoint" in self.what and "checkpoint" not in names:
            names.append("checkpoint")
        for name in names:
            use = functools.partial(READING[name], self.path, self._rng)
            ending = attempt(name, use, use_accepts(name))
            all_of_it.check(name)
            self._labels[name] = _first_word(ending)
            shutil.rmtree(self.base / "out", ignore_errors=True)
        if random.Random(f"refresh {self.number}").random() < 0.1:
            good = self._good / self.store.kind
            ending = attempt("refresh", lambda: _refresh(self.path, good), ())
            all_of_it.check("refresh")
            self._labels["refresh"] = _first_word(ending)
            shutil.rmtree(self.base / "out", ignore_errors=True)
        beside = Canaries(self.base, frozenset({"out", "store"}))
        name = self._rng.choice(sorted(WRITING))
        ending = attempt(name, lambda: WRITING[name](self.path, self._rng))
        beside.check(name)
        self._labels[name] = _first_word(ending)
        if ending == DONE:
            self._check_after(name, digests, read)

    def _check_after(self, name: str, before: list[str], read: str) -> None:
        """Check that a repaired store is readable, with the same rows as before."""
        after: list[str] = []
        again = attempt(f"verify after {name}", lambda: _verified(self.path), ())
        again += attempt(f"reading after {name}", lambda: after.append(_read(self.path)), ())
        # A writer reads no rows, so that it need not find what is wrong with them.
        must_read = name.startswith("repair") or read == DONE
        is_too_much = again.startswith(f"{DONE}MemoryError: ")
        is_unread = again.startswith("Damaged: ") and again.endswith(DONE)
        is_unread = is_unread and not name.startswith("repair") and _comes_again(self.path)
        if must_read and again != DONE + DONE and not (is_too_much or is_unread):
            raise Fault(f"{name} left something that does not read", f"{name}: {again}")
        if name in ("write", "repair") and before and after != before:
            raise Fault(f"{name} changed the rows", f"{before} -> {after}")


class Damaged(NotEnoughData):
    """`verify` does not call it whole."""


def _verified(path: Path) -> None:
    report = verify(path)
    if not report.is_whole:
        raise Damaged("; ".join(damage.what for damage in report.damages))


def _read(path: Path) -> str:
    """Read every row and all metadata."""
    with SequenceReplayBuffer.open(path, read_only=True, threads=1) as replay:
        digest, storage = replay.digest(), replay.storage
        table = storage.index
        for position in range(table.base, table.base + len(table)):
            if not table.record(position).end & End.LOST:
                storage.payload(position)
                assert len(storage.metadata(position)) >= 0
        chains_of(storage)
        return digest


def use_accepts(name: str) -> tuple[type[Exception], ...]:
    """Errors, besides Stepwell's own, that may refuse a use."""
    return (ValueError,) if name.startswith(("sample", "checkpoint", "command")) else ()


def _comes_again(path: Path) -> bool:
    """A last row was waiting for its action, and stands in the next chunk with it."""
    with DiskStorage.open(path, read_only=True) as storage:
        records = storage.index.records
        is_kept = records["end"] & End.LOST == 0
        return bool((is_kept & (records["rows"] < records["stored_rows"])).any())


def _sample(path: Path, rng: random.Random) -> None:
    draws = np.random.default_rng(rng.getrandbits(32))
    with SequenceReplayBuffer.open(path, read_only=True, threads=1, seed=0) as replay:
        length = rng.choice((1, 2, 5))
        is_stacked = any(field.stack > 1 for field in replay.spec.fields)
        stack = is_stacked and rng.random() < 0.5
        requests: tuple[Any, ...] = (
            Sequences(4, length, stack=stack),
            Sequences(3, length, borders=rng.choice(("cross", "pad_after", "pad_before"))),
            Sequences(3, length, burn_in=2, draw=rng.choice(("episodes", "ends", "recent"))),
            Sequences(2, length, where={"seed": 1}),
            Transitions(4, n_step=length, stack=stack),
            Transitions(4, draw="priorities"),
            Episodes(3),
        )
        for request in rng.sample(requests, 3):
            with contextlib.suppress(NotEnoughData):
                batch = replay.sample(request, rng=draws)
                if not isinstance(request, Episodes):
                    replay.take(request, batch.ids)
                    replay.field_rows("reward", batch.ids)
                replay.count(request)


def _skip(path: Path, rng: random.Random) -> None:
    with SequenceReplayBuffer.open(path, read_only=True, on_corrupt="skip", threads=1) as replay:
        with contextlib.suppress(NotEnoughData):
            replay.sample_sequences(4, 2)
        for episode in replay.iter_episodes():
            assert len(episode.reward) == episode.rows
        replay.digest()
        assert replay.lost_chunks >= 0


def _refresh(path: Path, good: Path) -> None:
    """Replace the store that a reader has open by the forged one."""
    opened = Path(shutil.copytree(good, path.parent / "out" / "open"))
    with DiskStorage.open(opened, read_only=True) as storage:
        _replace_files(path, storage.path)
        storage.refresh()
        for position in range(storage.index.base, storage.index.base + len(storage.index)):
            if not storage.index.record(position).end & End.LOST:
                storage.payload(position)


def _replace_files(source: Path, target: Path) -> None:
    for each in target.glob("segment-*"):
        each.unlink()
    for each in source.iterdir():
        if each.is_file() and not each.is_symlink() and each.name != "LOCK":
            copied = target / "copied"
            shutil.copyfile(each, copied)
            copied.replace(target / each.name)


def _checkpoint(path: Path, rng: random.Random) -> None:
    with SequenceReplayBuffer.open(path, read_only=True, threads=1) as replay:
        replay.load_checkpoint()
        with contextlib.suppress(NotEnoughData):
            replay.sample_transitions(4, draw="priorities")


def _several(path: Path, rng: random.Random) -> None:
    with SequenceReplayBuffer.open([path, path.parent.parent / "good" / "append"]) as replay:
        with contextlib.suppress(NotEnoughData):
            replay.sample_sequences(4, 2)


def _export(path: Path, rng: random.Random) -> None:
    with SequenceReplayBuffer.open(path, read_only=True, threads=1) as replay:
        export_episodes(replay, "npz", path.parent / "out" / "npz")


def _command(*words: str) -> Use:
    """A use by the command line; ``--debug`` lets its errors through."""

    def use(path: Path, rng: random.Random) -> None:
        (path.parent / "out").mkdir(exist_ok=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            command_line.main(
                [word.format(store=path, base=path.parent) for word in (*words, "--debug")]
            )

    return use


_NEW = ("--out", "{base}/out/new", "--quiet")
READING: dict[str, Use] = {
    "sample": _sample,
    "skip": _skip,
    "checkpoint": _checkpoint,
    "sample from several": _several,
    "command export": _export,
    "command info": _command("info", "{store}", "--digest"),
    "command info as JSON": _command("info", "{store}", "--json"),
    "command verify": _command("verify", "{store}"),
    "command copy": _command("copy", "{store}", *_NEW),
    "command filter": _command("filter", "{store}", "--min-steps", "2", *_NEW),
    "command filter --invert": _command(
        "filter", "{store}", "--where", "seed=2", "--invert", *_NEW
    ),
    "command merge": _command("merge", "{store}", "{base}/../good/append", "--any-envs", *_NEW),
}


def _write(path: Path, rng: random.Random) -> None:
    with SequenceReplayBuffer.open(path):
        pass


def _add(path: Path, rng: random.Random) -> None:
    with SequenceReplayBuffer.open(path) as replay:
        storage = replay.storage
        assert isinstance(storage, DiskStorage)
        storage.append_session({"seed": 1})
        replay.add([_zeros(storage.spec, storage.index.next_episode)])
        replay.save_checkpoint({"step": 1})


def _zeros(spec: Spec, episode: int) -> Chunk:
    fields = {each.name: np.zeros((3, *each.shape), each.numpy_dtype) for each in spec.fields}
    return Chunk(episode, 0, 0, End.NONE, fields, {"seed": 1})


def _repair_dry(path: Path, rng: random.Random) -> None:
    _require_done(repair(path).is_done)


def _repair(path: Path, rng: random.Random) -> None:
    _require_done(repair(path, yes=True).is_done)


def _require_done(is_done: bool) -> None:
    if not is_done:
        raise Damaged("--yes is needed")


WRITING: dict[str, Use] = {
    "write": _write,
    "add": _add,
    "repair": _repair_dry,
    "repair --yes": _repair,
}


def _first_word(ending: str) -> str:
    return ending.partition(":")[0]


if __name__ == "__main__":
    here = Path(tempfile.mkdtemp(prefix="forged-"))
    print(f"in {here / 'case'}", flush=True)
    print(ForgedCases(here)()(int(sys.argv[1])))
