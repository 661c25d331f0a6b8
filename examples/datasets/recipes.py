"""The recipes of Stepwell's catalogue: envs, policy, seed and length of each data set."""

import itertools
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import atari_experts as atari
import controllers
import ram_agents
import stepwell as sw
from stepwell.collectors.catalogue import games

sys.path.append(str(Path(__file__).parents[1]))  # where demo_rom is
RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a data set is collected, with seed 0."""

    envs: Callable[[], Any]
    policy: Callable[[Any], Any]  # of these envs
    words: str  # about the policy
    steps: int
    info: Mapping[str, Any] = field(default_factory=dict)
    extra: str = ""
    rom: str = ""

    def shortened(self, steps: int) -> "Recipe":
        """The same with fewer steps."""
        return replace(self, steps=steps)


def random_policy(envs: Any) -> Any:
    """Draws all actions alike."""
    return sw.RandomPolicy()


def mixed(choose: Callable[..., Any], part: float, envs: Any) -> Any:
    """A controller of whose actions a part is replaced by random ones."""
    return sw.EpsilonGreedy(controllers.Controller(choose), part)


def controlled() -> dict[str, Recipe]:
    """Classic control and LunarLander: random, medium and expert."""
    found: dict[str, Recipe] = {}
    # Of the medium ones so much is random that they score about halfway.
    for name, env, choose, part, words in (
        ("cartpole", "CartPole-v1", controllers.cart_pole, 0.6, "a linear controller"),
        ("acrobot", "Acrobot-v1", controllers.acrobot, 0.6, "energy pumping"),
        ("mountaincar", "MountainCar-v0", controllers.mountain_car, 0.4, "energy pumping"),
        ("pendulum", "Pendulum-v1", controllers.pendulum, 0.5, "swing-up and balance"),
        ("lunarlander", "LunarLander-v3", controllers.lunar_lander, 0.25, "Gymnasium's heuristic"),
    ):
        more: dict[str, Any] = {
            "envs": partial(sw.make_vec, env, 4, num_workers=0),
            "steps": 10_000,
            "extra": "box2d" if name == "lunarlander" else "",
        }
        expert = partial(mixed, choose, 0.0)
        medium = partial(mixed, choose, part)
        found[f"{name}/random"] = Recipe(policy=random_policy, words=RANDOM, **more)
        found[f"{name}/medium"] = Recipe(policy=medium, words=f"{words}, {part:.0%} random", **more)
        found[f"{name}/expert"] = Recipe(policy=expert, words=words, **more)
    return found


def atari_games() -> dict[str, Recipe]:
    """Random play of eight games; rules that read the RAM for three."""
    found: dict[str, Recipe] = {}
    for game in (
        *("Pong", "Breakout", "Freeway", "Seaquest", "Qbert", "MsPacman"),
        *("SpaceInvaders", "MontezumaRevenge"),
    ):
        found[f"atari/{game.lower()}-random"] = Recipe(
            envs=partial(sw.make_atari, game, 8, backend="python"),
            policy=random_policy,
            words=RANDOM,
            steps=100_000,
            info={"lives": -1},
        )
    for game, rule, words in (
        ("Pong", atari.pong, "rules that read the RAM: the paddle's edge to the ball"),
        ("Breakout", atari.breakout, "rules that read the RAM: meet the ball"),
        ("Freeway", atari.freeway, "always up"),
    ):
        found[f"atari/{game.lower()}-expert"] = Recipe(
            envs=partial(sw.make_atari, game, 4, backend="python", num_workers=0),
            policy=partial(atari.RamPolicy, rule=rule),
            words=words,
            steps=32_000 if game == "Pong" else 10_000,  # its games are long
            info={"lives": -1},
        )
    return found


def trained_agents() -> dict[str, Recipe]:
    """The last agent of each game's training, and all along it in turn."""
    found: dict[str, Recipe] = {}
    for game in ram_agents.SIGHTS:
        agents = ram_agents.kept_agents(game)
        words = f"PPO on the RAM, {max(agents):,} steps"
        curve = f"PPO on the RAM, after {', '.join(f'{one:,}' for one in agents)} steps in turn"
        for level, chosen, about, steps in (
            ("trained", [agents[max(agents)]], words, 40_000),
            ("mixed", list(agents.values()), curve, 60_000),
        ):
            found[f"atari/{game.lower()}-{level}"] = Recipe(
                envs=partial(sw.make_atari, game, 4, backend="python", num_workers=0),
                policy=partial(ram_agents.AgentPolicy, agents=chosen),
                words=about,
                steps=steps,
                info={"lives": -1},
            )
    return found


def frozen_lake(observation: np.ndarray) -> np.ndarray:
    """The best actions on the slippery map of 4 x 4, found by value iteration."""
    table = np.array([0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0])
    return np.asarray(table[observation])


