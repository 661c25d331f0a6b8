"""Rows of many agents as rows of one agent each: of a rollout, and drawn from a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast, overload

import numpy as np

from ..base.errors import NotEnoughData
from ..base.untrusted_json import mapping_of
from ..replay.replay import SequenceReplayBuffer
from ..replay.rollout import Bootstrap, Rollout
from ..rows.episode import End, Episode
from ..sampling.batch import Batch, TransitionBatch, map_tree, named_leaves, under
from ..sampling.requests import Sequences, Transitions, check_request
from ..spec.spec import ArrayTree, Field, Layout, Spec, field_of, kind_of, unflatten

REWARD, TERMINATED, TRUNCATED = "agent_reward", "agent_terminated", "agent_truncated"
ENDS = (REWARD, TERMINATED, TRUNCATED)
"""Info fields [A] of joint rows: what the step into the row gave to each agent."""


def agents_of(observation: object, info: Mapping[str, object]) -> list[str]:
    """Names of all agents in the order of the axis A, which is that of the sorted names."""
    joint = mapping_of(observation)
    agents = joint.get("agents") if sorted(joint) == _KEYS else None
    if not isinstance(agents, Mapping):
        got = sorted(joint) if isinstance(observation, Mapping) else type(observation).__name__
        raise ValueError(
            f"observation: expected a dict of {_KEYS}, got {got}; collect from envs of "
            f"from_pettingzoo"
        )
    missing = [name for name in ENDS if name not in info]
    if missing:
        raise ValueError(
            f"info: expected the fields {', '.join(ENDS)}, got {', '.join(info) or 'none'}; "
            f"collect from envs of from_pettingzoo, and keep {missing[0]!r}"
        )
    return sorted(cast("Mapping[str, object]", agents))


_KEYS = ["agents", "present"]


def chosen_agents(agents: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The chosen agents, all of them when None is given."""
    if agents is None:
        return list(known)
    if isinstance(agents, str):
        raise ValueError(f"agents: expected a list of names, got {agents!r}; put it in a list")
    unknown = [name for name in agents if name not in known]
    if unknown or not agents or len(set(agents)) < len(agents):
        raise ValueError(
            f"agents: expected different ones of {', '.join(known)}, got {list(agents)}; correct it"
        )
    return list(agents)


def same_form(agents: Sequence[str], forms: Sequence[object], what: str) -> None:
    """Refuse agents whose fields differ, as they cannot be in one array."""
    for name, form in zip(agents, forms, strict=True):
        if form != forms[0]:
            raise ValueError(
                f"agents: expected agents with equal {what}s, got {forms[0]} of {agents[0]!r} and "
                f"{form} of {name!r}; choose agents=[...] with equal ones"
            )


def of_agent(
    array: np.ndarray,  # ``[..., A, ...]`` or any other
    place: Any,  # on the axis A
    axis: int,  # number of axes before A
    count: int,  # number of agents A
) -> np.ndarray:
    """An agent's part of an extra or info field: its own of A, or what is the same for all."""
    if array.ndim > axis and array.shape[axis] == count:
        found: np.ndarray = array[(slice(None),) * axis + (place,)]
        return found
    return array


def stacked(trees: Sequence[Any], axis: int) -> Any:
    """Values of agents with equal fields as one, with a new axis for the agents."""
    leaves = [[leaf for _, leaf in named_leaves("", tree)] for tree in trees]
    columns = iter([np.stack(column, axis) for column in zip(*leaves, strict=True)])
    return map_tree(lambda leaf: next(columns), trees[0])


def agent_ends(
    own: Sequence[np.ndarray],  # `agent_terminated` and `agent_truncated`
    present: np.ndarray,
    joint: Sequence[np.ndarray],  # `terminated` and `truncated` of the rows
) -> tuple[np.ndarray, np.ndarray]:
    """Terminated and truncated: an agent's own, or the episode's if it is in the last row."""
    goes_on = present & ~(own[0] | own[1])
    return own[0] | (goes_on & joint[0]), own[1] | (goes_on & joint[1])


