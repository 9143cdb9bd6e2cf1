"""The simplest algorithm of one's own, whose hooks tests replace, and noise for it."""

import torch

NOISE = torch.tensor([0.0, 1.0, 2.0, 3.0])


class Race:
    """Four keys; the winner leaves. Hooks may be replaced."""

    def __init__(self, **hooks):
        self.__dict__.update(hooks)

    def start(self):
        return range(4), None

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        return K - set(winners), None
