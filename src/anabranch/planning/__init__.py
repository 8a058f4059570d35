"""Chooses the plan of a query from the user's options and statistics, and explains the choice."""
