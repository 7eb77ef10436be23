"""An S3 server with users: moto's, from PyPI, in this process. Every request is checked for its
signature and for what its user may do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import unquote

BUCKET = "lake"
REGION = "us-east-1"
KINDS = ("add", "remove")
MAY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
}


@dataclass(frozen=True)
class Credentials:
    """Of one user."""

    key: str
    secret: str

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def settings(self) -> dict[str, str]:
        return {"fs.s3a.access.key": self.key, "fs.s3a.secret.key": self.secret}


@dataclass(frozen=True)
class S3Server:
    """`writer` may do everything, `stranger` nothing."""

    url: str
    writer: Credentials
    stranger: Credentials

    def settings(self) -> dict[str, str]:
        """Hadoop's."""
        return {"fs.s3a.endpoint": self.url, "fs.s3a.path.style.access": "true"}

    def client(self) -> Any:
        return client("s3", self.url, self.writer)

    def objects(self, prefix: str = "") -> list[str]:
        pages = (
            self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        )
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def content(self, name: str) -> bytes:
        return self.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()

    def commits(self, table: str) -> list[str]:
        """Of a Delta table, the oldest first."""
        return [name for name in self.objects(f"{table}/_delta_log/") if name.endswith(".json")]

    def live_files(self, table: str) -> list[str]:
        """The data files that a Delta table has by its log, read without Spark."""
        live: dict[str, bool] = {}
        for name in self.commits(table):
            for action in map(json.loads, self.content(name).splitlines()):
                live |= {action[kind]["path"]: kind == "add" for kind in KINDS if kind in action}
        return [f"{table}/{unquote(path)}" for path, is_added in live.items() if is_added]


def client(service: str, url: str, of: Credentials) -> Any:
    import boto3

    return boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=of.key,
        aws_secret_access_key=of.secret,
    )


@contextmanager
def serving() -> Iterator[S3Server]:
    """With the bucket `lake`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        iam = client("iam", url, Credentials("first", "any"))
        found = {}
        for name in ("writer", "stranger"):
            iam.create_user(UserName=name)
            key = iam.create_access_key(UserName=name)["AccessKey"]
            found[name] = Credentials(key["AccessKeyId"], key["SecretAccessKey"])
        iam.put_user_policy(UserName="writer", PolicyName="may", PolicyDocument=json.dumps(MAY))
        client("s3", url, found["writer"]).create_bucket(Bucket=BUCKET)
        checks_requests_after(url, 0)
        yield S3Server(url, found["writer"], found["stranger"])
        checks_requests_after(url, "inf")
    finally:
        server.stop()


def checks_requests_after(url: str, count: object) -> None:
    """As moto's own tests switch it on: after so many requests."""
    connection = HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/moto-api/reset-auth", str(count), {"Content-Type": "text/plain"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()
