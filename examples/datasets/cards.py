"""Write the page of the catalogue's cards: for each data set a table, a film strip and a histogram.

python examples/datasets/cards.py            # writes docs/catalogue.md
python examples/datasets/cards.py --films    # and draws all film strips again

A film strip takes one episode, which is played: those of new and changed data sets are drawn.
"""

import argparse
import csv
from functools import partial
from pathlib import Path

import cv2
import gymnasium as gym
import numpy as np

import stepwell as sw
from stepwell.buffers import FilmStrip
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.provenance.archive_file import opened
from stepwell.collectors import Dataset, list_datasets
from stepwell.collectors.catalogue.index import EXTRAS, file_of, spread

PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"
FILMS = PAGE.parent / "pictures" / "catalogue"
HEAD = """# The catalogue

These data sets come with Stepwell and are made on your machine: [Data sets](datasets.md) says \
how. Written by `examples/datasets/cards.py` from the index and the archives; the recipes are in \
`examples/datasets/`. Returns are those of whole episodes, undiscounted.

*Scores here* are the mean returns of the catalogue's own random and expert sets of the same env, \
and the share of the way from one to the other that a set goes. *Published scores* are those by \
which Atari results are normalized (random play and a professional human player; Wang et al. 2016, \
arXiv:1511.06581, Badia et al. 2020, arXiv:2003.13350, as in DQN Zoo's `atari_data.py`), which \
were measured after up to 30 steps without an action, in games of 30 minutes at most: they place a \
set, and are no comparison of agents.

"""
TAIL = """## Next

- [datasets.md](datasets.md): get, check and load them, and a catalogue of your own.
- [provenance.md](provenance.md): what a proof says.
"""
BINS, WIDTH = 8, 40
FRAMES, HEIGHT = 6, 84
LEAST_SIDE = 32  # of an observation that people can see something in


def page() -> str:
    """All of the page."""
    found = list_datasets()
    rows = [
        f"| [{one.name}](#{anchor(one.name)}) | {one.steps:,} | {spread_of(one)} | "
        f"{one.archive_bytes / 1000:,.1f} kB |"
        for one in found
    ]
    table = "| data set | steps | return | archive |\n|---|---|---|---|\n" + "\n".join(rows)
    return f"{HEAD}{table}\n\n" + "\n".join(map(card, found)) + f"\n{TAIL}"


def card(one: Dataset) -> str:
    """The section of a data set."""
    facts = {
        "env": f"`{one.env}`",
        "policy": one.policy,
        "steps, episodes": f"{one.steps:,}, {one.episodes:,}",
        "return": spread_of(one),
        **references(one),
        "archive, made": f"{one.archive_bytes / 1000:,.1f} kB, {one.store_bytes / 1e6:,.1f} MB",
        "licence": one.license,
        "digest": f"`{one.digest}`",
        "made with": ", ".join(f"{name} {version}" for name, version in one.versions.items()),
    }
    if one.extra:
        facts["needs"] = f"`pip install {EXTRAS[one.extra].install}`"
    lines = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    film = film_of(one)
    shown = f"![{one.name}: frames of its best episode]({film.relative_to(PAGE.parent)})\n\n"
    return (
        f"## {one.name}\n\n{shown if film.exists() else ''}"
        f"| | |\n|---|---|\n{lines}\n\n{histogram(returns_of(one))}"
    )


def spread_of(one: Dataset) -> str:
    """The mean return with its spread."""
    return spread(one.return_mean, one.return_std)


def references(one: Dataset) -> dict[str, str]:
    """What random and expert play return in the same env, here and in the literature."""
    found: dict[str, str] = {}
    of_env = [each for each in list_datasets() if each.env == one.env]
    random = [each.return_mean for each in of_env if each.policy == "random"]
    expert = [each.return_mean for each in of_env if each.name.endswith("expert")]
    if random or expert:
        found["scores here"] = placed(one, "random", random, "expert", expert)
    game = one.env.removeprefix("ALE/").removesuffix("-v5")
    if one.env.startswith("ALE/") and game in published():
        low, high = published()[game]
        found["published scores"] = placed(one, "random", [low], "human", [high])
    return found


