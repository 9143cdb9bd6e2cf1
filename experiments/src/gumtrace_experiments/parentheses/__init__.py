"""Balanced parentheses, generated out of order: along a binary tree, or by insertions."""
