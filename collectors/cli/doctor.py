"""`stepwell doctor`: versions, emulators, limits and the speed of a disk, for a report of a bug."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ...buffers.base import native
from ...buffers.base.optional_libraries import installed_version
from ...buffers.base.package import __version__
from ..loop.report import format_bytes
from .output import Output, print_json, print_lines, with_output

_FLUSHES, _FLUSH_BYTES = 20, 4_096
_WRITTEN_BYTES = 64 << 20
_NEEDED_FILES = 1_024
_VARIABLES = re.compile(r"STEPWELL_\w+|\w+_NUM_THREADS|CUDA_VISIBLE_DEVICES")
_NOT_INSTALLED = "not installed"


@with_output(has_quiet=False)
def doctor(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A folder on the disk where stores are to be.")
    ] = Path(),
    *,
    output: Output,
) -> None:
    """Show versions, emulators, limits and the speed of a disk, and try out what is installed.

    stepwell doctor
    stepwell doctor /data/runs
    stepwell doctor --json

    Add the output to a report of a bug. It has no names of users or machines. It
    writes 64 MiB into the folder, and removes them.
    """
    if not folder.is_dir():
        raise ValueError(f"DIR: expected a folder, got {str(folder)!r}; make it first")
    found: dict[str, Mapping[str, object]] = {
        "stepwell": {"version": __version__, "core": native.path()},
        "machine": _machine(),
        "packages": _packages(),
        "works": {
            "store": _tried(_store_keeps_rows),
            "Atari": _tried(_atari_plays),
            "NES": _tried(_nes_emulators),
            "MP4": _tried(_video_codecs),
        },
        "folder": _disk(folder),
        "variables": {k: v for k, v in sorted(os.environ.items()) if _VARIABLES.fullmatch(k)},
    }
    problems = _problems(found)
    if output.as_json:
        print_json({**found, "problems": problems})
        return
    for part, facts in found.items():
        print_lines(part)
        for name, fact in facts.items():
            shown = format_bytes(fact) if isinstance(fact, int) and fact > 1 << 20 else fact
            print_lines(f"  {name}: {shown}")
    print_lines("problems", *(f"  {line}" for line in problems or ["none was found"]))


def _machine() -> dict[str, object]:
    """Facts about the system; its name is left out."""
    facts: dict[str, object] = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count() or 0,
    }
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        facts["cores for this process"] = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        facts["memory"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        facts["/dev/shm free"] = shutil.disk_usage("/dev/shm").free
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        facts["open files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return facts


def _packages() -> dict[str, object]:
    """Versions of the packages that Stepwell can use; none of them is imported."""
    names = {"stepwell"}
    for line in importlib.metadata.requires("stepwell") or []:
        if "dev" not in line.partition(";")[2] and "docs" not in line.partition(";")[2]:
            names.add(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    found = {n: installed_version(n) for n in sorted(names - {"stepwell"}, key=str.lower)}
    return {name: version for name, version in found.items() if version is not None}


def _tried(trial: Callable[[], str]) -> str:
    """Try a part for a short time; its report, or its error in one line."""
    try:
        return trial()
    except Exception as error:  # whatever it is, it is what the report is for
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"FAILED: {text.replace(str(Path.home()), '~')[:300]}"


def _store_keeps_rows() -> str:
    # Imported here, as below: a part that cannot be imported must not hide the others.
    import gymnasium

    from ...buffers import SequenceReplayBuffer
    from .. import Collector, RandomPolicy

    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "store"
        envs = gymnasium.make_vec("CartPole-v1", num_envs=2)
        with (
            SequenceReplayBuffer(at) as replay,
            Collector(envs, RandomPolicy(), replay, seed=0) as collector,
        ):
            collector.collect(steps=100)
            digest = replay.digest()
        with SequenceReplayBuffer.open(at, read_only=True) as stored:
            if stored.digest() != digest:
                raise ValueError("the rows that were read are not those that were written")
    return "100 steps of CartPole-v1 were stored and read"


def _atari_plays() -> str:
    from ...wrappers import make_atari

    with contextlib.closing(make_atari("Pong", num_envs=1, num_workers=0)) as envs:
        envs.reset(seed=0)
        screen = envs.step(envs.action_space.sample())[0]
    return f"Pong was played, {screen.shape[-2]} x {screen.shape[-1]} pixels"


def _nes_emulators() -> str:
    from ...wrappers.nes.emulators import installed_backends

    found = ", ".join(f"{name} {version}" for name, version in installed_backends().items())
    return found or f"{_NOT_INSTALLED}: pip install 'stepwell[nes]'"


def _video_codecs() -> str:
    if installed_version("av") is None:
        return f"{_NOT_INSTALLED}: pip install 'stepwell[video]'"
    import av

    return "libx264" if "libx264" in av.codecs_available else "FAILED: PyAV without libx264"


def _disk(folder: Path) -> dict[str, object]:
    """Time of a small synchronized write, and speed of a large one."""
    facts: dict[str, object] = {"free": shutil.disk_usage(folder).free}
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        seconds = []
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            file.write(block[:_FLUSH_BYTES])
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - began)
        facts["synchronized write of 4 KiB, ms"] = round(1e3 * statistics.median(seconds), 3)
        began = time.perf_counter()
        for _ in range(_WRITTEN_BYTES // len(block)):
            file.write(block)
        os.fsync(file.fileno())
        speed = _WRITTEN_BYTES / (time.perf_counter() - began)
        facts["synchronized write of 64 MiB, MB/s"] = round(speed / 1e6)
    return facts


def _problems(found: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Facts that are likely to hurt, with the cure."""
    problems = [f"{name}: {fact}" for name, fact in found["works"].items() if "FAILED" in str(fact)]
    machine = found["machine"]
    files = machine.get("open files")
    if isinstance(files, int) and 0 < files < _NEEDED_FILES:
        problems.append(f"open files: {files} are few for many envs and stores; ulimit -n 4096")
    shared = machine.get("/dev/shm free")
    if isinstance(shared, int) and shared < 64 << 20:
        problems.append(
            f"/dev/shm: {format_bytes(shared)} are free, in which worker processes share screens; "
            f"give a container more (docker run --shm-size=1g)"
        )
    if sys.platform not in ("linux", "darwin"):
        problems.append(f"system: expected Linux, got {sys.platform}; Stepwell is tested on Linux")
    return problems
