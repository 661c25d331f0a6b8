"""Objects that users have as policies: models, modules, functions and names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from gymnasium import spaces

from .policy import (
    AnyPolicy,
    PolicyResult,
    RandomPolicy,
    RecurrentResult,
    SeededPolicy,
    as_recurrent,
    not_begun,
    override_hook_of,
    value_of,
)

if TYPE_CHECKING:  # torch is optional
    from ...buffers.libraries.torch_policies import TorchPolicy


class _Model(Protocol):
    """A model of Stable-Baselines3."""

    def predict(self, observation: Any, /) -> tuple[Any, Any]: ...


# Of a function the checks at run time know the arguments; for type checkers, a choice of several
# kinds of functions would leave the type of a lambda open.
GivenPolicy: TypeAlias = (
    "Callable[..., PolicyResult | RecurrentResult] | _Model | Literal['random']"
)
"""Everything that `as_policy` takes."""

_SB3 = ("stable_baselines3.",)
# Their modules take data of these libraries, neither arrays nor tensors.
_OTHER_LIBRARIES = ("tensordict.", "tianshou.", "torchrl.")
_USUAL_METHODS = ("predict", "act", "get_action", "select_action", "compute_single_action")


def as_policy(given: object, name: str = "policy") -> AnyPolicy:
    """Make a policy of what was given as one; a policy itself is returned as it is."""
    # Takes functions of (observation) or (observation, is_first), objects with ``initial_state``,
    # "random", models of Stable-Baselines3 and torch modules of (observation). No library is
    # imported for that, unless a model of it was given. ``name`` is that in errors.
    if isinstance(given, str) and given == "random":
        return RandomPolicy()
    if inspect.isclass(given):
        raise TypeError(
            f"{name}: expected a policy, got the class {given.__name__}; make one of it, "
            f"{given.__name__}()"
        )
    if _is_of(given, _SB3):
        from ...buffers.libraries.sb3.policy import sb3_policy

        return sb3_policy(given)
    owner = getattr(given, "__self__", None)
    if _is_of(owner, _SB3):
        raise TypeError(
            f"{name}: expected a policy, got the method {getattr(given, '__name__', '')} of a "
            f"{type(owner).__name__}; give the model itself, or for its best actions "
            f"stepwell.bridges.sb3_policy(model, deterministic=True)"
        )
    if not callable(given):
        got = repr(given) if given is None or isinstance(given, str) else type(given).__name__
        raise TypeError(
            f"{name}: expected something to call with observation and is_first, got {got}; "
            f"{_advice(given)}"
        )
    return _as_callable(given, name)


def _as_callable(given: Callable[..., Any], name: str) -> AnyPolicy:
    """Make a policy of something that can be called, by the arguments that it takes."""
    if as_recurrent(given) is not None:
        if not _takes(given, 3):
            raise TypeError(
                f"{name}: expected it to take three arguments, observation, is_first and state, as "
                f"it has a method initial_state, got {_signature(given)}; give it these arguments"
            )
        return given
    is_module = _is_module(given)
    if is_module and _is_of(given, _OTHER_LIBRARIES):
        raise TypeError(
            f"{name}: expected a torch module that takes tensors, got the {type(given).__name__}, "
            f"whose base class is of {_library_of(given)}; give a function of (observation, "
            f"is_first) that calls it"
        )
    # Modules of torch itself with two arguments take two inputs, not is_first.
    if is_module and (type(given).__module__.startswith("torch.") or not _takes(given, 2)):
        if not _takes(given, 1):
            raise TypeError(
                f"{name}: expected a torch module whose forward takes the observation alone, got "
                f"{type(given).__name__} with {_signature(given)}; give a function of "
                f"(observation, is_first) that calls it"
            )
        return ModulePolicy(given)
    if _takes(given, 2):
        return cast("AnyPolicy", given)
    if _takes(given, 1):
        return ObservationPolicy(given)
    raise TypeError(
        f"{name}: expected it to take observation, or observation and is_first, got "
        f"{_signature(given)}; give it one or both of these arguments, and no other"
    )


class ObservationPolicy:
    """A function of the observation alone as a policy; its methods are this one's too."""

    begin: Callable[[spaces.Space[object], np.random.Generator], None]
    value: Callable[..., object]
    on_override: Callable[[Any, Any], Any]

    def __init__(self, function: Callable[[Any], PolicyResult]) -> None:
        self._function = function
        # Set only where the function has them: that is how a Collector knows.
        if isinstance(function, SeededPolicy):
            self.begin = function.begin
        if (value := value_of(function)) is not None:
            self.value = value
        if (hook := override_hook_of(function)) is not None:
            self.on_override = hook

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> PolicyResult:
        """The result of the function."""
        return self._function(observation)


