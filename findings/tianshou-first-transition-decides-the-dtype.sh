#!/usr/bin/env bash
# Tianshou 2.0.1: the first transition decides how all later ones are stored, and cuts them to that.
#
# People expect: an observation or action that does not fit is refused, as shapes are, or the array is widened.
# It does: ReplayBuffer makes its arrays from the first transition; a first observation of whole numbers, such as
# a reset to zeros, makes them int64, and 0.5 and 1.7 are stored as 0 and 1 from then on, without a word.
# Seen: observations int64 [0, 0], actions int64 [1, 1]
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0
"$dir/venv/bin/pip" install -q tianshou==2.0.1 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from tianshou.data import Batch, ReplayBuffer

replay = ReplayBuffer(10)
for observation, action in ((np.array([0]), 1), (np.array([0.5]), 1.7)):
    flags = dict(rew=0.0, terminated=False, truncated=False, info={})
    replay.add(Batch(obs=observation, act=action, obs_next=observation, **flags))
print("observations", replay.obs.dtype, replay.obs[:2].ravel().tolist(), "actions", replay.act.dtype, replay.act[:2].tolist())
assert replay.obs.dtype == np.int64 and replay.obs[:2].ravel().tolist() == [0, 0]
assert replay.act[:2].tolist() == [1, 1]
PY
