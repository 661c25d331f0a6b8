"""Stepping vector envs of any dialect: what arrived, for whom, where episodes end."""
