"""Stock clients as processes of their own: `python -m tests.faults.clients JOB`, where JOB is a
`Job` as JSON.
"""
