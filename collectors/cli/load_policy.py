"""Policies that are named on the command line."""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from gymnasium import spaces

from ..policies.as_policy import GivenPolicy, as_policy
from ..policies.policy import PolicyResult
from .game_options import run_option
from .make_envs import load_object, refuse_signature

POLICY_HELP = (
    "random; sb3:model.zip or sb3:dqn:model.zip, a saved model of Stable-Baselines3; "
    "torch:net.pt:module:callable, a saved state_dict for the module that the callable makes; or "
    "module:callable, a policy of your own. Loading sb3: files and modules runs code in them: name "
    "only what you trust. The current folder is searched too; a class is instantiated first."
)
"""The text for ``--policy``."""
Policy = Annotated[str, run_option(metavar="NAME", help=POLICY_HELP)]

_ALGORITHMS = ("a2c", "ddpg", "dqn", "ppo", "sac", "td3")
# Settings that only one of the algorithms saves; DDPG is saved as TD3 is, and plays like it.
_MARKS = {
    "exploration_fraction": "dqn",
    "target_entropy": "sac",
    "policy_delay": "td3",
    "clip_range": "ppo",
    "gae_lambda": "a2c",
}
_MOST_SETTINGS = 1 << 28  # bytes of the settings in a zip file
_FORMS = "'random', 'sb3:model.zip', 'torch:net.pt:module:callable' or 'module:callable'"


def load_policy(name: str, *, deterministic: bool = False) -> GivenPolicy:
    """Load the policy that ``--policy`` names; see `POLICY_HELP`."""
    # ``deterministic``: a model of Stable-Baselines3 takes its best actions, without exploring.
    kind, colon, rest = name.partition(":")
    option = f"--policy {name}"
    is_model = kind == "sb3" and colon
    if deterministic and not is_model:
        raise ValueError(
            f"--deterministic: expected --policy sb3:..., got {name!r}; leave it out: any other "
            f"policy itself decides whether it explores"
        )
    if name == "random":
        return "random"
    if not colon:
        raise ValueError(f"--policy: expected {_FORMS}, got {name!r}; name it so")
    if is_model:
        return _LoadedModel(_load_model(option, rest), deterministic)
    found = _load_module(option, rest) if kind == "torch" else load_object("--policy", name)
    if inspect.isclass(found):
        refuse_signature(option, found, 0, "no arguments, since a class is instantiated first")
        found = found()
    as_policy(found, option)  # an error names the option
    return cast("GivenPolicy", found)


# Models of Stable-Baselines3.


class _LoadedModel:
    """A loaded model as a policy whose draws follow from the Collector's seed."""

    # SB3 draws from global generators, which no one else uses in a command's process.

    def __init__(self, model: Any, deterministic: bool) -> None:
        # Imported here and below: most runs need no bridge.
        from ...buffers.libraries.sb3.policy import sb3_policy

        self._model = model
        self._policy = sb3_policy(model, deterministic=deterministic)
        # The facts about a session name a policy by these.
        self.__module__, self.__qualname__ = type(model).__module__, type(model).__qualname__

    def begin(self, action_space: spaces.Space[Any], rng: np.random.Generator) -> None:
        self._policy.begin(action_space, rng)
        self._model.set_random_seed(int(rng.integers(2**31)))

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> PolicyResult:
        return self._policy(observation, is_first)


def _load_model(option: str, rest: str) -> Any:
    """Load a model from ``model.zip`` or ``dqn:model.zip``."""
    head, colon, tail = rest.partition(":")
    named = head.lower() if colon and head.lower() in _ALGORITHMS else None
    path = _file(option, tail if named else rest)
    settings = _settings(option, path)
    algorithm = named or _algorithm_of(option, settings)
    from ...buffers.libraries.sb3.models import load_sb3

    module = load_sb3(algorithm, option)
    # Rows are not needed to play: SB3 would allocate a replay of the size used in training.
    without_rows: dict[str, object] = {
        "buffer_size": 1,
        "replay_buffer_class": None,
        "replay_buffer_kwargs": {},
        "optimize_memory_usage": False,
    }
    try:
        return getattr(module, algorithm.upper()).load(path, custom_objects=without_rows)
    except Exception as error:  # whatever the code in the file raises
        raise ValueError(
            f"{option}: expected a model that {algorithm.upper()} of Stable-Baselines3 loads, got "
            f"{type(error).__name__}: {error}; name its algorithm as in sb3:dqn:{path.name}, or "
            f"load it in a module of yours"
        ) from error


