"""Info fields that are named on the command line: are they there, and what kind are they?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepwell.collectors.cli.make import EnvRequest, make_envs

__all__ = ["missing_values"]


def missing_values(info: Mapping[str, object], wish: EnvRequest) -> dict[str, object]:
    """The value that stands for "not there", for each info field.

    Args:
        info: Such values by the fields' names; None where it is to be found out: then one env is
            made, and its first reset and step are looked at.
        wish: The envs.

    Returns:
        What was given, else nan, -1 or False in the field's dtype and shape.

    Raises:
        ValueError: A field is in neither info.

    Example:
        >>> missing_values({"lives": None, "speed": 0.0}, EnvRequest("Pong", 8))
        {'lives': array(-1, dtype=int32), 'speed': 0.0}
    """
    unsaid = [name for name, value in info.items() if value is None]
    if not unsaid:
        return dict(info)
    seen = _first_infos(wish)
    for name in unsaid:
        if name not in seen:
            names = ", ".join(sorted(one for one in seen if not one.startswith("_"))) or "nothing"
            raise ValueError(
                f"--info {name}: expected a field of the info of a reset or step, got {names}; "
                f"correct the name, or say what stands for 'not there', as in {name}=-1"
            )
    return {
        name: _missing(name, seen[name]) if value is None else value for name, value in info.items()
    }


def _first_infos(wish: EnvRequest) -> dict[str, object]:
    envs = make_envs(replace(wish, num_envs=1, num_workers=None))
    try:
        _, at_reset = envs.reset(seed=0)
        *_, at_step = envs.step(envs.action_space.sample())
    finally:
        envs.close()
    return {**at_reset, **at_step}


def _missing(name: str, column: object) -> np.ndarray:
    """A value of the same kind that is none."""
    rows = np.asarray(column)
    if rows.ndim == 0 or rows.dtype.kind not in "biuf":
        raise ValueError(
            f"--info {name}: expected numbers or arrays of them, one for each env, got "
            f"{type(column).__name__} of dtype {rows.dtype}; leave it out"
        )
    missing = {"b": False, "f": np.nan, "i": -1, "u": 0}[rows.dtype.kind]
    return np.full(rows.shape[1:], missing, rows.dtype)
