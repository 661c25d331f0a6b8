"""Steps envs with a policy, or under a loop of the caller's own, and writes each row."""
