"""Vector envs of torch tensors, on a GPU or the CPU, as vector envs of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from ..buffers.base.optional_libraries import load_library
from .jax_envs import ScannedSteps


class TorchEnvs(VectorEnv[Any, Any, Any]):
    """A vector env of torch tensors as one that a `Collector` steps.

    With a `torch_policy`, and autoreset mode NEXT_STEP, all stays on the device for many steps: a
    Collector waits for the device, and brings the rows over, once for all of them. Otherwise each
    step is brought over by itself; the rows are the same.

    Args:
        envs: An object with the interface of a Gymnasium vector env: ``num_envs``, the two spaces
            of one env and of all, ``reset`` and ``step``. It takes and returns tensors
            ``[N, ...]``.
        device: Torch device of the actions; None: the one of the envs' ``device``, or of the
            observations that they return.
        autoreset_mode: That of the envs; None takes what they declare in their ``metadata``.

    Raises:
        TypeError: The envs lack a part of that interface.
        ValueError: They declare no autoreset mode.
        ImportError: PyTorch is not installed.

    Example:
        >>> import stepwell as sw
        >>> import torch
        >>> from gymnasium import spaces
        >>> from gymnasium.vector.utils import batch_space
        >>> class Drift:  # each env's number grows by its action, to 3
        ...     num_envs, device = 4, "cpu"
        ...     single_observation_space = spaces.Box(0, 9, (1,))
        ...     single_action_space = spaces.Discrete(2)
        ...     observation_space = batch_space(single_observation_space, 4)
        ...     action_space = batch_space(single_action_space, 4)
        ...     metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        ...     def reset(self, *, seed=None, options=None):
        ...         self.place = torch.zeros(4, 1)
        ...         return self.place, {}
        ...     def step(self, action):
        ...         ended = self.place[:, 0] >= 3
        ...         self.place = torch.where(ended[:, None], 0.0, self.place + action[:, None])
        ...         over = self.place[:, 0] >= 3
        ...         return self.place, self.place[:, 0], over, torch.zeros_like(over), {}
        ...     def close(self):
        ...         pass
        >>> envs, net = sw.TorchEnvs(Drift()), torch.nn.Linear(1, 2)
        >>> with sw.Collector(envs, sw.bridges.torch_policy(net), seed=0) as collector:
        ...     rollout = collector.rollout(steps=8)
        >>> rollout.observation.shape, sorted(rollout.extras)
        ((8, 4, 1), ['log_prob'])
    """

    def __init__(
        self,
        envs: Any,
        device: Any = None,
        *,
        autoreset_mode: AutoresetMode | None = None,
    ) -> None:
        self._torch: Any = load_library("torch", "TorchEnvs", install="'stepwell[torch]'")
        names = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")
        missing = [name for name in names if not hasattr(envs, name)]
        if missing:
            raise TypeError(
                f"envs: expected a vector env of torch tensors with {', '.join(names)}, got "
                f"{type(envs).__name__} without {', '.join(missing)}; add them"
            )
        declared = getattr(envs, "metadata", {}).get("autoreset_mode")
        mode = declared if autoreset_mode is None else autoreset_mode
        if not isinstance(mode, AutoresetMode):
            raise ValueError(
                f"autoreset_mode: expected a gymnasium.vector.AutoresetMode, got {mode!r}; say "
                f"what the envs do when an episode ends"
            )
        self.envs = envs
        self._device = getattr(envs, "device", None) if device is None else device
        self.num_envs = int(envs.num_envs)
        self.single_observation_space = envs.single_observation_space
        self.single_action_space = envs.single_action_space
        self.observation_space = envs.observation_space
        self.action_space = envs.action_space
        self.metadata = {**getattr(envs, "metadata", {}), "autoreset_mode": mode}
        self.autoreset_mode = mode
        self.spec = getattr(envs, "spec", None)
        self._newest: Any = None

    def __repr__(self) -> str:
        return f"TorchEnvs({self.envs!r})"

    @property
    def scans(self) -> bool:
        """True if rows of many steps can be brought over at once."""
        return self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the envs; observations and infos are numpy arrays."""
        observation, info = self.envs.reset(seed=seed, options=options)
        self._newest = self._copied(observation)
        return self._on_host(observation), self._on_host(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the envs; actions may be numpy arrays, results are."""
        observation, reward, terminated, truncated, info = self.envs.step(self._on_device(actions))
        self._newest = self._copied(observation)
        host = (self._on_host(each) for each in (observation, reward, terminated, truncated, info))
        return tuple(host)

    def scan(self, policy: Any, steps: int, info: tuple[str, ...] = ()) -> ScannedSteps:
        """Let a policy step all envs T times, and bring the rows over at once.

        Args:
            policy: As `torch_policy` makes it.
            steps: Number of steps T.
            info: Names of the infos to return, as far as the envs give them in each step.

        Returns:
            The steps, as numpy arrays.
        """
        torch = self._torch
        if self._newest is None:
            raise ValueError(
                "TorchEnvs: expected a reset before the first step, got none; reset it"
            )
        rows: list[Any] = []
        for _ in range(steps):
            # Policy and envs may write into what they get.
            action, extras = policy.choose(self._copied(self._newest), self.num_envs)
            observation, reward, terminated, truncated, infos = self.envs.step(
                self._on_device(self._copied(action))
            )
            given = {key: infos[key] for name in info for key in (name, f"_{name}") if key in infos}
            row = (action, extras, observation, reward, terminated, truncated, given)
            # Envs may write the next step into the same tensors.
            rows.append(self._copied(row))
            self._newest = rows[-1][2]
        return ScannedSteps(*self._on_host(_stacked(torch, rows)))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs."""
        if hasattr(self.envs, "close"):
            self.envs.close()

    def _on_device(self, value: Any) -> Any:
        """Arrays or tensors as tensors on the envs' device."""
        if isinstance(value, Mapping):
            return {key: self._on_device(part) for key, part in value.items()}
        if isinstance(value, tuple | list):
            return tuple(map(self._on_device, value))
        return self._torch.as_tensor(value, device=self._device or self._device_of(self._newest))

    def _device_of(self, value: Any) -> Any:
        while isinstance(value, Mapping | tuple):
            value = next(iter(value.values() if isinstance(value, Mapping) else value))
        return getattr(value, "device", None)

    def _copied(self, value: Any) -> Any:
        """Nested tensors in memory of their own."""
        if isinstance(value, Mapping):
            return {key: self._copied(part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._copied, value))
        return value.detach().clone() if self._torch.is_tensor(value) else value

    def _on_host(self, value: Any) -> Any:
        """Nested tensors as numpy arrays in memory of their own; what is none stays as it is."""
        if isinstance(value, Mapping):
            return {key: self._on_host(part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._on_host, value))
        if not self._torch.is_tensor(value):
            return value
        # From the CPU, a view into memory that the envs may write to again.
        there = value.detach()
        return np.from_dlpack(there.clone() if there.device.type == "cpu" else there.cpu())


def _stacked(torch: Any, rows: Sequence[Any]) -> Any:
    """Nested tensors of T steps, ``[T, N, ...]``."""
    first = rows[0]
    if isinstance(first, Mapping):
        return {key: _stacked(torch, [row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(torch, parts) for parts in zip(*rows, strict=True))
    return torch.stack([torch.as_tensor(row) for row in rows])
