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
from stepwell.wrappers.old_gym.nes_py_patch import RamView
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


def test_before_the_patch_no_rom_loads(installed: tuple[type[OldRom], type[OldNes]]) -> None:
    """With NumPy 2, a byte times a number is a byte."""
    with pytest.raises(OverflowError, match="1024 out of bounds for uint8"):
        _ = installed[0](bytes(4) + b"\x01\x01").prg_bytes


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


@pytest.mark.parametrize("version", ["9.0.1", "10.0", "9"])
def test_a_nes_py_that_needs_no_patch_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ValueError, match=rf"nes-py.*\b9\b.*got {version}"):
        patch_nes_py()


def test_without_nes_py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(ImportError, match=r"nes-py.*'stepwell\[nes-py\]'"):
        patch_nes_py()


def test_a_broken_nes_py_is_distinguished_from_a_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "8.2.1")
    monkeypatch.setitem(sys.modules, "nes_py", None)
    with pytest.raises(ImportError, match=r"nes-py .*nes-py 8"):
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


def test_counting_in_place_wraps_as_the_consoles_bytes_do() -> None:
    memory, view = ram()
    view[0] -= 1
    view[15] = 255
    view[15] += 1
    assert (memory[0], memory[15]) == (255, 0)


# The real ones


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with gym 0.26.2, nes-py 8.2.1 and this checkout."""
    folder = tmp_path_factory.mktemp("old") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", *REAL, "-e", CHECKOUT]
    run = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if run.returncode:
        pytest.skip(f"{' and '.join(REAL)} do not install here: {run.stderr[-300:]}")
    return python


@pytest.fixture(scope="module")
def scenario(old_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of tests/support/libraries/old_gym_scenario.py on the demo cartridge."""
    rom, _ = write_demo(tmp_path_factory.mktemp("rom"))
    script = CHECKOUT / "tests" / "support" / "libraries" / "old_gym_scenario.py"
    run = subprocess.run([old_python, script, rom], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.full
def test_the_real_nes_py_8_loads_no_rom_before_patch(scenario: dict[str, Any]) -> None:
    """Trap 32: on Python 3.12 and below pip installs it without a word."""
    assert scenario["before"] == "Python integer 1024 out of bounds for uint8"


@pytest.mark.full
def test_the_real_env_passes_gymnasiums_checker(scenario: dict[str, Any]) -> None:
    assert scenario["checked"] is True


@pytest.mark.full
def test_the_real_gyms_checker_is_refused_with_the_option_that_disables_it(
    scenario: dict[str, Any],
) -> None:
    assert "disable_env_checker=True" in scenario["refused_with_gyms_checker"]


@pytest.mark.full
def test_the_real_gyms_time_limit_truncates(scenario: dict[str, Any]) -> None:
    assert scenario["through_gym_make"] == [[False, False]] * 4 + [[False, True]]


@pytest.mark.full
def test_each_frame_that_the_real_env_showed_is_stored(scenario: dict[str, Any]) -> None:
    """N1."""
    found = scenario["collected"]
    assert found["rows"] == 61
    assert found["equal"] is True
    assert found["distinct_stored"] == found["distinct_shown"] > 30


@pytest.mark.full
def test_the_real_ram_reads_ints_and_takes_writes(scenario: dict[str, Any]) -> None:
    """E5."""
    assert scenario["ram_facts"] == {"kind": "int", "counted": 1, "written": 44}


@pytest.mark.full
def test_the_real_env_runs_in_workers_and_is_named(scenario: dict[str, Any]) -> None:
    recipe, all_equal, brightest = scenario["in_workers"]
    assert recipe["env"]["id"] == "nes_py.nes_env:NESEnv"
    assert recipe["env"]["wrappers"] == ["nes_py.wrappers.joypad_space:JoypadSpace"]
    assert recipe["versions"].items() >= {("gym", "0.26.2"), ("nes-py", "8.2.1")}
    assert all_equal
    assert brightest > 0
