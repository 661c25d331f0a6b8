"""Make data sets of Stepwell's catalogue again, or all of it, in a folder.

python examples/datasets/make.py cartpole/expert frozenlake/random --out runs/catalogue
python examples/datasets/make.py --out runs/catalogue    # all, in an hour or two
"""

import argparse
import fnmatch
from pathlib import Path

import recipes
import stepwell as sw
from recipes import Recipe
from stepwell.collectors import Dataset, add_dataset


def collected(recipe: Recipe) -> sw.SequenceReplayBuffer:
    """The rows of a recipe."""
    envs = recipe.envs()
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, recipe.policy(envs), replay, seed=0, info=recipe.info) as collector:
        collector.collect(steps=recipe.steps)
    return replay


def made(name: str, recipe: Recipe, out: Path) -> Dataset:
    """Collect a data set, archive it, and write its entry into the index of the folder."""
    replay = collected(recipe)
    archive = out / f"{name}.swa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    rom = None
    if recipe.rom:
        from demo_rom import build_rom

        rom = out / recipe.rom
        rom.write_bytes(build_rom())
    sw.archive(replay, archive, rom=rom)
    return add_dataset(
        out / "index.toml",
        name,
        archive,
        replay,
        policy=recipe.words,
        license="mit",
        extra=recipe.extra,
        rom=rom,
    )


def main() -> None:
    """Make those that are asked for, and print their digests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"], help="names, with * for any text")
    parser.add_argument("--out", type=Path, default=Path("runs/catalogue"))
    options = parser.parse_args()
    known = recipes.all_recipes()
    for each in options.names:
        if not fnmatch.filter(known, each):
            parser.error(f"{each}: expected the name of a recipe, such as {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, recipe in known.items():
        if any(fnmatch.fnmatch(name, each) for each in options.names):
            entry = made(name, recipe, options.out)
            print(f"{name}: {entry.digest}, {entry.archive_bytes:,} bytes", flush=True)


if __name__ == "__main__":
    main()
