"""Nexmark: an online auction as three streams, and the queries of the benchmark that CQL can express."""
