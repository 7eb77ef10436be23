"""`replog pipeline` as a file that `spark-submit` can run, and as `python -m
replog_pipeline`.
"""

import os

from replog_pipeline.cli import pipeline
from replog_pipeline.submit import restore_standard_error

if __name__ == "__main__":
    restore_standard_error(os.environ)
    pipeline(prog_name="replog pipeline")