class ModulePolicy:
    """A torch module, called in the mode that it is in, as a policy that takes its best actions."""

    # Of the output alone one cannot tell logits from Q values, so nothing is drawn: for a Discrete
    # space the module returns a number for each action, ``[N, A]``, and the largest one is taken,
    # which is right for both. For a Box it returns the actions ``[N, ...]``; anything behind them
    # in a tuple, such as deviations, is ignored. Actions are drawn, and extras and values stored,
    # by `torch_policy`. Floating-point observations are converted to the dtype of the module's
    # parameters, and observations are moved to their device.

    def __init__(self, module: Callable[[Any], Any]) -> None:
        self.module = module
        self._policy: TorchPolicy | None = None

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Prepare for envs with this action space; the generator is not needed."""
        from ...buffers.libraries.torch_policies import torch_policy

        count = None
        if isinstance(action_space, spaces.Discrete) and action_space.start == 0:
            count = int(action_space.n)
        elif not isinstance(action_space, spaces.Box):
            raise ValueError(
                f"policy: expected an action space that is a Box, or Discrete from 0 on, for the "
                f"torch module {type(self.module).__name__}, got {action_space}; give a function "
                f"of the observation that calls it and returns actions"
            )
        parameters: list[Any] = list(cast("Any", self.module).parameters())
        real = [one.dtype for one in parameters if one.is_floating_point()]
        self._policy = torch_policy(
            _Checked(self.module, count),
            mode="mean" if count is None else "greedy",
            device=parameters[0].device if parameters else None,
            dtype=real[0] if real else None,
        )

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> PolicyResult:
        """The best actions ``[N, ...]``."""
        if self._policy is None:
            raise not_begun("the policy of a torch module")
        return self._policy(observation, is_first)


class _Checked:
    """A module whose output is checked, for so many actions; None for actions of a Box."""

    def __init__(self, module: Callable[[Any], Any], actions: int | None) -> None:
        self._module = module
        self._actions = actions

    def __call__(self, observation: Any) -> Any:
        try:
            output = self._module(observation)
        except Exception as error:
            if (given := getattr(observation, "shape", None)) is not None:
                what = type(self._module).__name__
                error.add_note(f"policy: the torch module {what} got observations {list(given)}")
            raise
        if isinstance(output, tuple) and self._actions is None:
            output = output[0]
        shape, what = getattr(output, "shape", None), type(self._module).__name__
        if shape is None:
            is_tuple = isinstance(output, tuple)
            cure = (
                "wrap it: stepwell.bridges.torch_policy(module, mode='greedy', value='last') if "
                "values come last"
                if is_tuple
                else "return a tensor"
            )
            raise ValueError(
                f"policy: expected one tensor from the torch module {what}, got "
                f"{f'a tuple of {len(output)}' if is_tuple else type(output).__name__}; {cure}"
            )
        if self._actions is not None and (len(shape) != 2 or shape[1] != self._actions):
            raise ValueError(
                f"policy: expected [N, {self._actions}] from the torch module {what}, a number "
                f"for each action, got {list(shape)}; give it an output for each action"
            )
        return output


def _takes(given: Callable[..., Any], count: int) -> bool:
    """Test whether it can be called with so many arguments; True where that is not known."""
    try:
        # A decorated policy is called as the decorator left it.
        signature = inspect.signature(_called(given), follow_wrapped=False)
    except (TypeError, ValueError):  # some functions in C: the first call shows it
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _signature(given: Callable[..., Any]) -> str:
    return str(inspect.signature(_called(given), follow_wrapped=False))


def _called(given: Callable[..., Any]) -> Callable[..., Any]:
    """The function that has the arguments: a torch module's ``__call__`` takes anything."""
    if not _is_module(given):
        return given
    module: Any = getattr(given, "_orig_mod", given)  # of one that torch has compiled
    return cast("Callable[..., Any]", module.forward)


def _is_module(given: object) -> bool:
    """Test whether it is a torch module that is called like one."""
    torch = sys.modules.get("torch.nn")  # there is no module of a library that is not loaded
    base = None if torch is None else cast("type[Any]", torch.Module)
    if base is None or not isinstance(given, base):
        return False
    return type(given).__call__ is base.__call__ or hasattr(given, "_orig_mod")


def _is_of(given: object, libraries: tuple[str, ...]) -> bool:
    """Test whether its class, or a base class, is defined in one of the libraries."""
    return any(base.__module__.startswith(libraries) for base in type(given).__mro__)


def _library_of(given: object) -> str:
    return next(
        one.__module__.partition(".")[0]
        for one in type(given).__mro__
        if one.__module__.startswith(_OTHER_LIBRARIES)
    )


def _advice(given: object) -> str:
    """Advice for an object that cannot be called."""
    if given is None:
        return "stepwell.RandomPolicy() draws random actions"
    if isinstance(given, str):
        return "'random' is the only name: import the policy and give the object"
    for method in _USUAL_METHODS:
        if callable(getattr(given, method, None)):
            return f"give a function that calls its {method} with [N, ...] observations"
    return "give a function or a callable object"
