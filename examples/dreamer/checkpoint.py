"""Save and load the agent, in a separate file or in the replay's checkpoint."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .agent import Models


def save_models(path: str | Path, models: Models, *, include_optimizers: bool = True) -> None:
    """Write the agent to a file; an existing file is replaced only by a complete new one.

    Args:
        path: The file.
        models: The agent. Its replay, which is already on disk, is not written.
        include_optimizers: Also write the state of the training: the optimizers, the scale of the
            returns, and the replay ratio.
    """
    write_whole(Path(path), _to_bytes(_state(models, include_optimizers)))


def load_models(path: str | Path, models: Models, *, include_optimizers: bool = True) -> None:
    """Load the agent that `save_models` wrote; no code is unpickled.

    Step sizes and other optimizer settings come from the agent's config, not from the file.

    Args:
        path: The file.
        models: An agent of the same sizes.
        include_optimizers: Also load the state of the training.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file holds no agent, a damaged one, one of other sizes, or no optimizers
            although they are requested. The agent is unchanged.
    """
    state = _from_bytes(Path(path).read_bytes(), str(path))
    _load(state, models, include_optimizers, str(path))


def save_checkpoint(models: Models, more: Mapping[str, object]) -> None:
    """Save the agent with the replay's data, and the state of the random generators.

    Args:
        models: The agent.
        more: JSON values to save with it, under any name except "agent".
    """
    state = _state(models, include_optimizers=True) | {"generators": _generators()}
    data = np.frombuffer(_to_bytes(state), np.uint8)
    models.utilities.replay.save_checkpoint({**more, "agent": data})


def load_checkpoint(models: Models) -> dict[str, Any]:
    """Load the last checkpoint, and return the values that were saved with it.

    Steps that were collected after the checkpoint are kept. Gradient steps that were taken after
    it are lost, and due again.

    Raises:
        StoreNotFound: There is no checkpoint.
        ValueError: The checkpoint is of an agent of other sizes.
    """
    replay = models.utilities.replay
    more = replay.load_checkpoint()
    where = f"the checkpoint of {replay.path}"
    state = _from_bytes(more.pop("agent").tobytes(), where)
    _load(state, models, include_optimizers=True, where=where)
    _set_generators(state["generators"])
    return more


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: a kill during the write leaves the old file."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # otherwise the rename may reach the disk before the bytes
    os.replace(partial, path)


def _state(models: Models, include_optimizers: bool) -> dict[str, Any]:
    state: dict[str, Any] = {
        "world_model": models.world_model.state_dict(),
        "actor_critic_model": models.actor_critic.state_dict(),
    }
    if include_optimizers:
        state |= {name: part.state_dict() for name, part in _optimizers(models).items()}
        state["utility_modules"] = {
            "scale": models.utilities.scale.state_dict(),
            "ratio": models.utilities.ratio.state_dict(),
        }
    return state


def _optimizers(models: Models) -> dict[str, torch.optim.Optimizer]:
    return {
        "world_optimizer": models.world_model.optimizer,
        "actor_optimizer": models.actor_critic.actor_optimizer,
        "critic_optimizer": models.actor_critic.critic_optimizer,
    }


def _load(state: dict[str, Any], models: Models, include_optimizers: bool, where: str) -> None:
    if include_optimizers and "utility_modules" not in state:
        raise ValueError(
            f"{where}: expected an agent with optimizers, got one without; give "
            f"include_optimizers=False, or save it with them"
        )
    nets: dict[str, nn.Module] = {
        "world_model": models.world_model,
        "actor_critic_model": models.actor_critic,
    }
    for name, net in nets.items():  # check all of them before any is changed
        _check_sizes(net.state_dict(), state[name], where)
    for name, net in nets.items():
        net.load_state_dict(state[name])
    if include_optimizers:
        for name, optimizer in _optimizers(models).items():
            rates = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state[name]["state"], "param_groups": rates})
        models.utilities.scale.load_state_dict(state["utility_modules"]["scale"])
        models.utilities.ratio.load_state_dict(state["utility_modules"]["ratio"])


def _check_sizes(wanted: dict[str, Any], got: dict[str, Any], where: str) -> None:
    sizes = [{name: tuple(part.shape) for name, part in each.items()} for each in (wanted, got)]
    for name in sorted(sizes[0].keys() | sizes[1].keys()):
        expected, found = (each.get(name, "no such part") for each in sizes)
        if expected != found:
            raise ValueError(
                f"{where}: expected an agent of these sizes, {name} {expected}, got {found}; give "
                f"the env and the config that it was made with"
            )


def _to_bytes(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes, where: str) -> dict[str, Any]:
    try:
        # PyTorch writes a zip file, but does not verify its checksums.
        is_damaged = zipfile.ZipFile(io.BytesIO(data)).testzip() is not None
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # damaged bytes can raise any exception
        is_damaged, state = True, None
    wanted = {"world_model", "actor_critic_model"}
    if is_damaged or not isinstance(state, dict) or not wanted <= state.keys():
        raise ValueError(
            f"{where}: expected an agent that save_models wrote, got something else or a damaged "
            f"one; give another file"
        )
    return state


def _generators() -> dict[str, Any]:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpu}


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
