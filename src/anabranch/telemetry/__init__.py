"""Reports what running queries do to the outside: log events and OpenLineage."""
