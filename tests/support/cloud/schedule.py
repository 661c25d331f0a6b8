"""Random schedules of a writer, its uploaders and pulls, against the rows that were written."""

from __future__ import annotations

import datetime
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from stepwell.buffers import DiskStorage, StoreLocked
from stepwell.buffers.exchange.publish.uploader import Uploader, newest_manifest
from stepwell.buffers.rows.episode import End
from stepwell.buffers.testing import SPEC, Recording
from support.cloud.faulty_objects import FaultyObjects, Killed, Place, fetch_all
from support.crash.disk_faults import NoSyncFiles

COLUMNS = ("episode", "stream", "first_row", "row_id", "stored_rows", "nbytes")
ACTIONS = ("add", "seal", "upload", "faulty upload", "restart", "zombie", "read", "down")


class Schedule:
    """One writer into an empty folder, uploads of it, and pulls from the place."""

    def __init__(
        self, folder: Path, seed: int, capacity: int | None, *, keep_evicted: bool
    ) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.place = Place()
        self.store = DiskStorage.create(
            folder / "store", SPEC, capacity=capacity, segment_bytes=20_000, files=NoSyncFiles()
        )
        self.recording = Recording()
        self.truth: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        """For each position the bytes of the chunk, and what its record says."""
        self.keep_evicted = keep_evicted
        self.acknowledged = -1
        """Position of the chunk after the last one that a returned upload has published."""
        self.zombies: list[Uploader] = []
        self.objects: FaultyObjects
        self.uploader = self.new_uploader()
        self.wins = self.refusals = 0

    def new_uploader(self) -> Uploader:
        self.objects = self.place.connect()
        return Uploader(self.folder / "store", self.objects, keep_evicted=self.keep_evicted)

    def run(self, actions: list[str]) -> None:
        for action in actions:
            getattr(self, action.replace(" ", "_"))()
        self.objects.is_down, self.objects.calls_left = False, None
        self.restart()  # a process that begins again where the last one ended
        self.upload()
        self.store.seal()
        self.upload()
        assert self.check() == len(self.truth)
        self.place.age = datetime.timedelta(days=2)
        self.restart()  # it removes what killed ones have left
        assert self.uploader.newest is not None
        there = {name for name in self.place.objects if not name.startswith("manifests/")}
        assert there == set(self.uploader.newest.names.values())
        assert len(self.place.objects) - len(there) <= 8

    def add(self) -> None:
        chunks = [
            self.recording.chunk(
                self.random.randrange(3),
                self.random.randrange(1, 30),
                self.random.choice([End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]),
            )
            for _ in range(self.random.randrange(1, 4))
        ]
        before = len(self.truth)
        for chunk in chunks:
            self.store.add([chunk])
            index = self.store.index
            for position in range(before, index.base + len(index)):
                memory, offset = self.store.payload(position)
                record = index.record(position)
                data = bytes(memory[offset : offset + record.nbytes])
                self.truth[position] = data, tuple(getattr(record, name) for name in COLUMNS)
            before = len(self.truth)

    def seal(self) -> None:
        self.store.seal()

    def upload(self) -> None:
        sealed = [each for each in self.sealed_stops()]
        try:
            self.uploader.upload()
        except ConnectionError:
            assert self.objects.is_down
            return
        except StoreLocked:
            self.lose_to_a_zombie()
            return
        self.acknowledged = max([self.acknowledged, *sealed])
        self.wins += 1

    def sealed_stops(self) -> list[int]:
        """Positions after the last chunk of each sealed segment."""
        records, base = self.store.index.records, self.store.index.base
        numbers = {entry.number for entry in self.store._view.manifest.sealed}
        return [
            base + place + 1
            for place, number in enumerate(records["segment"].tolist())
            if number in numbers
        ]

    def faulty_upload(self) -> None:
        self.objects.calls_left = self.random.randrange(12)
        self.objects.happens = self.random.random() < 0.5
        errors: list[Callable[[], BaseException]] = [Killed, lambda: ConnectionError("cut")]
        self.objects.error = self.random.choice(errors)
        sealed = self.sealed_stops()
        try:
            self.uploader.upload()
            self.acknowledged = max([self.acknowledged, *sealed])
        except Killed:
            self.uploader = self.new_uploader()
        except ConnectionError:
            pass
        except StoreLocked:
            self.lose_to_a_zombie()
        self.objects.calls_left = None

    def lose_to_a_zombie(self) -> None:
        """A zombie went on before this uploader had published anything: the user starts again."""
        writers = {zombie._writer for zombie in self.zombies}
        newest = newest_manifest(self.place.connect())
        assert newest is not None
        assert newest.writer in writers
        self.zombies.append(self.uploader)
        self.uploader = self.new_uploader()

    def restart(self) -> None:
        """Another process uploads; the one before is taken for dead, but lives."""
        self.zombies.append(self.uploader)
        self.uploader = self.new_uploader()
        self.upload()

    def zombie(self) -> None:
        """A process that was replaced tries to go on: it is refused if it has anything to say."""
        if not self.zombies:
            return
        zombie = self.random.choice(self.zombies)
        newest = newest_manifest(self.place.connect())
        before = zombie.newest
        zombie_objects = zombie._objects
        assert isinstance(zombie_objects, FaultyObjects)
        zombie_objects.is_down, zombie_objects.calls_left = False, None
        try:
            zombie.upload()
        except StoreLocked:
            self.refusals += 1
            return
        if zombie.newest is not before and newest is not None and before is not None:
            # It has published: then no other one had since it last did.
            assert newest.number == before.number or newest.writer == zombie._writer
        if zombie.newest is not before:
            self.acknowledged = max([self.acknowledged, *self.sealed_stops()])

    def read(self) -> None:
        if any(name.startswith("manifests/") for name in self.place.objects):
            assert self.check() >= self.acknowledged
        else:
            assert self.acknowledged < 0

    def check(self) -> int:
        """Pull what is there, compare it, and return the position after its last chunk."""
        with tempfile.TemporaryDirectory() as folder:
            fetch_all(self.place.connect(), Path(folder))
            with DiskStorage.open(folder, read_only=True) as storage:
                index = storage.index
                assert storage.lost_chunks == 0
                if self.keep_evicted:
                    assert index.base == 0
                for position in range(index.base, index.base + len(index)):
                    data, facts = self.truth[position]
                    memory, offset = storage.payload(position)
                    record = index.record(position)
                    assert bytes(memory[offset : offset + record.nbytes]) == data
                    assert tuple(getattr(record, name) for name in COLUMNS) == facts
                    storage.metadata(position)
                assert index.rows == int(index.records["rows"].sum())
                return index.base + len(index)

    def down(self) -> None:
        self.objects.is_down = not self.objects.is_down

    def drop(self) -> None:
        """Remove what is uploaded from the folder, as `GroupFolder` does."""
        newest = self.uploader.newest
        if self.keep_evicted and newest is not None:
            self.store.drop_before(newest.store.next.row_id)


def run_schedule(seed: int, length: int = 40) -> Schedule:
    """Run a random schedule."""
    choice = random.Random(seed)
    kind = choice.randrange(3)
    with tempfile.TemporaryDirectory() as folder:
        schedule = Schedule(Path(folder), seed, 200 if kind == 1 else None, keep_evicted=kind == 2)
        actions = (*ACTIONS, "add", "add", "upload", "seal", "drop")
        with schedule.store:
            schedule.run([choice.choice(actions) for _ in range(length)])
    return schedule
