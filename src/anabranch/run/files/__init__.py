"""Forms of files that slots read without Spark: each in a module of its own, behind one protocol (`form`)."""
