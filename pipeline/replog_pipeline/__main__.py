"""`replog pipeline` as a file that `spark-submit` can run, and as `python -m
replog_pipeline`.
"""

from replog_pipeline.cli import pipeline

if __name__ == "__main__":
    pipeline(prog_name="replog pipeline")
