"""Write the page of the catalogue's cards: for each data set a table and a histogram of returns.

python examples/datasets/cards.py    # writes docs/catalogue.md
"""

from pathlib import Path

import numpy as np

from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.provenance.archive_file import opened
from stepwell.collectors import Dataset, list_datasets
from stepwell.collectors.catalogue.index import EXTRAS, file_of, spread

PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"
HEAD = """# The catalogue

These data sets come with Stepwell and are made on your machine: [Data sets](datasets.md) says \
how. Written by `examples/datasets/cards.py` from the index and the archives; the recipes are in \
`examples/datasets/`. Returns are those of whole episodes, undiscounted.

"""
TAIL = """## Next

- [datasets.md](datasets.md): get, check and load them, and a catalogue of your own.
- [provenance.md](provenance.md): what a proof says.
"""
BINS, WIDTH = 8, 40


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
        "archive, made": f"{one.archive_bytes / 1000:,.1f} kB, {one.store_bytes / 1e6:,.1f} MB",
        "licence": one.license,
        "digest": f"`{one.digest}`",
        "made with": ", ".join(f"{name} {version}" for name, version in one.versions.items()),
    }
    if one.extra:
        facts["needs"] = f"`pip install {EXTRAS[one.extra].install}`"
    lines = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    return f"## {one.name}\n\n| | |\n|---|---|\n{lines}\n\n{histogram(returns_of(one))}"


def spread_of(one: Dataset) -> str:
    """The mean return with its spread."""
    return spread(one.return_mean, one.return_std)


def returns_of(one: Dataset) -> np.ndarray:
    """The returns of the whole episodes, from the rewards in the archive."""
    with opened(file_of(None, one.archive)) as archived:
        episodes = stored_episodes(archived.storage)
        return np.array([each.total_reward for each in episodes if each.has_ended])


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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
