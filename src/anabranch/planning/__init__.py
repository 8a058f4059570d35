"""Turns the user's settings and statistics into the plan of a query, and explains the choice."""
