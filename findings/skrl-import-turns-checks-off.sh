#!/usr/bin/env bash
# skrl 2.1.1: importing its models turns off the argument checks of all of PyTorch's distributions.
#
# People expect: an import changes nothing in the rest of the program; PyTorch refuses probs=7.
# It does: skrl.models.torch calls set_default_validate_args(False) of a distribution, which is a setting
# of the class Distribution: from then on no distribution in the process checks what it is given.
# Seen: before the import True, after it False; Bernoulli(probs=7) is refused before, and made after
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q skrl==2.1.1 gymnasium==1.4.0 numpy==2.4.6 torch==2.13.0 tensorboard==2.21.0
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import torch
from torch.distributions import Bernoulli, Distribution


def is_refused() -> bool:
    try:
        Bernoulli(probs=torch.tensor(7.0))
    except ValueError:
        return True
    return False


before = Distribution._validate_args, is_refused()
import skrl.models.torch

after = Distribution._validate_args, is_refused()
print("checks, refused: before", before, "after", after)
assert before == (True, True)
assert after == (False, False)
PY
