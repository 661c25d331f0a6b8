"""Compare what a wheel and a source archive hold with what the checkout holds.

Run as `python .ci/check_dist.py DIST`, where DIST holds one wheel and one `.tar.gz`.
"""

import sys
import tarfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
ROOMS = ("wrappers", "collectors", "buffers")
SOURCE_FOLDERS = ("tests", "examples", "benchmarks", "docs", "findings")
CORE_SOURCE = "buffers/base/_native.c"
CORE = "stepwell/buffers/base/_native.abi3.so"
SOURCE_FILES = (
    *("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
    "pyproject.toml",
)


def files_below(folder: str) -> set[str]:
    """Paths of the folder's files, relative to the checkout, less what Python wrote."""
    files = (path for path in (CHECKOUT / folder).rglob("*") if path.is_file())
    return {
        path.relative_to(CHECKOUT).as_posix() for path in files if "__pycache__" not in path.parts
    }


def the_one(folder: Path, pattern: str) -> Path:
    """The only file of the folder that matches."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder} holds {len(found)} files like {pattern}: expected 1")
    return found[0]


def difference(what: str, expected: set[str], found: set[str]) -> list[str]:
    """One line for each file that is missing or too many."""
    missing = [f"{what}: {name} is missing" for name in sorted(expected - found)]
    return missing + [f"{what}: {name} does not belong there" for name in sorted(found - expected)]


def package_files() -> set[str]:
    """Paths of the package's files, relative to the folder that holds the package.

    The compiled core is not among them: an editable install puts it beside its source.
    """
    rooms = {name for room in ROOMS for name in files_below(room)}
    files = {f"stepwell/{name}" for name in rooms | {"__init__.py", "py.typed"}}
    return files - {f"stepwell/{CORE_SOURCE}", CORE}


def wheel_errors(wheel: Path) -> list[str]:
    """Differences between the wheel and the package with the compiled core."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    return difference(wheel.name, package_files() | {CORE}, found)


def source_errors(archive_path: Path) -> list[str]:
    """Differences between the source archive, whose package is real files, and the checkout."""
    with tarfile.open(archive_path) as archive:
        links = {member.name for member in archive.getmembers() if member.issym() or member.islnk()}
        members = [member.name for member in archive.getmembers() if member.isfile()]
    found = {name.split("/", 1)[1] for name in members}
    made_by_the_build = {name for name in found if ".egg-info/" in name}
    folders = {name for folder in SOURCE_FOLDERS for name in files_below(folder)}
    package = {f"src/{name}" for name in package_files()}
    others = {*SOURCE_FILES, CORE_SOURCE, "MANIFEST.in", "PKG-INFO", "setup.cfg"}
    expected = folders | package | others
    return [f"{archive_path.name}: {name} is a link" for name in sorted(links)] + difference(
        archive_path.name, expected, found - made_by_the_build
    )


def main() -> None:
    """Print the differences and exit with 1 if there are any."""
    dist = Path(sys.argv[1])
    errors = wheel_errors(the_one(dist, "*.whl")) + source_errors(the_one(dist, "*.tar.gz"))
    if errors:
        sys.exit("\n".join(errors))
    print("the wheel holds the rooms, the source archive holds the checkout, and nothing else")


if __name__ == "__main__":
    main()
