"""Runs on disk: folders, checkpoints, locks, and the checks of everything that is read back."""
