"""Anabranch: adaptive continuous queries over data streams, on Spark."""
