"""Rules that make a logical plan cheaper without changing its results; one file per rule, ordered in `pipeline`."""
