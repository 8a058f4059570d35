"""The vocabulary of queries: types and schemas, expressions, windows, declared streams, sizes."""
