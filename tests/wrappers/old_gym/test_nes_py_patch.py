"""patch_nes_py makes nes-py below 9 work with NumPy 2; on fakes, and on the real packages."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demo_rom import write_demo
from stepwell.wrappers import patch_nes_py
from stepwell.wrappers.old_gym import RamView
from support.source_tree import CHECKOUT

REAL = "gym==0.26.2", "nes-py==8.2.1"


class OldRom:
    """As nes-py 8's: counts of banks times bytes of the header."""

    def __init__(self, header: bytes) -> None:
        self.header = np.frombuffer(header, np.uint8)

    @property
    def prg_rom_size(self) -> Any:
        return 16 * self.header[4]

    @property
    def chr_rom_size(self) -> Any:
        return 8 * self.header[5]

    @property
    def prg_bytes(self) -> Any:
        return self.prg_rom_size * 2**10


class OldNes:
    """As nes-py 8's env: its RAM is a live view of memory."""

    def __init__(self) -> None:
        self.memory = bytearray(2048)
        self.ram = self._ram_buffer()

    def _ram_buffer(self) -> Any:
        return np.frombuffer(self.memory, np.uint8)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> tuple[type[OldRom], type[OldNes]]:
    """A nes-py 8 that is not there, so that the test can patch it."""
    rom, env = type("ROM", (OldRom,), {}), type("NESEnv", (OldNes,), dict(vars(OldNes)))
    modules: list[Any] = [ModuleType(name) for name in ("nes_py", "nes_py._rom", "nes_py.nes_env")]
    modules[1].ROM, modules[2].NESEnv = rom, env
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "8.2.1")
    return rom, env


@pytest.mark.parametrize("banks", [1, 2, 15, 16, 128, 255])
def test_sizes_of_a_rom_are_counted_in_ints(
    installed: tuple[type[OldRom], type[OldNes]], banks: int
) -> None:
    patch_nes_py()
    rom = installed[0](bytes(4) + bytes([banks, 256 - banks]))
    assert (rom.prg_rom_size, rom.chr_rom_size) == (16 * banks, 8 * (256 - banks))
    assert type(rom.prg_rom_size) is int
    assert rom.prg_bytes == 16 * banks * 1024


def test_the_ram_of_envs_built_from_then_on_reads_ints_and_writes_through(
    installed: tuple[type[OldRom], type[OldNes]],
) -> None:
    before = installed[1]()
    patch_nes_py()
    env = installed[1]()
    assert type(before.ram) is np.ndarray
    env.memory[0x6D] = 200
    assert env.ram[0x6D] * 256 + 1 == 51_201
    env.ram[0x10] = 7
    assert env.memory[0x10] == 7


@pytest.mark.parametrize(
    ("version", "error", "words"),
    [
        ("9.0.1", ValueError, r"nes-py.*\b9\b.*got 9\.0\.1"),
        ("10.0", ValueError, "got 10.0"),
        ("9", ValueError, "got 9"),
        (None, ImportError, r"nes-py.*'stepwell\[nes-py\]'"),
        ("8.2.1", ImportError, "nes-py .*nes-py 8"),  # a broken one
    ],
)
def test_a_nes_py_that_needs_no_patch_or_is_missing_is_told(
    version: str | None,
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def installed_version(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed_version)
    monkeypatch.setitem(sys.modules, "nes_py", None)
    with pytest.raises(error, match=words):
        patch_nes_py()


# The view


def ram() -> tuple[np.ndarray[Any, np.dtype[np.uint8]], RamView]:
    memory = np.arange(16, dtype=np.uint8)
    return memory, memory.view(RamView)


def test_a_byte_reads_as_an_int_by_any_kind_of_index() -> None:
    memory, view = ram()
    memory[3] = 250
    for index in (3, np.int64(3), -13, (3,)):
        assert type(view[index]) is int
        assert view[index] == 250
    assert view[3] + 10 == 260


@pytest.mark.parametrize(("written", "byte"), [(0, 0), (255, 255), (256, 0), (-1, 255), (300, 44)])
def test_an_int_is_written_as_a_byte_that_wraps(written: int, byte: int) -> None:
    memory, view = ram()
    view[2] = written
    assert memory[2] == byte
    view[2] += 1
    assert memory[2] == (byte + 1) % 256
    view[0] -= 1
    assert memory[0] == 255


@pytest.mark.full
def test_the_real_gym_and_nes_py_8(tmp_path: Path) -> None:
    """Traps N1, E5, 32: tests/support/libraries/old_gym_scenario.py on the demo cartridge."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", *REAL, "-e", CHECKOUT]
    run = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if run.returncode:
        pytest.skip(f"{' and '.join(REAL)} do not install here: {run.stderr[-300:]}")
    rom, _ = write_demo(tmp_path / "rom")
    script = CHECKOUT / "tests" / "support" / "libraries" / "old_gym_scenario.py"
    run = subprocess.run([python, script, rom], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    collected = found.pop("collected")
    assert (collected["rows"], collected["equal"]) == (61, True)
    assert collected["distinct_stored"] == collected["distinct_shown"] > 30
    recipe, all_equal, brightest = found.pop("in_workers")
    assert recipe["env"]["id"] == "nes_py.nes_env:NESEnv"
    assert recipe["env"]["wrappers"] == ["nes_py.wrappers.joypad_space:JoypadSpace"]
    assert recipe["versions"].items() >= {("gym", "0.26.2"), ("nes-py", "8.2.1")}
    assert all_equal
    assert brightest > 0
    assert "disable_env_checker=True" in found.pop("refused_with_gyms_checker")
    assert found == {
        "before": "Python integer 1024 out of bounds for uint8",
        "checked": True,
        "through_gym_make": [[False, False]] * 4 + [[False, True]],
        "ram_facts": {"kind": "int", "counted": 1, "written": 44},
    }