def taxi(observation: np.ndarray) -> np.ndarray:
    """The shortest way to the passenger, and with it to the goal."""
    return np.asarray(_taxi_table()[observation])


@cache
def _taxi_table() -> np.ndarray:
    """The best action of each state, by value iteration over the env's own table."""
    model: Any = gym.make("Taxi-v4").unwrapped
    worth = np.zeros((500, 6))
    for _ in range(60):
        value = worth.max(1)
        worth = np.array(
            [
                [
                    sum(p * (r + 0.99 * (not end) * value[to]) for p, to, r, end in model.P[s][a])
                    for a in range(6)
                ]
                for s in range(500)
            ]
        )
    return np.asarray(worth.argmax(1))


def tables() -> dict[str, Recipe]:
    """FrozenLake and Taxi, with the infos of each row."""
    lake: dict[str, Any] = {
        "envs": partial(sw.make_vec, "FrozenLake-v1", 4, num_workers=0),
        "info": {"prob": -1.0},
        "steps": 10_000,
    }
    cab: dict[str, Any] = {
        "envs": partial(sw.make_vec, "Taxi-v4", 4, num_workers=0),
        "info": {"prob": -1.0, "action_mask": np.zeros(6, np.int8)},
        "steps": 10_000,
    }
    return {
        "frozenlake/random": Recipe(policy=random_policy, words=RANDOM, **lake),
        "frozenlake/expert": Recipe(
            policy=partial(mixed, frozen_lake, 0.0), words="the best actions of its table", **lake
        ),
        "taxi/random": Recipe(policy=random_policy, words=RANDOM, **cab),
        "taxi/expert": Recipe(
            policy=partial(mixed, taxi, 0.0), words="the best actions of its table", **cab
        ),
    }


class Bots:
    """Plays levels of BabyAI in this process by minigrid's own bot, which sees the whole grid."""

    def __init__(self, envs: Any) -> None:
        self._envs = [env.unwrapped for env in envs.envs]
        self._bots: list[Any] = [None] * len(self._envs)

    def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
        """The actions [N]."""
        from minigrid.utils.baby_ai_bot import BabyAIBot

        for i in np.flatnonzero(is_first):
            self._bots[i] = BabyAIBot(self._envs[i])
        return np.array([int(bot.replan()) for bot in self._bots])


def missions() -> dict[str, Recipe]:
    """Games with a mission in words, of minigrid."""
    return {
        name: Recipe(
            envs=partial(sw.make_vec, f"minigrid:{env}", 4, num_workers=0),
            policy=policy,
            words=words,
            steps=10_000,
            extra="minigrid",
        )
        for name, env, policy, words in (
            ("minigrid/doorkey-5x5/random", "MiniGrid-DoorKey-5x5-v0", random_policy, RANDOM),
            ("minigrid/fetch-5x5/random", "MiniGrid-Fetch-5x5-N2-v0", random_policy, RANDOM),
            ("babyai/gotolocal/random", "BabyAI-GoToLocal-v0", random_policy, RANDOM),
            ("babyai/gotolocal/expert", "BabyAI-GoToLocal-v0", Bots, "minigrid's bot"),
        )
    }


def many_agents() -> dict[str, Recipe]:
    """A game of mpe2, in which three agents cover three landmarks."""
    return {
        "mpe2/simple-spread/random": Recipe(
            envs=partial(sw.make_vec, f"{games.__name__}:{games.SPREAD}", 4, num_workers=0),
            policy=random_policy,
            words=RANDOM,
            steps=10_000,
            extra="mpe2",
        )
    }


def run_right(observation: np.ndarray) -> np.ndarray:
    """RIGHT with A held."""
    return np.full(len(observation), 2)


def cartridges() -> dict[str, Recipe]:
    """The demo cartridge of examples/make_demo_rom.py."""
    from demo_rom import build_rom

    game = Path(__file__).parents[1] / "demo_rom" / "game"

    def envs() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            rom = Path(folder) / "stepwell-demo.nes"
            rom.write_bytes(build_rom())
            return sw.make_nes(rom, 4, backend="cynes", game=game, max_frames=3600, num_workers=0)

    return {
        name: Recipe(
            envs=envs,
            policy=policy,
            words=words,
            steps=5_000,
            info={"score": -1, "lives": -1},
            extra="nes",
            rom="nes/demo.rom",
        )
        for name, policy, words in (
            ("nes/demo-random", random_policy, RANDOM),
            ("nes/demo-runner", partial(mixed, run_right, 0.2), "runs right, 20% random"),
        )
    }


def all_recipes() -> dict[str, Recipe]:
    """All of them, by name."""
    families = (
        *(controlled, tables, missions, many_agents),
        *(cartridges, atari_games, trained_agents),
    )
    return dict(itertools.chain.from_iterable(family().items() for family in families))
