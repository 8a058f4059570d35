"""Reports the activity of running queries to external systems: log events and OpenLineage."""
