"""Workers as tasks of Apache Spark: `cerebro.backend.SparkBackend`."""
