"""`audit`: checks that a log has every record once, in order and undamaged.

| module | owns |
|---|---|
| `job`, `command` | an audit as a whole; the command line |
| `directories`, `topics` | log directories and topics of a cluster, on Spark |
| `markers` | which offsets of a cluster's topics are control batches' |
| `check` | one partition: all that must hold between its batches |
| `cleanup`, `metadata_policies` | which cleanup policy a topic is checked by |
| `findings` | findings, and what was checked |
"""

from replog_pipeline.jobs.audit.job import AuditConfig, AuditResult, known_folders, run

__all__ = ["AuditConfig", "AuditResult", "known_folders", "run"]
