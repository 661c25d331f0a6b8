"""Envs on a device take many steps at once; the step loop gets them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...buffers.libraries.jax_learners import JaxPolicy
from ...buffers.libraries.torch_policies import TorchPolicy
from ...buffers.sampling.batch import map_tree
from ...wrappers.jax_envs import JaxEnvs, ScannedSteps
from ...wrappers.torch_envs import TorchEnvs
from .result_reader import RawStep
from .vector_envs import Vector

# More steps would let Ctrl-C wait, and take memory.
_LEAST, _MOST, _BYTES = 16, 512, 64 << 20


class StepsAhead:
    """Steps that a device has taken, and that nobody has seen yet."""

    # To a step loop it is a policy, `choose`, and envs, `send` and `receive`, like all others. So
    # each row is checked, counted and written as one that was stepped alone. Envs and policy are of
    # the same library; ``info`` names the infos to read, as far as the envs have them;
    # ``vector_bytes`` are those of the rows of a vector step.

    def __init__(
        self,
        envs: JaxEnvs | TorchEnvs,
        policy: JaxPolicy | TorchPolicy,
        info: Iterable[str],
        vector_bytes: int,
    ) -> None:
        self._scan: Any = envs.scan
        self._policy = policy
        self._info = tuple(info)
        self._most = max(_LEAST, min(_MOST, _BYTES // vector_bytes))
        self._steps: ScannedSteps | None = None
        self._now: Any = None
        self._next = 0
        self.left = 0
        """Steps that were taken and not handed out."""

    @property
    def may_drop(self) -> bool:
        """The policy can take back what it has drawn for steps that are dropped."""
        return isinstance(self._policy, JaxPolicy)

    def take(self, most: int) -> None:
        """Let the device take up to so many steps, and bring them over."""
        steps = min(most, self._most)
        self._steps = self._scan(self._policy, steps, self._info)
        self._next, self.left = 0, steps

    def drop(self) -> None:
        """Forget the steps that are left; if there are any, a reset of all envs must follow."""
        if isinstance(self._policy, JaxPolicy):
            self._policy.steps -= self.left
        self._steps, self.left = None, 0

    def choose(self, observation: object, is_first: np.ndarray) -> Any:
        """The actions of the next step, and extras if the policy has any."""
        place = self._next
        self._now = now = map_tree(lambda rows: rows[place], self._steps)
        self._next, self.left = place + 1, self.left - 1
        return (now.action, now.extras) if now.extras else now.action

    def send(self, action: object) -> None:
        """Nothing: the device has stepped."""

    def receive(self) -> RawStep:
        """The results of this step."""
        now = self._now
        return now.observation, now.reward, now.terminated, now.truncated, now.info


def steps_ahead(
    groups: Sequence[Vector],
    policy: object,
    # A function gets all infos of a reset, so `TorchEnvs` need each step with all
    metadata: object,
    info: Iterable[str],  # declared info fields
    row_bytes: int,
) -> StepsAhead | None:
    """The steps ahead of envs on a device with a policy of the same library; else None."""
    envs = groups[0]
    names = (*info, "reset_seed")
    vector_bytes = max(1, row_bytes) * envs.num_envs
    if len(groups) == 1 and type(envs) is JaxEnvs and isinstance(policy, JaxPolicy):
        return StepsAhead(envs, policy, names, vector_bytes)
    if len(groups) == 1 and type(envs) is TorchEnvs and isinstance(policy, TorchPolicy):
        if envs.scans and not callable(metadata):
            return StepsAhead(envs, policy, names, vector_bytes)
    return None
