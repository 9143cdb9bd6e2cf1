"""Searches for the best settings: studies, and the workers that share them."""
