"""Real-time mode: slots are long-running tasks of one Spark job, and a batch is a few messages to them."""
