"""A small model of parentheses in training, and all trees of a sequence."""

import torch

from gumtrace import BinaryTree
from gumtrace_experiments import find

Tree = find("parentheses-tree")
TINY = Tree.config_type(
    types=2,
    longest=8,
    hidden=16,
    calls=20,
    train_size=200,
    test_size=40,
    iterations=12,
    evaluate_every=4,
    lr=1e-2,
    bound_samples=6,
    valid_bound_samples=3,
    generated=60,
    proposal_trees=200,
)


def every_order(length: int, n: int) -> torch.Tensor:
    """(trees, n): the values of all binary trees of so many tokens."""
    return BinaryTree(torch.zeros(n), lengths=length).enumerate_support(expand=False)
