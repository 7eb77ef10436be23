"""One module per job: a frozen configuration, `run(spark, config)`, a result with `findings` and `to_json()`, and its `command`."""
