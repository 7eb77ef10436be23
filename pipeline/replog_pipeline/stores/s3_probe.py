"""Whether an S3 server answers, takes the credentials and has the bucket, before Spark starts:
one request that lists the first object.

1. It refuses what is certain, and nothing else: an address where nobody listens, a server's own no,
   no credentials at all. What it cannot know (a credentials provider of the user's own, Java's
   trust store, a proxy, core-site.xml) is left to Hadoop.
2. It reads what Hadoop would: `fs.s3a.*`, also those of one bucket (`fs.s3a.bucket.NAME.*`), and
   the environment. Credentials in ~/.aws count for nothing: Hadoop does not read them.
3. No credential is in an error, nor an address with a user.

Source: Hadoop's "Connecting to an Amazon S3 Bucket" and "Authenticating with S3". Not here: GCS.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from replog_pipeline.errors import PipelineError
from replog_pipeline.stores import places
from twisted_broker.installed import install

PATIENCE_SECONDS = 5
READ_SECONDS = 20
PROVIDERS = "hadoop.security.credential.provider.path"
LEFT_TO_HADOOP = ("aws.credentials.provider", "delegation.token.binding")
OF_MACHINE = ("iam-role", "container-role")
"""How botocore calls what Hadoop's default providers read, too."""
REFUSED = {
    "InvalidAccessKeyId": "does not know the access key",
    "SignatureDoesNotMatch": "does not take the secret key",
    "InvalidToken": "does not take the session token",
    "ExpiredToken": "says that the session token has expired",
}
FORBIDDEN = ("AccessDenied", "403")
SET_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or spark.hadoop.fs.s3a.access.key and "
    "spark.hadoop.fs.s3a.secret.key in spark-defaults.conf"
)


class Settings:
    """Hadoop's settings for one bucket."""

    def __init__(self, hadoop: Mapping[str, str], bucket: str) -> None:
        self.hadoop, self.bucket = hadoop, bucket

    def get(self, name: str) -> str:
        """`fs.s3a.NAME`; empty where it is not set."""
        own = self.hadoop.get(f"fs.s3a.bucket.{self.bucket}.{name}")
        return own or self.hadoop.get(f"fs.s3a.{name}") or ""

    @property
    def endpoint(self) -> str | None:
        """As a URL; None for Amazon's own."""
        found = self.get("endpoint")
        if not found or "://" in found:
            return found or None
        is_plain = self.get("connection.ssl.enabled").lower() == "false"
        return f"{'http' if is_plain else 'https'}://{found}"


def check(
    place: str,
    setting: str,
    hadoop: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """PipelineError for what cannot work. `hadoop`: its settings as far as they are known."""
    if places.scheme(place) != "s3a":
        return
    bucket, key = places.bucket(place)
    settings = Settings(hadoop, bucket)
    about = f"{setting} {place}"
    if "@" in (settings.endpoint or ""):  # a password in it would be shown, by Hadoop too
        raise PipelineError(
            f"{about}: the address of an S3 server (AWS_ENDPOINT_URL, "
            f"spark.hadoop.fs.s3a.endpoint) has no user: {SET_CREDENTIALS}"
        )
    if settings.get("proxy.host") or environment.get("HADOOP_CONF_DIR"):
        return
    if settings.endpoint:
        reach(settings.endpoint, about)
    if PROVIDERS in hadoop or any(settings.get(name) for name in LEFT_TO_HADOOP):
        return
    try:
        from botocore.session import Session
    except ImportError:
        raise PipelineError(f"{about}: botocore is not installed: {install('s3')}") from None
    request(Session(), settings, key, about)


def reach(endpoint: str, about: str) -> None:
    """PipelineError when nobody listens there."""
    try:
        found = urlsplit(endpoint)
        port = found.port or (80 if found.scheme == "http" else 443)
        if not found.hostname:
            raise ValueError("no host")
        socket.create_connection((found.hostname, port), PATIENCE_SECONDS).close()
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"{about}: no S3 server answers at {endpoint} "
            f"({getattr(error, 'strerror', None) or error}): set AWS_ENDPOINT_URL or "
            "spark.hadoop.fs.s3a.endpoint"
        ) from None


def request(session: Any, settings: Settings, key: str, about: str) -> None:
    from botocore import exceptions as raised
    from botocore.config import Config

    credentials = given_credentials(settings)
    if not credentials:
        try:
            found = session.get_credentials()
        except raised.PartialCredentialsError as error:
            if error.kwargs.get("provider") != "env":
                return  # a file that Hadoop does not read
            raise PipelineError(
                f"{about}: the environment has half of the credentials: {SET_CREDENTIALS}"
            ) from None
        except raised.BotoCoreError:
            return  # a profile that is not there, which Hadoop does not read
        if found is None or found.method not in OF_MACHINE:
            raise PipelineError(f"{about}: there are no credentials: {SET_CREDENTIALS}")
    is_path = settings.get("path.style.access").lower() == "true"
    try:
        client = session.create_client(
            "s3",
            region_name=settings.get("endpoint.region") or "us-east-1",
            endpoint_url=settings.endpoint,
            config=Config(
                connect_timeout=PATIENCE_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path" if is_path else "auto"},
            ),
            **credentials,
        )
        client.list_objects_v2(Bucket=settings.bucket, MaxKeys=1, Prefix=key)
    except raised.ClientError as error:
        refuse(str(error.response.get("Error", {}).get("Code", "")), settings, about)
    except (raised.ConnectionError, raised.HTTPClientError) as error:
        # Without an endpoint it is Amazon's, which Java may reach by another way; and Java has
        # certificates of its own.
        if settings.endpoint and "CERTIFICATE" not in str(error):
            path = "" if is_path else ", or spark.hadoop.fs.s3a.path.style.access=true"
            raise PipelineError(
                f"{about}: no S3 server answers at {settings.endpoint} "
                f"({str(error).rstrip('.')}): is it http:// or https://? Set AWS_ENDPOINT_URL or "
                f"spark.hadoop.fs.s3a.endpoint{path}"
            ) from None
    except (raised.BotoCoreError, ValueError):
        return  # its parsing: Hadoop may do better, and says what it cannot do


def given_credentials(settings: Settings) -> dict[str, str]:
    """As botocore takes them; empty without."""
    found = {
        "aws_access_key_id": settings.get("access.key"),
        "aws_secret_access_key": settings.get("secret.key"),
        "aws_session_token": settings.get("session.token"),
    }
    if not (found["aws_access_key_id"] and found["aws_secret_access_key"]):
        return {}
    return {name: value for name, value in found.items() if value}


def refuse(code: str, settings: Settings, about: str) -> None:
    where = settings.endpoint or "Amazon S3"
    if code == "NoSuchBucket":
        raise PipelineError(
            f"{about}: {where} has no bucket {settings.bucket}: create it, or name another"
        )
    if code in REFUSED:
        raise PipelineError(f"{about}: {where} {REFUSED[code]} ({code}): {SET_CREDENTIALS}")
    if code in FORBIDDEN:
        raise PipelineError(
            f"{about}: {where} does not let these credentials list the bucket ({code}): allow "
            "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject, or set others"
        )
    if code == "404":
        raise PipelineError(
            f"{about}: {where} answers with 404: is it an S3 server? Set AWS_ENDPOINT_URL or "
            "spark.hadoop.fs.s3a.endpoint"
        )
