"""The command line: `stepwell collect`, `info`, `envs`, `merge`, `filter`, `drop`, `copy`."""
