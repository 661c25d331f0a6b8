#!/usr/bin/env bash
# tensorflow-datasets 4.9.10, tensorflow-cpu 2.21.0
#
# One would think: a feature that is declared as Tensor(shape=(), dtype=float64) gives back the
# float64 that was written, and examples are read in the order in which they were generated.
# They are not: a float in a tf.train.Example has 32 bits, so that the number comes back rounded,
# in the dtype float64; and examples are written in an order that hashes of their keys make.
# encoding="bytes" keeps the number, disable_shuffling=True the order.
#
# Seen, of 1/3, and of the examples 0 to 9:
#   plain: 0.3333333432674408, bytes: 0.3333333333333333
#   order: [6, 5, 4, 0, 8, 3, 1, 9, 7, 2]
#
# Exits 1 if it does something else now.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check \
  tensorflow-cpu==2.21.0 tensorflow-datasets==4.9.10 importlib_resources
HOME="$folder" TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - "$folder/data" 2> /dev/null << 'PYTHON'
import sys

import numpy as np
import tensorflow_datasets as tfds

Tensor = tfds.features.Tensor


class Numbers(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "plain": Tensor(shape=(), dtype=np.float64),
                "bytes": Tensor(shape=(), dtype=np.float64, encoding="bytes"),
                "number": tfds.features.Scalar(np.int64),
            }
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(10):
            yield number, {"plain": 1 / 3, "bytes": 1 / 3, "number": number}


builder = Numbers(data_dir=sys.argv[1])
builder.download_and_prepare()
config = tfds.ReadConfig(interleave_cycle_length=1)
found = list(tfds.as_numpy(builder.as_dataset(split="train", read_config=config)))
plain, exact = (float(found[0][name]) for name in ("plain", "bytes"))
order = [int(each["number"]) for each in found]
print(f"plain: {plain}, bytes: {exact}")
print(f"order: {order}")
is_rounded = plain == float(np.float32(1 / 3)) and exact == 1 / 3
sys.exit(not (is_rounded and order != sorted(order) and sorted(order) == list(range(10))))
PYTHON
