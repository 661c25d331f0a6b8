"""Bridges to other libraries: live ones, and export and import of data sets.

Each library is imported when its bridge is called. ``docs/feeding.md`` shows each bridge.
"""

from typing import TYPE_CHECKING

from ..base.package import lazy_names

if TYPE_CHECKING:  # loaded on first use
    from ..exchange.formats.exporting import ExportReport, export_episodes
    from ..exchange.formats.format import format_names
    from ..exchange.formats.importing import ImportReport, import_episodes
    from ..exchange.formats.rlds import rlds_episodes
    from ..libraries.cleanrl import CleanRLStorage, to_cleanrl
    from ..libraries.d3rlpy_episodes import from_d3rlpy, to_d3rlpy
    from ..libraries.jax_learners import jax_policy, to_jax
    from ..libraries.sb3.models import count_sb3_steps, sb3_env
    from ..libraries.sb3.policy import sb3_policy
    from ..libraries.sb3.replay import as_sb3_replay
    from ..libraries.sb3.rollout import to_sb3_rollout
    from ..libraries.sheeprl_replay import as_sheeprl_replay
    from ..libraries.skrl_memory import as_skrl_memory
    from ..libraries.tianshou.batches import from_tianshou, to_tianshou_batch, to_tianshou_buffer
    from ..libraries.tianshou.replay import as_tianshou_replay
    from ..libraries.torch_policies import to_torch, torch_policy
    from ..libraries.torchrl.batches import from_tensordict, to_tensordict
    from ..libraries.torchrl.replay import as_torchrl_replay

__all__ = [
    "CleanRLStorage",
    "ExportReport",
    "ImportReport",
    "as_sb3_replay",
    "as_sheeprl_replay",
    "as_skrl_memory",
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
    "sb3_env",
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
            ".libraries.cleanrl": ["CleanRLStorage", "to_cleanrl"],
            ".libraries.d3rlpy_episodes": ["from_d3rlpy", "to_d3rlpy"],
            ".exchange.formats.exporting": ["ExportReport", "export_episodes"],
            ".exchange.formats.importing": ["ImportReport", "import_episodes"],
            ".exchange.formats.format": ["format_names"],
            ".libraries.jax_learners": ["jax_policy", "to_jax"],
            ".exchange.formats.rlds": ["rlds_episodes"],
            ".libraries.sb3.models": ["count_sb3_steps", "sb3_env"],
            ".libraries.sb3.policy": ["sb3_policy"],
            ".libraries.sb3.replay": ["as_sb3_replay"],
            ".libraries.sb3.rollout": ["to_sb3_rollout"],
            ".libraries.sheeprl_replay": ["as_sheeprl_replay"],
            ".libraries.skrl_memory": ["as_skrl_memory"],
            ".libraries.torchrl.batches": ["from_tensordict", "to_tensordict"],
            ".libraries.torchrl.replay": ["as_torchrl_replay"],
            ".libraries.tianshou.batches": [
                *("from_tianshou", "to_tianshou_batch", "to_tianshou_buffer"),
            ],
            ".libraries.tianshou.replay": ["as_tianshou_replay"],
            ".libraries.torch_policies": ["to_torch", "torch_policy"],
        },
    )
