"""Games of many agents under ids of Gymnasium, so that a store can say which of them it played."""

from typing import Any

import gymnasium

from ...wrappers.pettingzoo_env import from_pettingzoo

SPREAD = "stepwell/SimpleSpread-v3"


def simple_spread(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """mpe2's simple_spread: agents cover landmarks together, without bumping into one another."""
    from mpe2 import simple_spread_v3

    return from_pettingzoo(simple_spread_v3.parallel_env(render_mode=render_mode))


gymnasium.register(SPREAD, entry_point=f"{__name__}:simple_spread")
