"""The console: a page in the browser that shows running queries, and their metrics for Prometheus.

It reads what every user can read (progress, history, plan) and changes a query only through the handle, behind a token.
A query does not wait for it: one thread of the driver polls the handles, and all viewers share what it found.
"""
