"""The command line: `stepwell collect`, `stepwell info`, `stepwell envs`."""
