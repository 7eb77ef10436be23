"""The `replog` command: it reads what a broker keeps on disk. Only `format` and `metadata recover`
write there, before a start. `explain`, `unregister` and `mirror` are clients of brokers that run.
"""