def placed(one: Dataset, low: str, lows: list[float], high: str, highs: list[float]) -> str:
    """Scores of two players, and where there are both, how far between them a data set is."""
    known = {low: max(lows, default=np.nan), high: max(highs, default=np.nan)}
    words = [f"{name} {score:,.1f}" for name, score in known.items() if np.isfinite(score)]
    share = (one.return_mean - known[low]) / (known[high] - known[low])
    return ", ".join([*words, *([f"this set {share:.0%}"] if np.isfinite(share) else [])])


def published() -> dict[str, tuple[float, float]]:
    """The scores of random play and of a person, by game."""
    with Path(__file__).with_name("atari_scores.csv").open(encoding="utf-8") as file:
        return {
            row["game"]: (float(row["random"]), float(row["human"])) for row in csv.DictReader(file)
        }


def returns_of(one: Dataset) -> np.ndarray:
    """The returns of the whole episodes, from the rewards in the archive."""
    return np.array([total for has_ended, total, _ in outcomes(one) if has_ended])


def outcomes(one: Dataset) -> list[tuple[bool, float, int]]:
    """Of each episode in the archive whether it is whole, its return, and its id."""
    with opened(file_of(None, one.archive)) as archived:
        episodes = stored_episodes(archived.storage)
        return [(each.has_ended, each.total_reward, each.id) for each in episodes]


def film_of(one: Dataset) -> Path:
    """The file of its film strip."""
    return FILMS / f"{one.name.replace('/', '-')}.webp"


def draw_film(one: Dataset) -> None:
    """Play its best whole episode and write frames of it: the observations, or what it renders."""
    *_, best = max(outcomes(one))
    one.load_extra()
    replay = sw.SequenceReplayBuffer()
    rom = file_of(None, one.rom) if one.rom else None
    sw.restore(file_of(None, one.archive), replay, episodes=[best], lanes=1, rom=rom)
    (episode,) = replay.iter_episodes()
    strip = observed(replay, episode.id)
    if strip is None and one.env in gym.registry:
        rows = np.linspace(0, episode.steps - 1, min(FRAMES, episode.steps)).astype(int).tolist()
        frames = [rendered(one, replay, episode.id, row) for row in rows]
        strip = FilmStrip.of(np.stack(frames), rows)
    if strip is not None:
        FILMS.mkdir(exist_ok=True)
        strip.save(film_of(one))


def observed(replay: sw.SequenceReplayBuffer, episode: int) -> FilmStrip | None:
    """Frames of the observations, if these are pictures in which people see something."""
    try:
        strip = replay.filmstrip(episode, frames=FRAMES)
    except ValueError:  # they are no images
        return None
    return strip if min(strip.pixels.shape[:2]) >= LEAST_SIDE else None


def rendered(one: Dataset, replay: sw.SequenceReplayBuffer, episode: int, row: int) -> np.ndarray:
    """What the env shows people at a row, small."""
    make = partial(gym.make, one.env, render_mode="rgb_array")
    env, _, _ = sw.env_at(replay, episode, row, env=make)
    picture = np.asarray(env.render())
    env.close()
    width = round(picture.shape[1] * HEIGHT / picture.shape[0])
    return np.asarray(cv2.resize(picture, (width, HEIGHT), interpolation=cv2.INTER_AREA))


def histogram(returns: np.ndarray) -> str:
    """Bars of text, one for each range of returns."""
    if not len(returns):
        return "No episode is whole.\n"
    counts, edges = np.histogram(returns, BINS if np.ptp(returns) else 1)
    lines = [
        f"{low:10,.1f} to {high:10,.1f}  {'#' * -(-count * WIDTH // counts.max()):<{WIDTH}}"
        f" {count:,}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    return "```text\nreturn                    episodes\n" + "\n".join(lines) + "\n```\n"


def anchor(name: str) -> str:
    """The fragment of the section with this name."""
    return name.replace("/", "").replace(".", "")


def main() -> None:
    """Draw the film strips of new data sets, or all, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--films", action="store_true", help="draw all film strips again")
    is_all, before = parser.parse_args().films, PAGE.read_text("utf-8")
    found = list_datasets()
    for one in found:
        if is_all or not film_of(one).exists() or f"`{one.digest}`" not in before:
            draw_film(one)
    for file in {*FILMS.glob("*")} - {film_of(one) for one in found}:
        file.unlink()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
