"""Treebank: parse real sentences, with heads that are given, by the distribution that elsewhere is latent."""
