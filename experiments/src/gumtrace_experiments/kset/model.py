"""What the k-subset tasks share: perceptrons as the papers initialise them, and RELAX's critic."""

import math
from itertools import pairwise

from torch import Tensor, nn

from gumtrace.estimators import VectorCritic


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them; Xavier-uniform weights with the gain of ReLU, biases 0.

    >>> perceptron(784, 512, 10)
    Sequential(
      (0): Linear(in_features=784, out_features=512, bias=True)
      (1): ReLU()
      (2): Linear(in_features=512, out_features=10, bias=True)
    )
    """
    layers: list[nn.Module] = []
    for size, width in pairwise(sizes):
        linear = nn.Linear(size, width)
        nn.init.xavier_uniform_(linear.weight, nn.init.calculate_gain("relu"))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Critic(VectorCritic):
    """RELAX's function of the noise of all subsets of an item, and of what the objective knows.

    Args:
        shape: of the keys of an item: subsets and keys of each, or keys alone.
        context: features of what the objective knows.
    """

    def __init__(self, *shape: int, context: int):
        super().__init__(math.prod(shape), context=context, hidden=128)
        self.dims = len(shape)

    def forward(self, noise: Tensor, context: Tensor | None = None) -> Tensor:
        return super().forward(noise.flatten(-self.dims), context)
