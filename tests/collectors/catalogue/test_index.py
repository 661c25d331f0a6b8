"""The index of a catalogue: what may be in it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.collectors import list_datasets
from stepwell.collectors.catalogue.index import (
    EXTRAS,
    SHIPPED,
    Dataset,
    file_of,
    find_dataset,
    index_text,
    read_index,
    write_entry,
)

ENTRY = Dataset(
    name="maze/random",
    env="Maze-v0",
    policy='says "go", and backslashes: \\',
    steps=10,
    episodes=2,
    return_mean=float("nan"),
    return_std=0.5,
    archive="maze/random.swa",
    archive_bytes=100,
    store_bytes=1000,
    license="mit",
    sha256="0" * 64,
    digest="f" * 16,
    versions={"ale-py": "0.12.1", "numpy": "2.4.6"},
    extra="minigrid",
    rom="game.rom",
)


def written(folder: Path, *entries: Dataset) -> Path:
    path = folder / "index.toml"
    for entry in entries:
        write_entry(path, entry)
    return path


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    other = replace(ENTRY, name="maze/expert", return_mean=1e300, extra="", rom="", versions={})
    found = read_index(written(tmp_path, ENTRY, other))
    assert repr(found[ENTRY.name]) == repr(ENTRY)  # a NaN differs from itself
    assert found[other.name] == other
    assert [one.name for one in list_datasets(tmp_path / "index.toml")] == [other.name, ENTRY.name]
    assert [path.name for path in tmp_path.iterdir()] == ["index.toml"]


def test_an_entry_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRY)
    before = path.read_bytes()
    for wrong in ({"policy": "two\nlines"}, {"license": ""}, {"extra": "os"}, {"steps": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            write_entry(path, replace(ENTRY, **wrong))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format = 1", "format = 2", "format"),
        ("format = 1", "", "format"),
        ("format = 1", "format = 1\nhook = 'os:system'", "hook"),
        ("steps = 10", "steps = 10\nimport = 'os'", "import"),
        ("steps = 10", "steps = true", "steps"),
        ("steps = 10", "steps = -1", "steps"),
        ("steps = 10", f"steps = {1 << 63}", "steps"),
        ("steps = 10\n", "", "steps"),
        ("episodes = 2", "episodes = 0", "episodes"),
        ("return_std = 0.5", "return_std = 'x'", "return_std"),
        ("return_std = 0.5", "return_std = 1" + "0" * 400, "return_std"),
        ('"maze/random.swa"', '"../random.swa"', "archive"),
        ('"maze/random.swa"', '"/etc/passwd"', "archive"),
        ('"maze/random.swa"', '"maze/../../x"', "archive"),
        ('"maze/random.swa"', '"maze//x"', "archive"),
        ('"game.rom"', '"../game.rom"', "rom"),
        ('"game.rom"', "3", "rom"),
        ('extra = "minigrid"', 'extra = "os"', "extra"),
        ("f" * 16, "F" * 16, "digest"),
        ("0" * 64, "0" * 63, "sha256"),
        ('"mit"', '"' + "m" * 201 + '"', "license"),
        ('"mit"', '"\\u001b[2J"', "license"),
        ('"numpy" = "2.4.6"', '"numpy" = 2', "numpy"),
        ('["maze/random"]', '["../maze"]', "name"),
        ('["maze/random"]', '["maze/Random"]', "name"),
        ('["maze/random"]', '["' + "m/" * 5 + 'm"]', "name"),
        ('["maze/random"]', "[maze.random]", "maze"),
        ("format = 1", "format = [", "TOML"),
        ("format = 1", "format = 1\na = " + "[" * 5000, "TOML"),
    ],
)
def test_a_hostile_index_is_refused_in_one_sentence(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = index_text({ENTRY.name: ENTRY})
    assert old in text
    path = tmp_path / "index.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=words) as error:
        read_index(path)
    assert str(path) in str(error.value)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_an_index_has_a_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "index.toml"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ValueError, match=r"1,048,576 bytes"):
        read_index(path)
    many = "".join(f'["a/{number}"]\n' for number in range(1001))
    path.write_text(f"format = 1\n{many}")
    with pytest.raises(ValueError, match=r"1,000 data sets"):
        read_index(path)
    versions = ", ".join(f'"p{number}" = "1"' for number in range(51))
    path.write_text(index_text({"a": replace(ENTRY, versions={})}).replace("{}", f"{{{versions}}}"))
    with pytest.raises(ValueError, match=r"versions.* 50"):
        read_index(path)


def test_a_file_of_an_index_lies_in_its_folder_through_no_link_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = written(tmp_path / "in", ENTRY)
    (tmp_path / "secret").write_text("x")
    (path.parent / "link").symlink_to(tmp_path / "secret")
    (path.parent / "inner").symlink_to(path)
    with pytest.raises(ValueError, match="outside"):
        file_of(path, "link")
    with pytest.raises(FileNotFoundError, match="gone"):
        file_of(path, "gone")
    assert file_of(path, "inner").samefile(path)


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRY, replace(ENTRY, name="maze/expert"), replace(ENTRY, name="q"))
    for wrong in ("maze/randm", "random", "maze/RANDOM"):
        with pytest.raises(ValueError, match=r"such as maze/"):
            find_dataset(wrong, path)
    with pytest.raises(ValueError, match=r"one of 3"):
        find_dataset("zzzzzz", path)
    with pytest.raises(ValueError, match=r"the catalogue"):
        find_dataset("zzzzzz")


def test_an_index_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRY)
    assert list(read_index(path)) == [ENTRY.name]
    write_entry(path, replace(ENTRY, name="other"))
    write_entry(path, replace(ENTRY, steps=11))  # replaces that of the same name
    assert [(one.name, one.steps) for one in read_index(path).values()] == [
        (ENTRY.name, 11),
        ("other", 10),
    ]


def test_the_catalogue_of_the_package_is_whole() -> None:
    found = list_datasets()
    assert len(found) >= 24
    files = [file_of(None, name) for one in found for name in (one.archive, one.rom) if name]
    assert sum(file.stat().st_size for file in files) <= 4 << 20
    shipped = {path for path in SHIPPED.parent.rglob("*") if path.is_file()}
    assert shipped == {SHIPPED, *files}
    assert {one.extra for one in found} <= {"", *EXTRAS}
    for one in found:
        assert file_of(None, one.archive).stat().st_size == one.archive_bytes, one.name
