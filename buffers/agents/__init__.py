"""Rows of many agents, as `from_pettingzoo` makes them, taken apart into rows of one agent each."""
