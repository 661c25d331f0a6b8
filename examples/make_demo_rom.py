"""Write a tiny free NES game and its RAM map, for experiments.

python examples/make_demo_rom.py runs/demo
"""

import argparse

from demo_rom import write_demo


def main() -> None:
    """Write the files, which are the same on every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="runs/demo")
    rom, game = write_demo(parser.parse_args().folder)
    print(f"{rom} and {game} are there; collect from them with, for instance,")
    print(f"stepwell collect {rom} --game {game} --num-envs 2 --steps 2_000 --out runs/demo-data")


if __name__ == "__main__":
    main()
