"""Training: updates, runs, several of them on a device, and what is done with their best models."""
