"""The simulation of the delivery agrees with the arithmetic where that is exact."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs benchmarks/ of the checkout")


@pytest.fixture(scope="module")
def simulation() -> Any:
    """The script as a module; in it, `import rounds` finds its neighbour."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("delivery_simulation")
    finally:
        sys.path.remove(str(BENCHMARKS))


def small(simulation: Any, **changes: Any) -> Any:
    """20 equal groups of 1,000 steps/s, 100 rows a piece; nothing else takes time worth naming."""
    setting = simulation.Setting(
        **{"groups": 20, "seconds": 60.0, "speed": 1_000.0, "rows": 100, "call_steps": 1_000},
        **{"row_bytes": 50.0, "piece_cpu": 1e-5, "weights": 1e3, "start": 1.0, "notice": 0.5},
    )
    return dataclasses.replace(setting.quiet, **changes)


@pytest.mark.parametrize("synchronous", [False, True])
def test_equal_groups_are_as_fast_as_on_paper(simulation: Any, synchronous: bool) -> None:
    setting = small(simulation, synchronous=synchronous)
    outcome = simulation.simulate(setting)
    assert outcome.rate == pytest.approx(min(simulation.limits(setting).values()), rel=0.05)
    assert outcome.nbytes == pytest.approx(outcome.steps * 50, rel=0.05)
    busy = outcome.rate / 100 * (1e-5 + 100 * setting.row_cpu)
    weights = setting.publish_cpu  # once a second: as often as calls begin
    assert outcome.driver == pytest.approx(busy + weights, rel=0.05)
    assert (outcome.deaths, outcome.repeated, outcome.refused) == (0, 0, 0)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("CPU of the driver's thread", {"piece_cpu": 0.01}),
        ("link of the driver, rows", {"bandwidth": 5e5, "weights": 1.0}),
    ],
)
def test_the_first_limit_is_found(simulation: Any, part: str, changes: dict[str, float]) -> None:
    setting = small(simulation, **changes)
    limits = simulation.limits(setting)
    assert min(limits, key=limits.__getitem__) == part
    assert simulation.simulate(setting).rate == pytest.approx(limits[part], rel=0.05)
    assert limits[part] < 0.9 * setting.groups * setting.speed


def test_the_slowest_group_limits_synchronous_calls_alone(simulation: Any) -> None:
    slow = small(simulation, stragglers=0.2, straggling=0.25, seed=3)
    waits = dataclasses.replace(slow, synchronous=True)
    assert simulation.simulate(slow).rate > 0.7 * 20_000
    assert simulation.simulate(waits).rate == pytest.approx(0.25 * 20_000, rel=0.1)


def test_pieces_wait_for_a_slow_group_up_to_the_bound(simulation: Any) -> None:
    bound = 20 * 100 * 50 / 4  # a quarter of a round of pieces
    slow = small(
        simulation, stragglers=0.1, straggling=0.1, seed=1, synchronous=True, call_steps=10_000
    )
    free = simulation.simulate(slow)
    bounded = simulation.simulate(dataclasses.replace(slow, bound=bound))
    piece = 100 * 50
    assert free.waiting > 2 * bound
    assert bound - 2 * piece < bounded.waiting <= bound + piece
    assert bounded.rate == pytest.approx(free.rate, rel=0.02)


def test_deaths_cost_what_is_played_again(simulation: Any) -> None:
    setting = small(simulation, mtbf=100.0)
    running = simulation.simulate(setting)
    assert running.deaths > 5
    assert running.repeated == 0
    assert 0.9 * 20_000 < running.rate < 20_000
    waits = dataclasses.replace(setting, synchronous=True)
    repeats = simulation.simulate(waits)
    reseeds = simulation.simulate(dataclasses.replace(waits, repeat=False))
    assert repeats.repeated > reseeds.repeated == 0
    assert repeats.rate < reseeds.rate < running.rate
    assert repeats.steps == len(repeats.ends) * 20 * 1_000


def test_weights_lag_by_the_time_of_a_piece_or_of_the_link(simulation: Any) -> None:
    quick = small(simulation, publish_every=0.05)  # a piece takes 0.1 s, so 2 versions
    assert set(simulation.simulate(quick).lags[100:]) <= {1, 2, 3}
    relayed = dataclasses.replace(quick, weights=1e6, bandwidth=1e8)  # 10 ms from node to node
    one_by_one = dataclasses.replace(relayed, relay=False)  # 20 nodes take 0.2 s
    assert max(simulation.simulate(relayed).lags) <= 4
    assert 4 < max(simulation.simulate(one_by_one).lags) <= 8


def test_the_same_seed_gives_the_same_outcome(simulation: Any) -> None:
    setting = small(simulation, mtbf=50.0, synchronous=True, spread=0.2)
    assert simulation.simulate(setting) == simulation.simulate(setting)
    other = dataclasses.replace(setting, seed=1)
    assert simulation.simulate(setting) != simulation.simulate(other)


def test_a_table_is_printed_and_written_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- delivery -->\nolder\n<!-- end of delivery -->\nbehind\n")
    command = [sys.executable, str(BENCHMARKS / "delivery_simulation.py"), "--page", str(page)]
    command += ["--groups", "5", "--seconds", "10", "--call-steps", "5000", "--piece-cpu", "0.1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "| 5      | all equal, running" in done.stdout
    assert "The first one, CPU of the driver's thread, is reached with" in done.stdout
    text = page.read_text()
    assert text.startswith("before\n<!-- delivery -->\n| groups ")
    assert text.endswith(" steps/s.\n<!-- end of delivery -->\nbehind\n")
    assert "older" not in text
