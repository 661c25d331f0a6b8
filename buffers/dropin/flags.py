"""What an old caller's done flag says."""

from __future__ import annotations

__all__ = ["ended_by"]


def ended_by(name: str, done: object, *, truncated: bool) -> tuple[bool, bool]:
    """Whether a step terminated its episode, and whether the clock ended it.

    Args:
        name: What the caller knows the flag by.
        done: True where the episode is over, for whichever reason: a bool, 0 or 1.
        truncated: It was the clock.

    Raises:
        ValueError: The flag is neither, or the clock ended an episode that goes on.

    Example:
        >>> ended_by("done", 1.0, truncated=False), ended_by("done", True, truncated=True)
        ((True, False), (False, True))
    """
    if done is False and not truncated:  # nearly always
        return False, False
    try:
        is_over = bool(done)
        is_flag = is_over == done
    except (TypeError, ValueError):
        is_over = is_flag = False
    if not is_flag:
        raise ValueError(
            f"{name}: expected True or False, 0 or 1, got {done!r}; give that of one step"
        )
    if truncated and not is_over:
        raise ValueError(
            f"truncated=True: expected {name} to be True as well, got {done!r}; the clock ends an "
            f"episode, too"
        )
    return is_over and not truncated, bool(truncated)
