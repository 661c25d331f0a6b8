"""Draw the badges of README.md from pyproject.toml: `python docs/pictures/draw_badges.py`.

They say what the package declares, and need no service. A test compares them with this script.
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parents[1] / "pyproject.toml"
LETTER, PAD, HEIGHT = 7.0, 8, 20
LEFT, RIGHT = "#4b5058", "#1f5fbf"  # white text has a contrast of more than 4.5 on both


def badges() -> dict[str, tuple[str, str]]:
    """Label and value of each badge, by the name of its file."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    kinds = [each.split(" :: ") for each in project["classifiers"]]
    systems = [kind[-1] for kind in kinds if kind[0] == "Operating System"]
    status = next(kind[-1] for kind in kinds if kind[0] == "Development Status")
    assert ["Typing", "Typed"] in kinds
    return {
        "badge-python.svg": ("python", project["requires-python"].replace(">=", "") + " or newer"),
        "badge-platform.svg": ("platform", " | ".join(systems)),
        "badge-license.svg": ("license", project["license"]),
        "badge-types.svg": ("types", "checked by mypy and pyright"),
        "badge-status.svg": ("status", status.split(" - ")[1].lower()),
    }


def badge(label: str, value: str) -> str:
    """The SVG of one badge."""
    left, right = (round(len(text) * LETTER + 2 * PAD) for text in (label, value))
    texts = (html.escape(label), html.escape(value))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" '
        f'role="img" aria-label="{texts[0]}: {texts[1]}">\n'
        f'<rect width="{left}" height="{HEIGHT}" fill="{LEFT}"/>\n'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="{RIGHT}"/>\n'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">\n'
        f'<text x="{left / 2:g}" y="14">{texts[0]}</text>\n'
        f'<text x="{left + right / 2:g}" y="14">{texts[1]}</text>\n'
        "</g>\n</svg>\n"
    )


def drawn() -> list[tuple[Path, str]]:
    """Path and text of each badge."""
    return [(FOLDER / name, badge(*texts)) for name, texts in badges().items()]


if __name__ == "__main__":
    for path, text in drawn():
        path.write_text(text, encoding="utf-8")
