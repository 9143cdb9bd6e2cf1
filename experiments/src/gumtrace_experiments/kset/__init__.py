"""The k-subset contest: three tasks on MNIST that papers on gradients through k-subsets share."""
