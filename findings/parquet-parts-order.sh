#!/usr/bin/env bash
# pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1, datasets 4.8.5
#
# One would think: rows that pyarrow.dataset.write_dataset wrote into several files, part-0.parquet
# to part-23.parquet, are read from that folder in the order in which they were written.
# They are not: all five sort the names as texts, so that part-10 comes after part-1, before part-2.
# Rows of a trajectory in several files are then those of others in between. Nothing is said of it.
#
# Seen, rows 18 to 22 of 0 to 239, ten a file:
#   pyarrow, pandas, polars, duckdb, datasets: 18, 19, 100, 101, 102
#
# Exits 1 if one of them does something else now.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check \
  pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 datasets==4.8.5
HF_HUB_OFFLINE=1 HF_HOME="$folder/cache" "$folder/venv/bin/python" - "$folder/parts" << 'PYTHON'
import sys

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset

folder = sys.argv[1]
limits = {"max_rows_per_file": 10, "max_rows_per_group": 10}
pa.dataset.write_dataset(pa.table({"row": np.arange(240)}), folder, format="parquet", **limits)
files = f"{folder}/*.parquet"
readers = {
    "pyarrow": lambda: pa.dataset.dataset(folder).to_table()["row"],
    "pandas": lambda: pd.read_parquet(folder)["row"],
    "polars": lambda: pl.read_parquet(files)["row"],
    "duckdb": lambda: duckdb.sql(f"select row from '{files}'").fetchnumpy()["row"],
    "datasets": lambda: datasets.load_dataset("parquet", data_files=files, split="train")["row"],
}
same = True
for name, read in readers.items():
    rows = np.asarray(read())[18:23].tolist()
    print(f"{name}: {rows}")
    same &= rows == [18, 19, 100, 101, 102]
sys.exit(not same)
PYTHON
