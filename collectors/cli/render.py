"""`stepwell render`: a clip or a film strip of an episode."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..loop.report import format_bytes
from .errors import exit_on_error, printable
from .options import (
    Debug,
    Json,
    Quiet,
    StoreFolder,
    real_number,
    whole_number,
)
from .output import LiveLine, Part, plural, print_json, print_parts

__all__ = ["render"]

_ROWS = re.compile(r"\s*([0-9]*)\s*:\s*([0-9]*)\s*")


def render(
    folder: StoreFolder,
    *,
    episode: Annotated[
        str, typer.Option("--episode", "-e", metavar="ID", help="Id of the episode.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The new file: NAME.mp4, .gif or .webp for a clip, .png for a film strip.",
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Only rows A to B-1, counted from the reset; A: or :B for the rest. Default: all.",
        ),
    ] = None,
    fps: Annotated[
        str | None,
        typer.Option(
            metavar="X",
            help="Rows a second. Default: real time where the store says how fast the env plays "
            "(15 for Atari and NES with a frame skip of 4), else 30.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="N", help="Show each pixel as a square of N x N pixels; they stay sharp."
        ),
    ] = "1",
    field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The field of images to show, such as observation/left. Default: the first one.",
        ),
    ] = None,
    frames: Annotated[
        str,
        typer.Option(metavar="N", help="Frames of a film strip, 1 to 256."),
    ] = "8",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if there is one.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    r"""Write the images of an episode to a file: a clip, or a film strip.

    stepwell render runs/pong --episode 5 -o clip.webp
    stepwell render runs/pong --episode 5 -o clip.mp4 --scale 4
    stepwell render runs/pong --episode 5 -o rally.gif --rows 100:400 --fps 30
    stepwell render runs/pong --episode 5 -o strip.png --frames 16
    stepwell render runs/robot --episode 0 -o left.webp --field observation/left

    .webp  every pixel is exact; browsers play it
    .gif   not exact: colours are rounded. At most 50 frames a second.
    .mp4   small, for slides and messengers; no visible loss, but not exact.
           Needs PyAV: pip install 'stepwell\[video]'
    .png   a film strip of evenly spaced frames, with the first and the last

    A clip shows each row once, the last one is the final observation. Several
    pictures in a row, such as a stack, are side by side. A .webp of more than
    512 MiB of pixels, or a .gif of 128 MiB, is refused: write an .mp4. The ids of
    episodes, and which are the best: stepwell view, or
    stepwell filter --top 5 --dry-run.
    """
    with exit_on_error(debug, "start again"):
        from ...buffers.view.render import frames_status
        from ...buffers.view.render import render as render_episode

        with LiveLine(is_silent=quiet or as_json) as line:
            report = render_episode(
                folder,
                # Each `or` is for the types: of a text that is given, no number is None.
                whole_number("--episode", episode, 0) or 0,
                out,
                rows=_parse_rows(rows),
                fps=real_number("--fps", fps),
                scale=whole_number("--scale", scale) or 1,
                field=field,
                frames=whole_number("--frames", frames) or 1,
                overwrite=overwrite,
                progress=line.reporter(frames_status()),
            )
        if as_json:
            print_json({**report.to_json(), "store": str(folder)})
        elif not quiet:
            what = "clip" if report.fps is not None else "film strip"
            parts = [
                Part(printable(f"{report.path}: {what} of {plural(len(report.rows), 'row')}")),
                Part(f"episode {report.episode}"),
                Part(f"{report.height} x {report.width}"),
                Part(format_bytes(report.nbytes)),
            ]
            if report.fps is not None:
                seconds = len(report.rows) / report.fps
                parts[3:3] = [Part(f"{report.fps:.4g} fps"), Part(f"{seconds:.1f} s")]
            if report.path.suffix.lower() == ".gif":
                parts.append(Part("colours rounded, .webp is exact"))
            others = printable(", ".join(report.other_fields))
            shown = [Part(printable(report.field))]
            shown += [Part(f"others with --field: {others}")] if others else []
            print_parts(parts, shown)


def _parse_rows(text: str | None) -> tuple[int | None, int | None] | None:
    """Parse the rows to show."""
    if text is None:
        return None
    match = _ROWS.fullmatch(text)
    if match is None:
        raise ValueError(f"--rows: expected rows such as 100:400, got {text!r}; correct it")
    begin, stop = (int(part) if part else None for part in match.groups())
    return begin, stop
