"""Sequences of balanced parentheses, generated out of order."""
