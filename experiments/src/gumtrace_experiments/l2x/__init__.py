"""Learning to explain: rate a review from a few of its tokens, and see whether people would have marked the same."""
