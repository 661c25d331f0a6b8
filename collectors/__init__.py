"""Collectors: step envs with a policy, record every row, report what was done."""

from stepwell.collectors.collector import Collector
from stepwell.collectors.policy import Policy, PolicyResult, RandomPolicy, SeededPolicy
from stepwell.collectors.report import CollectReport

__all__ = [
    "CollectReport",
    "Collector",
    "Policy",
    "PolicyResult",
    "RandomPolicy",
    "SeededPolicy",
]
