"""The console: a web page that shows running queries, and their metrics for Prometheus.

It reads public data only (progress, history, plan) and changes a query only through the handle, behind a token. Queries
never wait for it: one thread of the driver polls the handles, and all viewers share the result.
"""
