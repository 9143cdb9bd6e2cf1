"""Graph layout: find the spanning tree whose springs moved the nodes."""