def _settings(option: str, path: Path) -> Mapping[str, Any]:
    """The settings in a model's file, in which objects are still packed."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("data").file_size > _MOST_SETTINGS:
                raise ValueError("too large")
            found = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError):
        found = None
    if not isinstance(found, dict) or "policy_class" not in found:
        raise ValueError(
            f"{option}: expected a zip file that a model of Stable-Baselines3 has saved, got "
            f"something else; save one with model.save(path)"
        )
    return cast("dict[str, Any]", found)


def _algorithm_of(option: str, settings: Mapping[str, Any]) -> str:
    """The algorithm that saved these settings; nothing in them is executed."""
    policy = settings["policy_class"]
    home = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    if not home.startswith("sb3_contrib."):
        for mark, algorithm in _MARKS.items():
            if mark in settings:
                return algorithm
    raise ValueError(
        f"{option}: expected a model of {', '.join(map(str.upper, _ALGORITHMS))}, got one of "
        f"another algorithm, with a policy of {home or 'no known module'}; name the one that is "
        f"meant, as in sb3:ppo:model.zip, or load it in a module of yours and name that as "
        f"module:callable"
    )


# Modules of torch.


def _load_module(option: str, rest: str) -> object:
    """Load weights from ``net.pt:module:callable`` into the module that the callable makes."""
    path_text, *names = rest.rsplit(":", 2)
    if len(names) != 2 or not all(names):
        raise ValueError(
            f"{option}: expected torch:FILE:module:callable, where the callable makes the module "
            f"that the weights in the file belong to, got {f'torch:{rest}'!r}; name both"
        )
    path = _file(option, path_text)
    from ...buffers.libraries.torch_policies import TorchPolicy
    from ...buffers.sampling.tensors import load_torch

    torch: Any = load_torch(option)
    maker = load_object("--policy", ":".join(names))
    if not callable(maker):
        raise ValueError(
            f"{option}: expected a function or class that makes a torch module, got "
            f"{type(maker).__name__}; name one"
        )
    refuse_signature(option, maker, 0, "no arguments")
    made = cast("Callable[[], object]", maker)()
    module: Any = made.module if isinstance(made, TorchPolicy) else made
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"{option}: expected a function that returns a torch module, or torch_policy of one, "
            f"got {type(module).__name__}; return one"
        )
    _load_weights(option, torch, path, module)
    module.eval()
    return made


def _load_weights(option: str, torch: Any, path: Path, module: Any) -> None:
    """Load the weights in a file; nothing in it is executed."""
    device = next((one.device for one in module.parameters()), None)
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # of torch, zipfile and the restricted unpickler
        raise ValueError(
            f"{option}: expected a file with weights alone, got something else or damaged ones "
            f"({type(error).__name__}); save them with torch.save(net.state_dict(), path)"
        ) from error
    is_state = isinstance(state, dict) and all(map(torch.is_tensor, state.values()))
    if not is_state:
        keys = f" with {', '.join(map(repr, list(state)[:5]))}" if isinstance(state, dict) else ""
        raise ValueError(
            f"{option}: expected tensors by name as in net.state_dict(), got a "
            f"{type(state).__name__}{keys}; save these alone, with torch.save(net.state_dict(), "
            f"path)"
        )
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise ValueError(
            f"{option}: expected the weights of a {type(module).__name__}, got others: "
            f"{' '.join(lines)[:300]}; name the function that makes the module they belong to"
        ) from error


def _file(option: str, text: str) -> Path:
    path = Path(text)
    if not text or not path.is_file():
        got = "none" if not text else "a folder" if path.is_dir() else f"nothing at {text}"
        raise ValueError(f"{option}: expected an existing file, got {got}; correct its path")
    return path
