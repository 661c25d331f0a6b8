#!/usr/bin/env bash
# Gymnasium 1.4.0: two Dict spaces that are equal flatten the same observation in different orders.
#
# People expect: spaces that are equal (==) may stand for each other, so that a policy trained on the
# flattened observations of one works on those of the other.
# It does: Dict({"z": ..., "a": ...}) sorts its keys, Dict(z=..., a=...) and Dict(OrderedDict) keep their
# order; == ignores the order, and flatten, flatten_space and FlattenObservation follow it.
# Seen: keys ['a', 'z'] and ['z', 'a'], equal: True, flattened [1. 1. 0.] and [0. 1. 1.]
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from gymnasium import spaces

one, two = spaces.Box(0, 1, (1,)), spaces.Box(0, 1, (2,))
from_dict, from_names = spaces.Dict({"z": one, "a": two}), spaces.Dict(z=one, a=two)
observation = {"z": np.zeros(1, np.float32), "a": np.ones(2, np.float32)}
flat = [spaces.flatten(space, observation).tolist() for space in (from_dict, from_names)]
print("keys", list(from_dict), list(from_names), "equal:", from_dict == from_names, "flattened", *flat)
assert from_dict == from_names
assert flat == [[1, 1, 0], [0, 1, 1]]
PY
