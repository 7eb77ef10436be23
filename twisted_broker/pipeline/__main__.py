"""`replog pipeline` as a file that `spark-submit` can run, and as `python -m
twisted_broker.pipeline`.
"""

from twisted_broker.pipeline.cli import pipeline

if __name__ == "__main__":
    pipeline(prog_name="replog pipeline")
