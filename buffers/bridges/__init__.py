"""Bridges to other libraries: live ones, and export and import of data sets.

Each library is imported when its bridge is called. ``docs/feeding.md`` shows each bridge.
"""

from typing import TYPE_CHECKING

from ... import lazy_names

if TYPE_CHECKING:  # loaded on first use
    from .cleanrl import CleanRLStorage, to_cleanrl
    from .d3rlpy_episodes import from_d3rlpy, to_d3rlpy
    from .formats.exporting import ExportReport, export_episodes
    from .formats.format import format_names
    from .formats.importing import ImportReport, import_episodes
    from .jax_arrays import to_jax
    from .jax_policies import jax_policy
    from .rlds_steps import rlds_episodes
    from .sb3.models import count_sb3_steps
    from .sb3.policy import sb3_policy
    from .sb3.replay import as_sb3_replay
    from .sb3.rollout import to_sb3_rollout
    from .sheeprl_replay import as_sheeprl_replay
    from .tianshou.batches import to_tianshou_batch, to_tianshou_buffer
    from .tianshou.recorded import from_tianshou
    from .tianshou.replay import as_tianshou_replay
    from .torch_policies import to_torch, torch_policy
    from .torchrl.batches import to_tensordict
    from .torchrl.recorded import from_tensordict
    from .torchrl.replay import as_torchrl_replay

__all__ = [
    "CleanRLStorage",
    "ExportReport",
    "ImportReport",
    "as_sb3_replay",
    "as_sheeprl_replay",
    "as_tianshou_replay",
    "as_torchrl_replay",
    "count_sb3_steps",
    "export_episodes",
    "format_names",
    "from_d3rlpy",
    "from_tensordict",
    "from_tianshou",
    "import_episodes",
    "jax_policy",
    "rlds_episodes",
    "sb3_policy",
    "to_cleanrl",
    "to_d3rlpy",
    "to_jax",
    "to_sb3_rollout",
    "to_tensordict",
    "to_tianshou_batch",
    "to_tianshou_buffer",
    "to_torch",
    "torch_policy",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cleanrl": ["CleanRLStorage", "to_cleanrl"],
            "d3rlpy_episodes": ["from_d3rlpy", "to_d3rlpy"],
            "formats.exporting": ["ExportReport", "export_episodes"],
            "formats.importing": ["ImportReport", "import_episodes"],
            "formats.format": ["format_names"],
            "jax_arrays": ["to_jax"],
            "jax_policies": ["jax_policy"],
            "rlds_steps": ["rlds_episodes"],
            "sb3.models": ["count_sb3_steps"],
            "sb3.policy": ["sb3_policy"],
            "sb3.replay": ["as_sb3_replay"],
            "sb3.rollout": ["to_sb3_rollout"],
            "sheeprl_replay": ["as_sheeprl_replay"],
            "torchrl.batches": ["to_tensordict"],
            "torchrl.recorded": ["from_tensordict"],
            "torchrl.replay": ["as_torchrl_replay"],
            "tianshou.batches": ["to_tianshou_batch", "to_tianshou_buffer"],
            "tianshou.recorded": ["from_tianshou"],
            "tianshou.replay": ["as_tianshou_replay"],
            "torch_policies": ["to_torch", "torch_policy"],
        },
    )
