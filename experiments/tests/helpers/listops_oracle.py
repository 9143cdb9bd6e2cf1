"""ListOps expressions made and evaluated independently of the library, as text."""

import random
import re

import numpy as np

FUNCTIONS = {
    "MIN": min,
    "MAX": max,
    "MED": lambda numbers: int(np.median(numbers)),
    "SM": lambda numbers: sum(numbers) % 10,
    "PM": lambda numbers: int(np.prod(np.array(numbers, object))) % 10,
    "FIRST": lambda numbers: numbers[0],
    "LAST": lambda numbers: numbers[-1],
}


def rewritten(text: str) -> int:
    """Replace lists of digits by their values until one digit is left."""
    while "[" in text:
        text = re.sub(r"\[(\w+)((?: \d)+) \]", lambda m: str(FUNCTIONS[m[1]]([*map(int, m[2].split())])), text)
    return int(text)


def random_text(rng: random.Random, depth: int, widest: int = 6) -> str:
    """An expression of at most this depth, with any operator and any number of arguments up to the widest."""
    if depth == 0 or rng.random() < 0.3:
        return str(rng.randrange(10))
    arguments = [random_text(rng, depth - 1, widest) for _ in range(rng.randint(1, widest))]
    return f"[{rng.choice([*FUNCTIONS])} {' '.join(arguments)} ]"


def random_texts(count: int, depth: int, widest: int = 6, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng, depth, widest) for _ in range(count)]
