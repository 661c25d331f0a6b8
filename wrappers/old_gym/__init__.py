"""Envs of the old `gym`, made correct envs of gymnasium's.

`env` has `from_gym`; `nes_py_patch` has `patch_nes_py`. Both are exported by `stepwell.wrappers`.
"""
