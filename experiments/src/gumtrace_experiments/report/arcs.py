"""Arcs over a row of words, from heads to what hangs from them."""

import numpy as np

HIGH = 1.0  # the widest one
_TURN = np.linspace(0, np.pi, 40)


def arc(start: float, end: float, widest: float, side: int, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """x and y from start to end, above the words (1) or below (-1), from so far off their middle on.

    >>> x, y = arc(0.0, 3.0, widest=3.0, side=-1, gap=0.25)
    >>> x[[0, -1]].tolist(), float(y[0])
    ([0.0, 3.0], -0.25)
    """
    x = (start + end) / 2 + (start - end) / 2 * np.cos(_TURN)
    return x, side * (gap + HIGH * (abs(end - start) / widest) ** 0.7 * np.sin(_TURN))
