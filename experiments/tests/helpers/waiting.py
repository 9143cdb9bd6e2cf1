"""Waiting for other processes."""

import time


def until(condition, seconds=120.0, *, despite=()):
    """What the condition returns, as soon as it is true; errors of the kinds `despite` count as false."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except despite as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} seconds") from last
