"""Names that other libraries have for the parts of a row, a batch and an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
