"""Bytes that changed, for tests of what reads them.

GUMTRACE_DAMAGE=100 makes a hundred times as many mutations in every test that uses them: for a night.
"""

import os
import random

MORE = int(os.environ.get("GUMTRACE_DAMAGE", "1"))


def mutated(data: bytes, rng: random.Random) -> bytes:
    """With a few bits turned over, a part cut out or cut off, bytes that are new, or a part that is there twice."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place, size = rng.randrange(len(changed) + 1), rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(6):
            case 0 | 1 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place:place] = rng.randbytes(size)
            case 3:
                changed[place : place + size] = rng.randbytes(len(changed[place : place + size]))
            case 4:
                del changed[place : place + size]
            case 5 if rng.random() < 0.5:
                del changed[place:]
            case _:
                changed[place:place] = changed[place : place + size]
    return bytes(changed)
