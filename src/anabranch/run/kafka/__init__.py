"""Records of Kafka: their values as columns (`json_values`), and ranges of offsets as pieces of a batch (`ranges`)."""
