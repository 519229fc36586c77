"""Fast computation: the same results as the libraries, forward and backward."""