def agent_rollout(rollout: Rollout, agents: Sequence[str] | None) -> Rollout:
    """A rollout with a column for each env and agent; see `per_agent`."""
    seen = cast("Mapping[str, Any]", rollout.observation)
    known = agents_of(seen, rollout.info)
    chosen = chosen_agents(agents, known)
    acted = cast("Mapping[str, Any]", rollout.action)
    for what, parts in (("observation", seen["agents"]), ("action", acted)):
        same_form(chosen, [_form(parts[name]) for name in chosen], what)
    places = np.array([known.index(name) for name in chosen])

    def fold(array: np.ndarray) -> np.ndarray:
        """``[T, N, C, ...]`` as ``[T, N * C, ...]``, in new memory."""
        shape = (array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])
        return np.ascontiguousarray(array).reshape(shape).copy()

    def of_chosen(array: np.ndarray) -> np.ndarray:
        """The columns of ``[T, N, A, ...]``, or of an array that is the same for all agents."""
        part = of_agent(array, places, 2, len(known))
        if part is array:
            part = np.repeat(array[:, :, None], len(places), axis=2)
        return fold(part)

    present = seen["present"][..., places].astype(np.bool_)
    mask = rollout.mask[..., None] & present
    own = [rollout.info[name][..., places].astype(np.bool_) for name in (TERMINATED, TRUNCATED)]
    # Those that have not ended are present in the row after: they end as the episode does.
    joint = rollout.terminated[..., None], rollout.truncated[..., None]
    terminated, truncated = agent_ends(own, mask, joint)
    terminated, truncated = mask & terminated, mask & truncated
    cut = mask & rollout.cut[..., None] & ~(terminated | truncated)
    is_first = np.repeat(rollout.is_first[..., None], len(chosen), axis=2)
    is_first[1:] |= mask[1:] & ~(mask[:-1] & ~(terminated | truncated | cut)[:-1])
    info = {name: of_chosen(array) for name, array in rollout.info.items() if name not in ENDS}
    return Rollout(
        observation=map_tree(fold, stacked([seen["agents"][name] for name in chosen], 2)),
        action=map_tree(fold, stacked([acted[name] for name in chosen], 2)),
        reward=fold(rollout.info[REWARD][..., places].astype(np.float32)),
        is_first=fold(is_first),
        terminated=fold(terminated),
        truncated=fold(truncated),
        cut=fold(cut),
        mask=fold(mask),
        info={**info, "agent": fold(np.broadcast_to(places, mask.shape))},
        extras={name: of_chosen(array) for name, array in rollout.extras.items()},
        bootstrap=_bootstrap(rollout, chosen, mask, terminated, truncated | cut),
        state=map_tree(of_chosen, rollout.state),
        initial_state=map_tree(lambda array: of_chosen(array[None])[0], rollout.initial_state),
        episode_returns=rollout.episode_returns,
        episode_lengths=rollout.episode_lengths,
        rng=rollout.rng,
    )


