"""What can be known of an expression without its tree: how far a model gets that parses nothing."""

from collections.abc import Iterator

import numpy as np

from gumtrace_experiments.listops.data import Split
from gumtrace_experiments.listops.expressions import CLOSE, PADDING, evaluate


def shares(split: Split) -> dict[str, float]:
    """Shares of the expressions whose first operator has the right value

    - own: on its own digits, those that stand in no inner list; on all of them, where it has none;
    - every: on all digits.
    """
    guesses = np.array(list(_guesses(split)))  # (B, 2)
    own, every = (guesses == split.answers.numpy()[:, None]).mean(0).tolist()
    return {"own": own, "every": every}


def _guesses(split: Split) -> Iterator[tuple[int, int]]:
    for tokens, heads in zip(split.tokens.numpy(), split.heads.numpy(), strict=True):
        if tokens[0] < CLOSE:  # a digit on its own
            yield evaluate(tokens), evaluate(tokens)
            continue
        digit = (tokens != PADDING) & (tokens < CLOSE)
        every, own = tokens[digit], tokens[digit & (heads == 0)]
        yield (
            evaluate([tokens[0], *(own if len(own) else every), CLOSE]),
            evaluate([tokens[0], *every, CLOSE]),
        )
