"""Jars: what is pinned, what is accepted, where it comes from, and what is left behind when it
does not come.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import ivy, jars, trust
from tests.pipeline.machine.test_java import fake_java

CONTENT = b"classes"
JAR = jars.Jar("org.example", "thing_2.13", "1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def mirror(tmp_path) -> Path:
    """A folder laid out as a Maven repository, with the one jar."""
    place = tmp_path / "mirror" / "org" / "example" / "thing_2.13" / "1.0" / "thing_2.13-1.0.jar"
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    return place


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {
        "REPLOG_JARS": str(tmp_path / "kept"),
        "REPLOG_JARS_URL": (tmp_path / "mirror").as_uri(),
        "PATH": "/usr/bin:/bin",
    }


def test_a_mirror_is_asked_once(mirror, environment):
    told: list[str] = []
    paths = jars.provide([JAR], told.append, environment)
    assert [path.read_bytes() for path in paths] == [CONTENT] and told == [
        "fetching thing_2.13-1.0.jar"
    ]
    mirror.unlink()
    assert jars.provide([JAR], told.append, environment) == paths and len(told) == 1


@pytest.mark.parametrize("content", [b"", b"other classes"])
def test_what_is_not_the_pinned_file_is_refused_and_not_kept(
    mirror, environment, tmp_path, content
):
    mirror.write_bytes(content)
    with pytest.raises(PipelineError, match=r"thing_2.13-1.0.jar has SHA-256 .* nothing was kept"):
        jars.provide([JAR], lambda line: None, environment)
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_password_of_a_mirror_is_refused_and_not_repeated(environment):
    environment["REPLOG_JARS_URL"] = "https://me:hush@127.0.0.1:1/maven2"
    said: list[str] = []
    with pytest.raises(PipelineError, match="REPLOG_JARS_URL: no user in the URL") as raised:
        jars.provide([JAR], said.append, environment)
    assert "hush" not in f"{raised.value} {said}"


def test_a_mirror_without_it_is_one_line_that_names_the_setting(mirror, environment, tmp_path):
    mirror.unlink()
    with pytest.raises(
        PipelineError, match=r"^REPLOG_JARS_URL: file://.*thing_2.13-1.0.jar cannot be read"
    ):
        jars.provide([JAR], lambda line: None, environment)
    assert list((tmp_path / "kept").iterdir()) == []


def test_damage_of_what_is_kept_is_seen(mirror, environment):
    [path] = jars.provide([JAR], lambda line: None, environment)
    assert jars.damaged([JAR], environment) == [] == jars.missing([JAR], environment)
    path.write_bytes(b"torn")
    assert jars.damaged([JAR], environment) == [JAR]


def test_an_unknown_format_is_named():
    with pytest.raises(
        PipelineError, match="no jars are known for 'iceberg'; known are kafka, delta"
    ):
        jars.of(["kafka", "iceberg"])


def test_the_connectors_of_stores_are_of_the_hadoop_that_pyspark_ships():
    pyspark = pytest.importorskip("pyspark")
    shipped = Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{jars.HADOOP}.jar"
    assert shipped.exists()
    connectors = [jar for jar in jars.of(jars.STORES) if jar.group == "org.apache.hadoop"]
    assert [jar.version for jar in connectors] == [jars.HADOOP] * 2


def test_only_a_table_on_a_store_needs_the_large_ones(environment, tmp_path, monkeypatch):
    """And a line says how large they are."""
    assert not {*jars.ALL} & {*jars.of(jars.STORES)}
    large = jars.Jar(JAR.group, JAR.name, JAR.version, JAR.sha256, mb=600)
    told: list[str] = []
    limits: list[int] = []
    monkeypatch.setattr(ivy, "run", lambda command, limit: limits.append(limit))
    del environment["REPLOG_JARS_URL"]
    with pytest.raises(AttributeError):  # there is no answer of a process
        jars.provide([large], told.append, environment)
    assert told == ["fetching 1 jars with Spark's own resolver (once, 600 MB)"]
    assert limits == [ivy.LIMIT_SECONDS + 600 * jars.SECONDS_PER_MB]


def test_no_registry_is_written_into_the_code():
    for path in Path(jars.__file__).parent.glob("*.py"):
        assert "https:" not in path.read_text() and "http:" not in path.read_text(), path


def test_the_resolver_is_asked_for_exactly_these_and_nothing_they_depend_on():
    told = ivy.module([("org.example", "a&b", "1"), ("org.other", "c", "2")])
    assert (
        'org="org.example" name="a&amp;b" rev="1" transitive="false"' in told
        and told.count("<dependency ") == 2
    )


def test_a_java_that_does_not_trust_the_machine_is_given_what_the_machine_trusts(tmp_path):
    pytest.importorskip("pyspark")
    home = fake_java(tmp_path / "java", "25.0.2")
    script = home / "bin" / "java"
    place, kept = tmp_path / "place", tmp_path / "kept"
    place.write_bytes(CONTENT)
    (tmp_path / "do").write_text(f"""
        case "$*" in
          *trustStoreType=JKS*) for argument do case "$argument" in */\\[artifact*) cp {place} "${{argument%/*}}/{JAR.file}";; esac; done;;
          *) echo 'ERROR: javax.net.ssl.SSLHandshakeException: who are you'; exit 1;;
        esac""")
    script.write_text(script.read_text().replace("else ", f"else . {tmp_path}/do; exit $?; "))
    environment = {"JAVA_HOME": str(home), "PATH": "/bin", "REPLOG_JARS": str(kept)}
    assert jars.provide([JAR], lambda line: None, environment) == [kept / JAR.file]


def test_java_reads_the_key_store(spark, tmp_path):
    """The JVM finds every certificate that was written, under the digest of its password."""
    trusted = trust.certificates()[:3]
    (tmp_path / "store").write_bytes(trust.key_store(trusted))
    java = spark._jvm.java
    store = java.security.KeyStore.getInstance("JKS")
    password = java.io.CharArrayWriter()
    password.write(trust.PASSWORD)
    store.load(java.io.FileInputStream(str(tmp_path / "store")), password.toCharArray())
    assert (
        [bytes(store.getCertificate(str(number)).getEncoded()) for number in range(store.size())]
        == trusted
        != []
    )


def test_why_the_resolver_failed_is_one_line(tmp_path):
    pytest.importorskip("pyspark")
    home = fake_java(tmp_path / "java", "17.0.1")
    script = home / "bin" / "java"
    script.write_text(
        script.read_text().replace(
            "else ",
            "else echo ':: problems'; echo '  module not found: org.example#thing;1.0'; exit 1; ",
        )
    )
    environment = {"JAVA_HOME": str(home), "PATH": "/bin", "REPLOG_JARS": str(tmp_path / "kept")}
    with pytest.raises(
        PipelineError, match=r"^jars: module not found: org.example#thing;1.0; is there a network"
    ) as raised:
        jars.provide([JAR], lambda line: None, environment)
    assert "REPLOG_JARS_URL" in str(raised.value) and list((tmp_path / "kept").iterdir()) == []
