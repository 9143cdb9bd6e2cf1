"""One file a structure, all in the same order; `base` holds what they share, `custom` the paper's general algorithm."""
