"""`--spark-conf`, and what is known of Spark's settings before a JVM runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.stores import spark_conf


def test_the_option_wins_over_the_arguments_and_those_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.a 0\n\nspark.a one\nspark.b=two words \n  spark.c: three\nspark.d\tfour\n"
    )
    environment = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--master yarn --conf spark.c='3 3' --conf spark.d=4 pyspark-shell",
    }
    assert spark_conf.known({"spark.d": "IV"}, environment) == {
        "spark.a": "one",
        "spark.b": "two words",
        "spark.c": "3 3",
        "spark.d": "IV",
        "spark.master": "yarn",
    }


def test_without_files_nothing_is_known(tmp_path: Path) -> None:
    for environment in (
        {},
        {"SPARK_CONF_DIR": str(tmp_path)},
        {"SPARK_HOME": str(tmp_path)},
        {"PYSPARK_SUBMIT_ARGS": "--conf 'open"},
    ):
        assert spark_conf.known({}, environment) == {}


def test_hadoops_settings_win_over_the_environment() -> None:
    spark = {"spark.hadoop.fs.s3a.endpoint": "http://own", "spark.master": "local"}
    environment = {"AWS_ENDPOINT_URL": "http://other", "AWS_ACCESS_KEY_ID": "key"}
    assert spark_conf.hadoop(spark, environment) == {
        "fs.s3a.endpoint": "http://own",
        "fs.s3a.access.key": "key",
    }


@pytest.mark.parametrize("line", ["hush", "fs.s3a.secret.key=hush", "=hush"])
def test_what_is_no_setting_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(PipelineError, match=r"^--spark-conf: write NAME=VALUE") as raised:
        spark_conf.given(None, None, (line,))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("value", ["12", "0g", "449m", "2gb", "x", "", "1.5g"])
def test_a_heap_with_which_no_driver_starts_is_refused(value: str) -> None:
    for conf in (
        {"spark.driver.memory": value},
        spark_conf.known({}, {"PYSPARK_SUBMIT_ARGS": f"--driver-memory '{value}' pyspark-shell"}),
    ):
        with pytest.raises(PipelineError, match=r"^spark.driver.memory=.* as 2g$"):
            spark_conf.check_memory(conf)


@pytest.mark.parametrize("value", ["450m", "1G", "471859200", "500000k", "1t"])
def test_a_heap_as_java_takes_it(value: str) -> None:
    spark_conf.check_memory({"spark.driver.memory": value})


def test_a_value_may_have_an_equals_sign() -> None:
    assert spark_conf.given(None, None, ("spark.a=b=c",)) == {"spark.a": "b=c"}


def test_which_settings_are_secret() -> None:
    for name in ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token", "my.Password"):
        assert spark_conf.is_secret(f"spark.hadoop.{name}")
    for name in ("fs.s3a.encryption.key", "fs.gs.auth.service.account.private.key"):
        assert spark_conf.is_secret(f"spark.hadoop.{name}")
    for name in ("spark.driver.memory", "spark.hadoop.fs.s3a.endpoint", "spark.master"):
        assert not spark_conf.is_secret(name)
