"""Progress reports: a status line in the terminal, curve.csv and TensorBoard."""

import importlib.util
import math
import shutil
import sys
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch

import stepwell as sw
from stepwell.collectors import EpisodeReport

EVERY, PLAIN_EVERY = 1.0, 10.0  # seconds between lines, in a terminal and elsewhere
IN_LINE = ("model", "actor", "critic")  # of the losses; all are logged


class Progress:
    """Reports the progress of a training; a context manager around the training.

    Env steps, seconds and mean return of each evaluation are appended to ``folder/curve.csv``. All
    numbers are logged in ``folder/tensorboard``; view with `tensorboard --logdir FOLDER`.

    Args:
        folder: Folder of this run; created if necessary.
        steps: Total env steps of the training.
        tensorboard: Write logs for TensorBoard.
        show: Print the status line and evaluations.

    Attributes:
        best: Highest mean return of an evaluation, including those before a resume.
        evaluated_at: Env steps at the last evaluation, 0 before the first.
    """

    def __init__(
        self, folder: Path, steps: int, tensorboard: bool = True, show: bool = True
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps: expected 1 or more, got {steps}")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._steps, self._curve = folder, steps, folder / "curve.csv"
        if tensorboard and importlib.util.find_spec("tensorboard") is None:
            print("TensorBoard is missing, nothing is logged: pip install 'stepwell[dreamer]'")
            tensorboard = False
        self._uses_tensorboard, self._show = tensorboard, show
        self._redraw = "\r\x1b[K" if sys.stdout.isatty() else ""  # clears the previous line
        self._returns: deque[float] = deque(maxlen=20)
        self._waiting: dict[str, list[torch.Tensor]] = {}  # losses since the line was last drawn
        self._losses: dict[str, float] = {}  # means of the losses before
        self.resumed(0, 0, 0.0)

    def resumed(self, env_steps: float, updates: float, seconds: float) -> None:
        """Set the counts of a resumed run; call it before any other method."""
        self._env_steps, self._updates = int(env_steps), int(updates)
        self._began = perf_counter() - seconds
        self._marks = deque([(perf_counter(), self._env_steps, self._updates)], maxlen=30)
        lines = self._curve.read_text().splitlines()[1:] if self._curve.exists() else []
        rows = [line.split(",") for line in lines]
        self.evaluated_at = int(rows[-1][0]) if rows else 0
        self.best = max((float(mean) for _, _, mean in rows), default=-math.inf)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._draw(is_last=True)
        if self._writer is not None:
            self._writer.close()

    @property
    def seconds(self) -> float:
        """Wall-clock time of the training, including the time before a resume."""
        return perf_counter() - self._began

    def state(self) -> dict[str, float]:
        """Return the arguments of `resumed`."""
        return {"env_steps": self._env_steps, "updates": self._updates, "seconds": self.seconds}

    def episode(self, report: EpisodeReport) -> None:
        """Report the end of an episode; a Collector's ``on_episode`` callback."""
        self._env_steps = max(self._env_steps, report.total_steps)  # of this Collector only
        self._returns.append(report.total_reward)
        self._log({"episode/return": report.total_reward, "episode/length": report.steps})
        self._draw()

    def losses(self, metrics: Mapping[str, torch.Tensor], env_steps: int) -> None:
        """Report a gradient step. Its metrics, 0-d and detached, are kept: do not modify them."""
        self._env_steps, self._updates = env_steps, self._updates + 1
        for name, loss in metrics.items():
            self._waiting.setdefault(name, []).append(loss)
        self._draw()

    def evaluated(self, evaluation: sw.Evaluation, env_steps: int) -> bool:
        """Print an evaluation, add it to the curve, and return True if it is the best so far."""
        self._env_steps, mean, (low, high) = env_steps, evaluation.mean, evaluation.confidence
        with self._curve.open("a") as file:
            file.write("" if file.tell() else "steps,seconds,mean_return\n")
            file.write(f"{env_steps},{self.seconds:.1f},{mean:.6g}\n")
        self._log({"eval/return": mean})
        if not self.evaluated_at:  # the random steps before it had another speed
            self._marks = deque([(perf_counter(), env_steps, self._updates)], maxlen=30)
        is_best, self.best, self.evaluated_at = mean >= self.best, max(self.best, mean), env_steps
        best = "the best so far" if is_best else f"the best was {self.best:,.2f}"
        found = f"mean return {mean:,.2f}, 95 % from {low:,.2f} to {high:,.2f}; {best}"
        when = f"{env_steps:,} steps, {timedelta(seconds=round(self.seconds))}"
        if self._show:
            print(f"{self._redraw}{when}: {found}", flush=True)
        return is_best

    def _draw(self, is_last: bool = False) -> None:
        elapsed = perf_counter() - self._marks[-1][0]
        if elapsed < (EVERY if self._redraw else PLAIN_EVERY) and not is_last:
            return
        self._marks.append((perf_counter(), self._env_steps, self._updates))
        if self._waiting:  # rarely and together: reading a number waits for the device
            means = [torch.stack(losses).float().mean() for losses in self._waiting.values()]
            self._losses = dict(zip(self._waiting, torch.stack(means).tolist(), strict=True))
            self._waiting = {}
            self._log({f"loss/{name}": loss for name, loss in self._losses.items()})
        if self._show:
            end = "" if self._redraw and not is_last else "\n"
            width = None if end else shutil.get_terminal_size().columns - 1
            print(self._redraw + self._line()[:width], end=end, flush=True)

    def _line(self) -> str:
        """Format steps, return, time left, speed and losses."""
        (then, first_step, first_update), (now, step, update) = self._marks[0], self._marks[-1]
        seconds = max(now - then, 1e-9)
        speed, updates = (step - first_step) / seconds, (update - first_update) / seconds
        parts = [f"{step / self._steps:.0%}  {step:,} steps, {speed:,.0f}/s"]
        if self._returns:
            parts.append(f"return {sum(self._returns) / len(self._returns):,.2f}")
        if speed > 0:
            parts.append(f"{timedelta(seconds=round(max(self._steps - step, 0) / speed))} left")
            parts.append(f"{update:,} updates, {updates:,.1f}/s, ratio {updates / speed:.2f}")
        parts += [f"{name} {self._losses[name]:.3g}" for name in IN_LINE if name in self._losses]
        return "  ".join(parts)

    def _log(self, numbers: Mapping[str, float]) -> None:
        if self._writer is not None:
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, self._env_steps)

    @cached_property
    def _writer(self) -> Any:
        """TensorBoard's writer, or None. Logs of a killed run after this step are purged."""
        if not self._uses_tensorboard:
            return None
        module = importlib.import_module("torch.utils.tensorboard")
        return module.SummaryWriter(self._folder / "tensorboard", purge_step=self._env_steps)
