"""Rules that make a logical plan cheaper without changing its answer; one file per rule, ordered in `pipeline`."""
