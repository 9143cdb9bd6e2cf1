"""ListOps: find the tree of a nested expression from nothing but its value."""
