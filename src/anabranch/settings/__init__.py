"""Reads and checks settings: typed entries with their errors, secrets in options, help texts of commands."""
