#!/usr/bin/env bash
# cpprb 11.0.0: with stack_compress and next_of, one next observation of a full ring has a frame of another episode.
#
# People expect: the two options only save memory; every transition that is drawn is the one that was added.
# It does: where an episode goes on over the end of the ring, the newest frame of the last row's next observation is
# the newest frame of the row that was written last. Nothing is said; all other rows are right.
# Seen: 12 rows, 4 episodes of 5 steps: of [200 200 200 201] the next is [200 200 201 300], of 11 rows the true one
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q cpprb==11.0.0 numpy==2.4.6
"$dir/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from cpprb import ReplayBuffer


def stack(episode: int, step: int) -> list[int]:
    """The newest four frames; frame k of an episode is 100 times its number and k."""
    return [episode * 100 + max(0, step - 3 + k) for k in range(4)]


def wrong(size: int, episodes: int, steps: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Observations whose next one is not the true one, with what is returned and the truth."""
    fields = {"obs": {"shape": (1, 4), "dtype": np.float32}, "episode": {}, "step": {}}
    ring = ReplayBuffer(size, fields, next_of="obs", stack_compress="obs")
    for episode in range(episodes):
        for step in range(steps):
            pair = np.array([[stack(episode, step)]]), np.array([[stack(episode, step + 1)]])
            ring.add(obs=pair[0], next_obs=pair[1], episode=episode, step=step)
        ring.on_episode_end()
    kept = ring.get_all_transitions()
    found = []
    for place in range(len(kept["obs"])):
        episode, step = int(kept["episode"][place, 0]), int(kept["step"][place, 0])
        now, after = (kept[name][place, 0].astype(int).tolist() for name in ("obs", "next_obs"))
        assert now == stack(episode, step)
        if after != stack(episode, step + 1):
            found.append((now, after, stack(episode, step + 1)))
    return found


print(wrong(12, 4, 5), wrong(10, 4, 5))
assert wrong(12, 4, 5) == [([200, 200, 200, 201], [200, 200, 201, 300], [200, 200, 201, 202])]
assert wrong(10, 4, 5) == []  # each episode ends where the ring does, or before
PY
