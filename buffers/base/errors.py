"""The errors that Stepwell raises in addition to ValueError and TypeError.

StepwellError
├── SpecMismatch       the data does not fit what the store was made for
├── NotEnoughData      no stored episode is long enough for the request
├── LimiterClosed      the limiter was closed while a thread waited for it
├── RowsDiffer         an env that was played again shows other rows than those stored
├── Unprovable         a stored episode cannot be played again
├── StoreNotFound      the folder holds no store
├── StoreLocked        another process writes into this store
├── StoreCorrupt       stored bytes are damaged
├── StoreTooNew        a later Stepwell wrote this store
├── StoreFailed        an earlier write failed: reopen the store to go on
├── RemoteError        your code raised in an actor of a distributed collector
├── GroupLost          the actors of a group died too often
└── NotEnoughResources actors cannot start: what they ask for is not there

The last three are in ``stepwell.collectors``.
"""

from typing import TYPE_CHECKING, Any, NoReturn


class StepwellError(Exception):
    """Base class of Stepwell's errors."""


class SpecMismatch(StepwellError):
    """The data does not fit the Spec that the store was made for."""


class NotEnoughData(StepwellError):
    """No stored episode is long enough for the request."""


class LimiterClosed(StepwellError):
    """The limiter was closed while a thread waited for it."""


class RowsDiffer(StepwellError):
    """An env that was played again shows other rows than those stored."""


class Unprovable(StepwellError):
    """A stored episode cannot be played again."""


class StoreNotFound(StepwellError):
    """The folder does not exist or holds no Stepwell store."""


class StoreLocked(StepwellError):
    """Another process holds the store open for writing.

    Args:
        message: The message.
        holder: The process that writes, for example ``"pid 7 on lab since 2026-01-01"``.
    """

    def __init__(self, message: str, *, holder: str = "another process") -> None:
        super().__init__(message)
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return StoreLocked, self.args, self.__dict__


class StoreCorrupt(StepwellError):
    """Stored bytes are damaged; the message names the place."""


class StoreTooNew(StepwellError):
    """The store was written by a later version of Stepwell."""


class StoreFailed(StepwellError):
    """An earlier write failed, so the writer stores nothing more; reopen the store."""


def not_copied(what: str, instead: str) -> NoReturn:
    """Refuse to pickle or copy an object that has files, locks, memory or processes of its own."""
    raise TypeError(
        f"{what} cannot be pickled or copied: expected one that was made where it is used, got a "
        f"copy of another one; {instead}"
    )


_PARTS = {
    "observation": "obs observations s state states",
    "next_observation": "next_obs next_observations obs_next next_state next_states",
    "action": "a act actions",
    "reward": "r rew rewards returns",
    "terminated or truncated": "d done dones end is_done terminal terminals",
    "terminated": "is_terminal terminateds terminations",
    "truncated": "timeout timeouts truncateds truncations",
    "is_first": "episode_starts first is_init",
    "is_last": "is_end last",
    "mask": "masks pad_mask valid",
    "discount": "discounts gamma gammas",
    "ids": "batch_idxes idx idxes idxs index indexes indices",
    "weights": "importance_weights is_weights weight",
    "lengths": "length seq_len sequence_length",
    "info": "env_infos infos",
    "extras": "agent_infos extra policy",
    'extras["log_prob"]': "log_prob log_probs logprobs old_log_prob",
    'extras["value"]': "old_values value values",
    "advantage": "advantages",
    "reward.shape": "batch_size shape size",
    "total_reward": "compute_return episode_return",
    "steps": "total_steps total_timesteps",
}
_OTHER_NAMES = {name: right for right, names in _PARTS.items() for name in names.split()}
_BRIDGES = {
    **dict.fromkeys(("cpu", "cuda", "device", "to", "to_torch", "torch"), "to_torch({}, device)"),
    **dict.fromkeys(("jax", "to_jax"), "to_jax({})"),
    "to_tensordict": "to_tensordict({})",
}


class OtherNames:
    """Answers the name that another library has for an attribute with the one that is meant."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know the attributes, and no other name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(missing_part(self, name), name=name, obj=self)


def missing_part(owner: object, name: str) -> str:
    """The message for a part that a batch, a rollout or an episode does not have."""
    kind = type(owner).__name__
    known = [each for each in dir(type(owner)) if each[0] != "_" and each != "memory"]
    this = "batch" if kind == "TransitionBatch" else kind.lower()
    rights = _OTHER_NAMES.get(name, name).split(" or ")
    if name in _BRIDGES:
        cure = f"stepwell.bridges.{_BRIDGES[name].format(this)}"
    elif all(right.partition("[")[0].partition(".")[0] in known for right in rights):
        cure = " or ".join(f"{this}.{right}" for right in rights)
    else:
        cure = f"one of {', '.join(known)}"
    return f"{kind} has no {name!r}: expected {cure}"
