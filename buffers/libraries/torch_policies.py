"""PyTorch: batches as tensors, and modules as policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ..base.number_checks import check_whole
from ..sampling.batch import map_tree
from ..sampling.tensors import ToTensors, load_torch

Mode: TypeAlias = Literal["categorical", "greedy", "gaussian", "mean"]
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def to_torch(data: object, device: object = None) -> Any:
    """Convert a batch, minibatch or rollout to tensors: the same type, nested in the same way.

    On the CPU tensors share the arrays' memory: a later draw with ``out=`` overwrites
    them.

    Args:
        data: A `Batch`, `TransitionBatch`, `Minibatch` or `Rollout`; or arrays nested in mappings
            and tuples.
        device: Torch device of the tensors; None leaves them on the CPU.

    Returns:
        The same type with tensors in its fields; Any to type checkers, as its annotations are
        of numpy arrays.

    Raises:
        ImportError: PyTorch is not installed.
        ValueError: There is no such device.
        TypeError: Torch has no dtype for an array.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> to_torch(replay.sample_transitions(4)).observation.shape
        torch.Size([4, 4])
    """
    return ToTensors(device)(data)


def torch_policy(
    module: Callable[[Any], Any],
    *,
    mode: Mode = "categorical",
    value: Callable[[Any], Any] | Literal["last"] | None = None,
    device: object = None,
    dtype: Any = None,
    seed: int | None = None,
) -> TorchPolicy:
    """A policy for a `Collector` or `evaluate` from a ``torch.nn.Module``.

    ===================  ========================================  ================================
    mode                 the module returns                        action
    ===================  ========================================  ================================
    ``"categorical"``    logits ``[N, A]``                         drawn, [N] int64
    ``"greedy"``         logits, or Q values, ``[N, A]``           the largest, [N] int64
    ``"gaussian"``       mean and deviation, ``[N, ...]`` each     drawn, ``[N, ...]``
    ``"mean"``           the mean ``[N, ...]``, or both            the mean, ``[N, ...]``
    ===================  ========================================  ================================

    Drawn actions have the extra ``log_prob``, [N] float32, summed over the axes of an action. What
    is drawn beyond a Box's bounds is left so; its env may clip it.

    Args:
        module: Called with observations ``[N, ...]`` as tensors of their dtype, nested like the
            env's space, without gradients. Images are uint8: the module has to scale them.
        mode: Meaning of its output.
        value: Computes values ``[N]`` or ``[N, 1]`` of observations: another module; or ``"last"``,
            if they are the last part of the tuple that the module returns. Rows then have the extra
            ``value``, [N] float32, and rollouts bootstrap from it.
        device: Torch device of observations; None: that of the module's first parameter.
        dtype: A torch dtype that floating-point observations are converted to, such as
            ``torch.float32``; None leaves them.
        seed: Seed of the generator of actions, >= 0: equal seeds give equal actions. None:
            derived from the Collector's seed, or else drawn from the system.

    Raises:
        ImportError: PyTorch is not installed.
        ValueError: An argument is invalid, or there is no such device.

    Example:
        >>> import stepwell as sw
        >>> import torch
        >>> net = torch.nn.Linear(4, 2)
        >>> policy = torch_policy(net, value=torch.nn.Linear(4, 1))
        >>> envs = sw.make_vec("CartPole-v1", num_envs=8, num_workers=0)
        >>> rollout = sw.Collector(envs, policy, seed=0).rollout(steps=16)
        >>> sorted(rollout.extras), rollout.action.shape
        (['log_prob', 'value'], (16, 8))
        >>> advantages, returns = rollout.advantages(gamma=0.99, lam=0.95)
        >>> len(sw.evaluate("CartPole-v1", torch_policy(net, mode="greedy"), episodes=2).returns)
        2
    """
    if not callable(module):
        raise TypeError(
            f"module: expected a torch.nn.Module or a function, got {type(module).__name__}; give "
            f"one"
        )
    if mode not in get_args(Mode):
        raise ValueError(
            f"mode: expected one of {', '.join(get_args(Mode))}, got {mode!r}; take one of them"
        )
    if value is not None and value != "last" and not callable(value):
        raise ValueError(f"value: expected a module, 'last' or None, got {value!r}; give one")
    if seed is not None:
        check_whole("seed", seed, 0)
    return TorchPolicy(module, mode, value, device, dtype, seed)


class TorchPolicy:
    """A module as a policy; made by `torch_policy`."""

    def __init__(
        self,
        module: Callable[[Any], Any],
        mode: Mode,
        value: Callable[[Any], Any] | Literal["last"] | None,
        device: object,
        dtype: Any,
        seed: int | None,
    ) -> None:
        self.module = module
        self._torch: Any = load_torch("torch_policy")
        self._mode = mode
        self._critic = value
        parameters: Any = getattr(module, "parameters", tuple)()
        first: Any = next(iter(parameters), None)
        self._device = first.device if device is None and first is not None else device
        self._to_tensors = ToTensors(self._device)
        self._dtype = dtype
        self._seed = seed
        self._generator = self._torch.Generator(self._device or "cpu")
        self._reseed(seed)
        # A Collector calls `value` on every policy that has the attribute.
        self.value = None if value is None else self._values

    def begin(self, action_space: object, rng: np.random.Generator) -> None:
        """Prepare for a new Collector; its seed determines the draws unless ``seed`` was given."""
        self._reseed(int(rng.integers(2**63)) if self._seed is None else self._seed)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state of the generator of actions; that of the module is the learner's to keep."""
        return {"generator": self._generator.get_state().numpy().copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`."""
        try:
            self._generator.set_state(self._torch.as_tensor(state["generator"]))
        except (KeyError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"generator: expected the state of a torch generator, got {error}"
            ) from None

    def __call__(
        self, observation: Any, is_first: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Actions ``[N, ...]``, and the extras ``log_prob`` and ``value`` if there are any."""
        action, extras = self.choose(self._to_tensors(observation), len(is_first))
        return action.cpu().numpy(), {name: rows.cpu().numpy() for name, rows in extras.items()}

    def choose(self, observation: Any, count: int) -> tuple[Any, dict[str, Any]]:
        """Actions and extras for tensors ``[N, ...]``, as tensors on their device."""
        with self._torch.inference_mode():
            output, worth = self._output(self._cast(observation))
            action, extras = self._choose(output, count)
            if self._critic is not None:
                extras["value"] = self._column(worth, count)
            return action, {name: tensor.float() for name, tensor in extras.items()}

    def _values(self, observation: Any) -> np.ndarray:
        """Values [K] float32 of observations ``[K, ...]``."""
        with self._torch.inference_mode():
            # The tensors may share the arrays' memory.
            seen = self._cast(self._to_tensors(observation))
            _, worth = self._output(seen, only_value=True)
            found: np.ndarray = self._column(worth, None).float().cpu().numpy()
            return found

    def _reseed(self, seed: int | None) -> None:
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def _cast(self, tree: Any) -> Any:
        """Nested tensors, those of floating-point numbers in the dtype that is wanted."""

        def cast(tensor: Any) -> Any:
            return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

        return tree if self._dtype is None else map_tree(cast, tree)

    def _output(self, seen: Any, *, only_value: bool = False) -> tuple[tuple[Any, ...], Any]:
        """The outputs that determine actions, and the values."""
        critic = None if isinstance(self._critic, str) else self._critic
        if only_value and critic is not None:
            return (), critic(seen)
        # The module may write into what it gets.
        own = seen if critic is None else map_tree(lambda tensor: tensor.clone(), seen)
        output = self.module(own)
        parts = output if isinstance(output, tuple) else (output,)
        if self._critic != "last":
            return parts, None if critic is None else critic(seen)
        if len(parts) < 2:
            raise ValueError(
                "value='last': expected the module to give a tuple with values last, got one "
                "tensor; return them too, or give another module as value"
            )
        return parts[:-1], parts[-1]

    def _choose(self, parts: tuple[Any, ...], count: int) -> tuple[Any, dict[str, Any]]:
        """Actions, and extras."""
        most = 2 if self._mode in ("gaussian", "mean") else 1
        least = 2 if self._mode == "gaussian" else 1
        if not least <= len(parts) <= most or any(len(part) != count for part in parts):
            shapes = ", ".join(str(list(part.shape)) for part in parts)
            wanted = {1: "logits [N, A]", 2: "mean and deviation [N, ...]"}[most]
            raise ValueError(
                f"mode={self._mode!r}: expected {wanted} for N={count} from the module, got "
                f"tensors {shapes}; with values last pass value='last', else take another mode"
            )
        if self._mode == "mean":
            return parts[0], {}
        if self._mode == "gaussian":
            return self._gaussian(parts[0], parts[1])
        (logits,) = parts
        if logits.ndim != 2:
            raise ValueError(
                f"mode={self._mode!r}: expected logits [N, A] from the module, got "
                f"{list(logits.shape)}; give one number for each action"
            )
        if self._mode == "greedy":
            return logits.argmax(dim=1), {}
        log_probs = logits.log_softmax(dim=1)
        action = self._torch.multinomial(log_probs.exp(), 1, generator=self._generator)
        return action[:, 0], {"log_prob": log_probs.gather(1, action)[:, 0]}

    def _gaussian(self, mean: Any, deviation: Any) -> tuple[Any, dict[str, Any]]:
        noise = self._torch.empty_like(mean).normal_(generator=self._generator)
        each = -0.5 * noise**2 - deviation.log() - _HALF_LOG_TAU
        return mean + deviation * noise, {"log_prob": each.flatten(1).sum(dim=1)}

    def _column(self, worth: Any, count: int | None) -> Any:
        """Values [N], of [N] or [N, 1]."""
        found = worth[:, 0] if worth.ndim == 2 and worth.shape[1] == 1 else worth
        if found.ndim != 1 or (count is not None and len(found) != count):
            raise ValueError(
                f"value: expected one number for each observation, [N] or [N, 1], got "
                f"{list(worth.shape)}; return one number for each"
            )
        return found