def _bootstrap(
    rollout: Rollout,
    chosen: Sequence[str],
    mask: np.ndarray,  # [T, N, C] bool: a step was taken
    terminated: np.ndarray,  # [T, N, C] bool: no value follows
    stops: np.ndarray,  # [T, N, C] bool: truncated or cut
) -> Bootstrap:
    """The open ends of all agents."""
    is_last = np.zeros(mask.shape, np.bool_)
    is_last[-1] = True
    step, env, agent = np.nonzero(mask & ~terminated & (stops | is_last))
    joint = rollout.bootstrap
    entry = np.full(rollout.mask.shape, -1)
    entry[joint.step, joint.env] = np.arange(len(joint.step))
    found = entry[step, env]
    ended = rollout.terminated | rollout.truncated | rollout.cut
    lost = np.flatnonzero((found < 0) & (ended[step, env] | (step == len(mask) - 1)))
    if len(lost):
        row, column, name = step[lost[0]], env[lost[0]], chosen[int(agent[lost[0]])]
        raise ValueError(
            f"row {row} of env {column}: expected the observation after it, as agent {name!r} was "
            f"truncated there, got an episode that terminated; let the episode be truncated, too"
        )
    after = np.minimum(step + 1, len(mask) - 1)

    def following(rows: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Values after the open ends: of an entry of the joint ones, or of the next row."""
        if not len(ends):
            picked: np.ndarray = rows[after, env, agent]
            return picked
        is_open = (found >= 0).reshape(-1, *(1,) * (rows.ndim - 3))
        return np.where(is_open, ends[np.maximum(found, 0), agent], rows[after, env, agent])

    seen = cast("Mapping[str, Any]", rollout.observation)["agents"]
    open_ends = cast("Mapping[str, Any]", joint.observation)["agents"]
    rows = stacked([seen[name] for name in chosen], 2)
    ends = iter(
        leaf for _, leaf in named_leaves("", stacked([open_ends[name] for name in chosen], 1))
    )
    if joint.state is not None:
        raise ValueError(
            "state: expected a policy without a recurrent state, got one with; compute the "
            "advantages of each agent from its rows, or keep the state in the extras"
        )
    return Bootstrap(
        step=step,
        env=env * len(chosen) + agent,
        observation=map_tree(lambda leaf: following(leaf, next(ends)), rows),
        state=None,
        value=None,
    )


def _form(tree: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, leaf.dtype.name, leaf.shape[2:]) for name, leaf in named_leaves("", tree)]


_ROUNDS = 1000


@overload
def per_agent(source: Rollout, agents: Sequence[str] | None = None) -> Rollout: ...


@overload
def per_agent(source: SequenceReplayBuffer, agents: Sequence[str] | None = None) -> AgentReplay: ...


def per_agent(
    source: Rollout | SequenceReplayBuffer, agents: Sequence[str] | None = None
) -> Rollout | AgentReplay:
    """Take joint rows of `from_pettingzoo` apart: each agent's rows, as if it were alone.

    An agent's rows begin where it comes, and end with its own termination or truncation, in the row
    with its last observation; or as the episode does, if it is present in its last row. Rewards
    are its own.

    Of a rollout ``[T, N, ...]`` it makes one with a column for each env and agent, ``[T, N * C,
    ...]`` with C chosen agents, those of an env side by side. `Rollout.advantages`, `minibatches`
    and `sequences` then treat each agent by itself. ``mask`` is False where the agent is not
    present. ``info["agent"]`` is the agent's place among the sorted names of all A. An extra
    ``[N, A, ...]`` that the policy returned, such as ``"value"``, has a part for each agent; any
    other is repeated. Values after the open ends are not the policy's own, which are of joint rows:
    pass ``bootstrap_value=``. An agent that came just with the rollout's first row is not marked
    there as ``is_first``.

    Args:
        source: A rollout, or a replay, of which an `AgentReplay` is returned.
        agents: Names of the agents; None for all. Their spaces must be equal in dtype and shape.

    Raises:
        ValueError: The rows are not joint ones, the agents are unknown, or their fields differ.
        TypeError: ``source`` is neither.

    Example:
        >>> import stepwell as sw
        >>> info = {
        ...     "agent_reward": np.array([[[1.0, 2.0]]]),
        ...     "agent_terminated": np.array([[[False, True]]]),
        ...     "agent_truncated": np.array([[[False, False]]]),
        ... }
        >>> no = np.zeros((1, 1), bool)
        >>> seen = {"agents": {"a": np.zeros((1, 1, 4)), "b": np.ones((1, 1, 4))}}
        >>> after = {"agents": {"a": np.full((1, 4), 5.0), "b": np.full((1, 4), 6.0)}}
        >>> rollout = sw.Rollout(
        ...     observation={**seen, "present": np.ones((1, 1, 2), np.int8)},
        ...     action={"a": np.zeros((1, 1), int), "b": np.ones((1, 1), int)},
        ...     reward=np.full((1, 1), 3, np.float32),
        ...     is_first=~no, terminated=no, truncated=no, cut=no, mask=~no, info=info,
        ...     extras={"value": np.array([[[0.5, 0.25]]])},
        ...     bootstrap=sw.buffers.Bootstrap(
        ...         np.array([0]), np.array([0]),
        ...         {**after, "present": np.array([[1, 0]], np.int8)}, None, None,
        ...     ),
        ... )
        >>> own = per_agent(rollout)
        >>> own.action, own.reward, own.terminated
        (array([[0, 1]]), array([[1., 2.]], dtype=float32), array([[False,  True]]))
        >>> own.advantages(1.0, 1.0, bootstrap_value=lambda observation: observation[:, 0])[0]
        array([[5.5 , 1.75]])
    """
    if isinstance(source, Rollout):
        return agent_rollout(source, agents)
    if not isinstance(cast("object", source), SequenceReplayBuffer):
        raise TypeError(
            f"per_agent: expected a Rollout or a SequenceReplayBuffer, got "
            f"{type(source).__name__}; give what a Collector returned or filled"
        )
    return AgentReplay(source, agents)


class AgentReplay:
    """Draws rows of single agents from a replay of joint rows; `per_agent` makes it.

    It copies nothing and has no state: rows that are added are drawn from at once.

    Args:
        replay: The replay.
        agents: As in `per_agent`.

    Raises:
        ValueError: As in `per_agent`.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> class Waves:  # a parallel env of PettingZoo; "b" comes in the second step
        ...     possible_agents = ["a", "b"]
        ...     def observation_space(self, agent):
        ...         return gym.spaces.Box(0, 9, (2,), np.float32)
        ...     def action_space(self, agent):
        ...         return gym.spaces.Discrete(3)
        ...     def reset(self, seed=None, options=None):
        ...         self.t, self.agents = 0, ["a"]
        ...         return {"a": np.zeros(2, np.float32)}, {}
        ...     def step(self, actions):
        ...         self.t += 1
        ...         over = {a: self.t == 5 for a in actions}
        ...         self.agents = [] if self.t == 5 else ["a", "b"]
        ...         seen = {a: np.full(2, self.t, np.float32) for a in self.possible_agents}
        ...         return seen, {a: 1.0 for a in actions}, over, {a: False for a in actions}, {}
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec(lambda: sw.from_pettingzoo(Waves()), 2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(episodes=4)
        >>> each = sw.per_agent(replay)
        >>> batch = each.sample_transitions(32, n_step=3)
        >>> batch.observation.shape, batch.info["agent"].shape
        ((32, 2), (32,))
        >>> [(episode.metadata["agent"], episode.steps) for episode in each.iter_episodes()][:2]
        [('a', 5), ('b', 4)]
    """

    def __init__(self, replay: SequenceReplayBuffer, agents: Sequence[str] | None = None) -> None:
        self._replay = replay
        spec = replay.spec
        infos = {field.key: field for field in spec.of_kind("info")}
        self._known = agents_of(spec.observation, infos)
        self.agents = chosen_agents(agents, self._known)
        """Names of the chosen agents."""
        self._places = np.array([self._known.index(name) for name in self.agents])
        seen = cast("Mapping[str, Any]", spec.observation)["agents"]
        acted = cast("Mapping[str, Layout]", spec.action)
        self._names: list[dict[str, str]] = []  # of each agent: its own name of a field, the stored
        for name in self.agents:
            own = {_moved(each, "observation", 3): each for _, each in named_leaves("", seen[name])}
            own |= {_moved(each, "action", 2): each for _, each in named_leaves("", acted[name])}
            self._names.append(own)
        for what in ("observation", "action"):
            forms = [
                [
                    (name, spec[old].dtype, spec[old].shape)
                    for name, old in own.items()
                    if name.partition("/")[0] == what
                ]
                for own in self._names
            ]
            same_form(self.agents, forms, what)
        self._shared = [
            field
            for field in spec.of_kind("info", "extra")
            if not (field.kind == "info" and field.key in ENDS)
        ]
        first = self.agents[0]
        self.spec = Spec(
            (
                *(replace(spec[old], name=name) for name, old in self._names[0].items()),
                spec["reward"],
                *(self._of_one(field) for field in self._shared),
                field_of("info/agent", np.dtype(np.int64), ()),
            ),
            map_tree(lambda name: _moved(name, "observation", 3), seen[first]),
            map_tree(lambda name: _moved(name, "action", 2), acted[first]),
        )
        """The fields of one agent's rows."""

    def sample_transitions(
        self,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        rng: np.random.Generator | None = None,
    ) -> TransitionBatch:
        """Draw transitions of up to ``n_step`` steps, uniformly over all pairs of row and agent.

        Pairs are drawn where the agent is present and its next row is stored. The return has the
        agent's own rewards, and ends where it ends.

        Args:
            batch_size: Number of transitions, B >= 1.
            n_step: Steps from an observation to the next one, n >= 1.
            gamma: Discount of a step.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            As `SequenceReplayBuffer.sample_transitions`, of one agent each: ``info["agent"]`` [B]
            is its place among the sorted names of all agents, ``ids`` that of its joint row.

        Raises:
            NotEnoughData: No such pair was found.
            ValueError: An argument is invalid.
        """
        check_request(Transitions(batch_size, n_step, gamma))
        request = Sequences(batch_size, n_step + 1, borders="pad_after")

        def accepts(rows: _Rows) -> np.ndarray:
            found: np.ndarray = rows.present[:, 0] & rows.mask[:, 1]
            return found

        ids, agent, rows, found = self._draw(request, accepts, rng)
        every = np.arange(batch_size)
        # The first row with an end, or else the last one that is stored.
        is_over = (rows.terminated | rows.truncated)[:, 1:]
        stored = np.count_nonzero(rows.mask[:, 1:], axis=1)
        steps = np.where(is_over.any(axis=1), is_over.argmax(axis=1) + 1, stored)
        terminated = rows.terminated[every, steps]
        truncated = rows.truncated[every, steps]
        powers = gamma ** np.arange(n_step + 1.0)
        discount = powers.astype(np.float32)[steps]
        discount[terminated] = 0
        used = np.arange(n_step) < steps[:, None]
        reward = np.where(used, rows.reward[:, 1:], 0) @ powers[:-1]
        first = {name: array[:, 0].copy() for name, array in found.items()}
        last = {name: array[every, steps] for name, array in found.items()}
        return TransitionBatch(
            observation=self._seen(first),
            action=self._acted(first),
            reward=reward.astype(np.float32),
            next_observation=self._seen(last),
            discount=discount,
            terminated=terminated,
            truncated=truncated,
            cut=rows.cut[every, steps] & ~(terminated | truncated),
            steps=steps,
            info={**under("info/", last), "agent": self._places[agent]},
            extras=under("extra/", first),
            ids=ids,
            weights=np.ones(batch_size, np.float32),
        )

    def sample_sequences(
        self, batch_size: int, length: int, *, rng: np.random.Generator | None = None
    ) -> Batch:
        """Draw sequences of one agent's rows, uniformly over all, each in one life of the agent.

        Args:
            batch_size: Number of sequences, B >= 1.
            length: Rows in each sequence, T >= 1.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            As `SequenceReplayBuffer.sample_sequences`, of one agent each; ``is_first`` where it
            came. ``info["agent"]`` [B, T] is its place among the sorted names of all agents.

        Raises:
            NotEnoughData: No agent with so many rows was found.
            ValueError: An argument is invalid.
        """
        request = Sequences(batch_size, length, burn_in=1)  # the row before tells who came
        check_request(request)

        def accepts(rows: _Rows) -> np.ndarray:
            ended = rows.terminated | rows.truncated
            goes_on = rows.present[:, 1:-1] & ~ended[:, 1:-1]
            found: np.ndarray = goes_on.all(axis=1) & (rows.present | ended)[:, -1]
            return found

        ids, agent, rows, found = self._draw(request, accepts, rng)
        acts = rows.present[:, 1:]
        is_first = rows.is_first[:, 1:] | (rows.mask & ~rows.present)[:, :-1]
        terminated, truncated = rows.terminated[:, 1:], rows.truncated[:, 1:]
        cut = rows.cut[:, 1:] & ~(terminated | truncated)
        leaves = {
            name: _zeroed(array[:, 1:], acts)
            if kind_of(name) in ("action", "extra")
            else array[:, 1:]
            for name, array in found.items()
        }
        shape = (batch_size, length)
        return Batch(
            observation=self._seen(leaves),
            action=self._acted(leaves),
            reward=np.where(is_first, 0, rows.reward[:, 1:]).astype(np.float32),
            is_first=is_first,
            is_last=terminated | truncated | cut,
            terminated=terminated,
            truncated=truncated,
            cut=cut,
            mask=np.ones(shape, np.bool_),
            lengths=np.full(batch_size, length),
            info={
                **under("info/", leaves),
                "agent": np.repeat(self._places[agent][:, None], length, axis=1),
            },
            extras=under("extra/", leaves),
            ids=ids,
            weights=np.ones(batch_size, np.float32),
            state={},
        )

    def iter_episodes(self) -> Iterator[Episode]:
        """Each life of each chosen agent as an episode of its own, the oldest joint episode first.

        The metadata are those of the joint episode, with the ``"agent"``, and the ``"joint_row"``
        in which it came. `EpisodeWriter` writes them to a replay of which every bridge, format and
        learner for single agents can be fed.

        Example:
            >>> import stepwell as sw
            >>> def split(joint: sw.SequenceReplayBuffer) -> sw.SequenceReplayBuffer:
            ...     single = sw.SequenceReplayBuffer()
            ...     writer = sw.buffers.EpisodeWriter(single, source="one agent each")
            ...     for episode in sw.per_agent(joint).iter_episodes():
            ...         writer.add_episode(episode)
            ...     writer.flush()
            ...     return single
        """
        for joint in self._replay.iter_episodes():
            for number in range(len(self.agents)):
                yield from self._lives(joint, number)

    def _lives(self, joint: Episode, number: int) -> Iterator[Episode]:
        place = self._places[number]
        present = joint.fields["observation/present"][:, place].astype(np.bool_)
        own = [joint.fields[f"info/{name}"][:, place] for name in (TERMINATED, TRUNCATED)]
        terminated, truncated = agent_ends(own, present, (joint.terminated, joint.truncated))
        before = np.concatenate([[False], present[:-1]])
        for start in np.flatnonzero(present & ~before).tolist():
            # The row after the last one in which the agent is present has the results of its last
            # step.
            after = np.flatnonzero(~present[start:])
            stop = start + int(after[0]) if len(after) else joint.rows - 1
            rows = slice(start, stop + 1)
            acts = np.arange(stop - start + 1) < stop - start  # none is from the last row
            fields = {name: joint.fields[old][rows] for name, old in self._names[number].items()}
            fields["reward"] = joint.fields[f"info/{REWARD}"][rows, place].astype(np.float64)
            is_whole = start > 0 or joint.first_row == 0
            if is_whole:
                fields["reward"][0] = 0  # it was of a step before this life
            for field in self._shared:
                array = of_agent(joint.fields[field.name][rows], place, 1, len(self._known))
                fields[field.name] = array
            for name in fields:
                if kind_of(name) in ("action", "extra"):
                    fields[name] = _zeroed(fields[name], acts)
            fields["info/agent"] = np.full(stop - start + 1, place)
            end = End.TERMINATED * bool(terminated[stop])
            end |= End.TRUNCATED * bool(truncated[stop])
            facts = {"agent": self.agents[number], "joint_row": joint.first_row + start}
            yield Episode(
                spec=self.spec,
                id=joint.id,
                stream=joint.stream,
                first_row=0 if is_whole else joint.first_row,
                end=End(end),
                fields=fields,
                metadata={**joint.metadata, **facts},
            )

    def _seen(self, leaves: Mapping[str, np.ndarray]) -> ArrayTree:
        return cast("ArrayTree", unflatten(self.spec.observation, leaves))

    def _acted(self, leaves: Mapping[str, np.ndarray]) -> ArrayTree:
        return cast("ArrayTree", unflatten(self.spec.action, leaves))

    def _of_one(self, field: Field) -> Field:
        """An extra or info field of one agent."""
        count = len(self._known)
        return replace(field, shape=field.shape[1:]) if field.shape[:1] == (count,) else field

    def _draw(
        self,
        request: Sequences,
        accepts: Callable[[_Rows], np.ndarray],
        rng: np.random.Generator | None,
    ) -> tuple[np.ndarray, np.ndarray, _Rows, dict[str, np.ndarray]]:
        """Ids [B] of accepted sequences, numbers [B] of agents, flags, and fields [B, T, ...]."""
        # Sequences and agents are both drawn uniformly, so that all accepted pairs are equally
        # likely. The fields are by the agent's own names of them.
        source = self._replay.rng if rng is None else rng
        names = ["observation/present", *(f"info/{name}" for name in ENDS)]
        count, asked = request.batch_size, max(64, 2 * request.batch_size)
        small = request._replace(batch_size=asked, fields=names)
        ids, agent = np.zeros((2, 0), np.int64)
        for _ in range(_ROUNDS):
            batch = self._replay.sample(small, rng=source)
            numbers = source.integers(len(self.agents), size=asked)
            chosen = np.flatnonzero(accepts(_Rows.of(batch, self._places[numbers])))
            ids, agent = np.append(ids, batch.ids[chosen]), np.append(agent, numbers[chosen])
            if len(ids) >= count:
                break
        else:
            raise NotEnoughData(
                f"agents {', '.join(self.agents)}: expected {count} drawn rows in which one is "
                f"present for long enough, got {len(ids)} in {_ROUNDS * asked} draws; collect "
                f"more, or draw shorter ones"
            )
        ids, agent = ids[:count], agent[:count]
        names += [old for own in self._names for old in own.values()]
        names += [field.name for field in self._shared]
        batch = self._replay.take(request._replace(fields=names), ids)
        trees = (("observation", batch.observation), ("action", batch.action))
        leaves = {name: leaf for kind, tree in trees for name, leaf in named_leaves(kind, tree)}
        found: dict[str, np.ndarray] = {}
        for name in self._names[0]:
            columns = [leaves[own[name]] for own in self._names]
            found[name] = np.empty_like(columns[0])
            for number, column in enumerate(columns):
                found[name][agent == number] = column[agent == number]
        parts = {"info": batch.info, "extra": batch.extras}
        for field in self._shared:
            array = parts[field.kind][field.key]
            if field.shape[:1] == (len(self._known),):
                array = array[np.arange(count), :, self._places[agent]]
            found[field.name] = array
        return ids, agent, _Rows.of(batch, self._places[agent]), found


class _Rows(NamedTuple):
    """Flags [B, T] of one agent each in joint sequences."""

    present: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reward: np.ndarray
    mask: np.ndarray
    is_first: np.ndarray
    cut: np.ndarray

    @classmethod
    def of(cls, batch: Batch, place: np.ndarray) -> _Rows:
        """The flags of agents [B], by their places on the axis A."""
        every = np.arange(len(place))
        seen = cast("Mapping[str, np.ndarray]", batch.observation)["present"]
        present = seen[every, :, place].astype(np.bool_) & batch.mask
        reward, *own = (batch.info[name][every, :, place] for name in ENDS)
        ends = agent_ends(own, present, (batch.terminated, batch.truncated))
        return cls(present, *ends, reward, batch.mask, batch.is_first, batch.cut)


def _zeroed(array: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """A copy with zeros in the rows that are not kept."""
    found: np.ndarray = np.where(
        keep.reshape(*keep.shape, *(1,) * (array.ndim - keep.ndim)), array, 0
    )
    return found.astype(array.dtype)


def _moved(name: str, kind: str, parts: int) -> str:
    """The name of a field without the first parts, which say whose it is."""
    return "/".join([kind, *name.split("/")[parts:]])
