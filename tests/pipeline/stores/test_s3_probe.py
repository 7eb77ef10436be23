"""What an S3 server refuses is one line before Spark starts; what cannot be known is left to
Hadoop.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.stores import s3_probe
from tests.pipeline.stores.s3_server import Credentials, S3Server, serving

pytest.importorskip("moto")
PLACE = "s3a://lake/orders"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serving() as found:
        yield found


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No credentials but those of the test: no metadata service is asked."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


def refused(place: str, settings: dict[str, str]) -> str:
    with pytest.raises(PipelineError) as raised:
        s3_probe.check(place, "--to", settings, {})
    line = str(raised.value)
    assert line.startswith(f"--to {place}: ") and "\n" not in line
    return line


def test_a_bucket_that_may_be_listed(server: S3Server) -> None:
    s3_probe.check(PLACE, "--to", server.settings() | server.writer.settings(), {})
    of_bucket = {
        name.replace("fs.s3a.", "fs.s3a.bucket.lake."): value
        for name, value in (server.settings() | server.writer.settings()).items()
    }
    s3_probe.check(PLACE, "--to", of_bucket | {"fs.s3a.endpoint": "http://127.0.0.1:1"}, {})


def test_no_bucket(server: S3Server) -> None:
    told = refused("s3a://nobody/x", server.settings() | server.writer.settings())
    assert f"{server.url} has no bucket nobody: create it, or name another" in told


@pytest.mark.parametrize(
    ("credentials", "line"),
    [
        (Credentials("AKIAUNKNOWN", "hushhush"), "does not know the access key (InvalidAccessKey"),
        (None, "does not take the secret key (SignatureDoesNotMatch)"),
    ],
)
def test_wrong_credentials(server: S3Server, credentials: Credentials | None, line: str) -> None:
    given = credentials or Credentials(server.writer.key, "hushhush")
    told = refused(PLACE, server.settings() | given.settings())
    assert line in told and "AWS_SECRET_ACCESS_KEY" in told
    assert "hushhush" not in told and given.key not in told


def test_credentials_that_may_nothing(server: S3Server) -> None:
    told = refused(PLACE, server.settings() | server.stranger.settings())
    assert "does not let these credentials list the bucket (AccessDenied): allow s3:Li" in told


def test_no_credentials(server: S3Server, outside: None) -> None:
    assert "there are no credentials: set AWS_ACCESS_KEY_ID" in refused(PLACE, server.settings())


def test_half_of_the_credentials(
    server: S3Server, outside: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAHUSH")
    told = refused(PLACE, server.settings())
    assert "the environment has half of the credentials: set AWS_ACCESS_KEY_ID and" in told
    assert "AKIAHUSH" not in told


def test_a_profile_that_is_not_there_is_left_to_hadoop(
    server: S3Server, outside: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not read it: the machine's role may do."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    s3_probe.check(PLACE, "--to", server.settings(), {})


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        told = refused(PLACE, {"fs.s3a.endpoint": url})
    assert f"no S3 server answers at {url} (Connection refused): set AWS_ENDPOINT_URL" in told


@pytest.mark.parametrize("other", [{}, {"fs.s3a.proxy.host": "proxy"}])
@pytest.mark.parametrize("endpoint", ["http://me:hush@127.0.0.1:1", "me:hush@127.0.0.1:1"])
def test_an_endpoint_with_a_password_is_not_repeated(endpoint: str, other: dict[str, str]) -> None:
    told = refused(PLACE, other | {"fs.s3a.endpoint": endpoint})
    assert "(AWS_ENDPOINT_URL, spark.hadoop.fs.s3a.endpoint) has no user: set AWS_ACCESS" in told
    assert "hush" not in told


def test_an_endpoint_without_tls(server: S3Server) -> None:
    """One without a scheme is https, as Hadoop takes it."""
    bare = {"fs.s3a.endpoint": server.url.removeprefix("http://")}
    told = refused(PLACE, server.settings() | server.writer.settings() | bare)
    assert "is it http:// or https://?" in told
    plain = bare | {"fs.s3a.connection.ssl.enabled": "false"}
    s3_probe.check(PLACE, "--to", server.settings() | server.writer.settings() | plain, {})


@pytest.mark.parametrize(
    "left",
    [
        {"fs.s3a.aws.credentials.provider": "com.example.Own"},
        {"hadoop.security.credential.provider.path": "jceks://file/keys"},
    ],
)
def test_credentials_that_only_hadoop_can_have(server: S3Server, left: dict[str, str]) -> None:
    s3_probe.check("s3a://nobody/x", "--to", server.settings() | left, {})
    assert "no S3 server" in refused(PLACE, left | {"fs.s3a.endpoint": "http://127.0.0.1:1"})


def test_what_core_site_may_say_is_left_to_hadoop() -> None:
    nowhere = {"fs.s3a.endpoint": "http://127.0.0.1:1"}
    s3_probe.check(PLACE, "--to", nowhere, {"HADOOP_CONF_DIR": "/etc/hadoop"})
    s3_probe.check(PLACE, "--to", nowhere | {"fs.s3a.proxy.host": "proxy"}, {})


def test_other_places_are_not_asked() -> None:
    for place in ("lake/orders", "gs://lake/orders", "hdfs://h/orders"):
        s3_probe.check(place, "--to", {"fs.s3a.endpoint": "http://127.0.0.1:1"}, {})
