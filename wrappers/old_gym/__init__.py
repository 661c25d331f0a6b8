"""Adapters for envs of the old `gym`: `from_gym` and `patch_nes_py`.

Both are exported by `stepwell.wrappers`.
"""
