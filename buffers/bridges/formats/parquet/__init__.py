"""Parquet tables of steps and of episodes, for HuggingFace datasets and data frames."""
