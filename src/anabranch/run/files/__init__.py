"""Readers of file formats that slots read without Spark: one module for each format, with one protocol (`form`)."""
