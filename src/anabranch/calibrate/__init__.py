"""Calibration of this machine: `engine_costs` and `spark_costs` measure unit costs, and `fitting` fits them."""
