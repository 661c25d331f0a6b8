"""Tianshou: batches and buffers of its own, a replay its algorithms draw from, its data stored."""
