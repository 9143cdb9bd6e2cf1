"""Times E = e^-G of one item, for algorithms that subtract: in logarithms, with a bound on what rounding may have done.

Chu-Liu-Edmonds and a user's recursion take the minimum of a race off all who raced, and compare what is left. Where
two candidates are closer than rounding can tell, either may win: the bound says when, and such an item is `unsure`.
With u = 2^-53 and errors relative to E:

    at first       (4 + 2 |G - middle|) u   where the kernels work on e^(middle - G), 0 where they work on -G itself
    E - m          (e_E + (e_m + (2 + log E/m) u) m/E) / (1 - m/E)  +  (2 + |log(E - m)|) u

Two candidates are too close if their logarithms differ by no more than twice the sum of their errors: once for the
kernel, once for this; and whatever the other is if nothing but rounding may be left of one. Numbers that come from
equal G by the same subtractions are exactly equal, and are no such case.
"""

import math
from collections.abc import Collection, Iterable, Mapping

U = 2.0**-53
LOST = 0.25  # an error of this size is no longer small: nothing may be left of E
WIDEST = 1300.0  # kernels leave the exponentials of a wider item alone


class Times:
    """What is left of each key's time.

    Args:
        noise: G of every key; those that do not race are not read.
        racing: the keys that race.
        decided: winners of another run by who raced. Where rounding decides, its choice is taken.
    """

    def __init__(
        self, noise: list[float], racing: Collection[int], decided: Mapping[tuple[int, ...], int] | None = None
    ):
        self.noise, self.decided = noise, decided or {}
        values = [noise[k] for k in racing]
        low, high = min(values, default=0.0), max(values, default=0.0)
        close, middle = high - low <= WIDEST, 0.5 * low + 0.5 * high
        self.log = {k: -noise[k] for k in racing}
        self.error = {k: (4 + 2 * abs(noise[k] - middle)) * U if close else 0.0 for k in racing}
        self.past = dict.fromkeys(racing, 0)  # which minima were taken off a key: a number for each sequence of them
        self.pasts: dict[tuple, int] = {}
        self.unsure = False

    def choose(self, members: Iterable[int]) -> int:
        """The argmin, ties to the larger G and then to the smaller key; its time is taken off all members."""
        members = list(members)
        log, noise = self.log, self.noise
        first = min(members, key=lambda k: (log[k], -noise[k], k))
        close = [k for k in members if k != first and self._too_close(first, k)]
        if close:
            self.unsure = True
            other = self.decided.get(tuple(sorted(members)), first)
            first = other if other in close else first
        self._subtract(first, members)
        return first

    def _too_close(self, first: int, k: int) -> bool:
        if self.noise[k] == self.noise[first] and self.past[k] == self.past[first]:
            return False
        if self.error[k] > LOST:  # it may be nothing, or less than that by rounding
            return True
        if self.log[first] == -math.inf:
            return self.error[first] > LOST
        return self.log[k] - self.log[first] <= 2 * (self.error[k] + self.error[first])

    def _subtract(self, first: int, members: list[int]) -> None:
        least, error = self.log[first], self.error[first]
        taken = (self.noise[first], self.past[first])
        if least == -math.inf:
            return
        for k in members:
            if (self.noise[k], self.past[k]) == taken:
                self.log[k], self.error[k] = -math.inf, 0.0
            else:
                apart = max(self.log[k] - least, 0.0)
                left = -math.expm1(-apart)
                if left == 0.0:
                    self.log[k], self.error[k] = -math.inf, math.inf
                else:
                    self.log[k] += math.log(left) if apart < 0.5 else math.log1p(-math.exp(-apart))
                    relative = (error + (2 + apart) * U) * math.exp(-apart) if apart < 700 else 0.0
                    self.error[k] = (self.error[k] + relative) / left + (2 + abs(self.log[k])) * U
            self.past[k] = self.pasts.setdefault((self.past[k], taken), len(self.pasts) + 1)
