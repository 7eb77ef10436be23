"""Subjects become names as in Kafka: the examples of its documentation and of its tests."""

from __future__ import annotations

import pytest

from twisted_broker.security.principal_mapping import NoRuleMatches, PrincipalMapper, subject_text
from twisted_broker.settings import ConfigError

SUBJECT = "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    " RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("O=apache", "O=apache"),
    ],
)
def test_the_first_rule_that_matches_all_of_the_subject_counts(subject, name):
    assert PrincipalMapper(RULES).name_of(subject) == name


def test_escapes_and_case():
    assert PrincipalMapper(r"RULE:CN=(.*?)\/(.*?),.*/$2\/\$$1/U").name_of("CN=a/b,C=x") == "B/$A"
    assert PrincipalMapper("").name_of(SUBJECT) == SUBJECT
    assert PrincipalMapper("DEFAULT").name_of(SUBJECT) == SUBJECT


def test_who_matches_no_rule_has_no_name():
    with pytest.raises(NoRuleMatches, match=r"ssl\.principal\.mapping\.rules.*CN=serviceuser"):
        PrincipalMapper("RULE:^CN=admin$/admin/").name_of(SUBJECT)
    with pytest.raises(NoRuleMatches):  # a part is not enough
        PrincipalMapper("RULE:CN=serviceuser/admin/").name_of(SUBJECT)


@pytest.mark.parametrize(
    "rules",
    ["default", "DEFAUL", "RULE:", "RULE:a", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "RULE:a/$1/",
     "DEFAULT,RULE:a", "DEFAULT RULE:a/b/", "RULE:" + "(" * 999 + "/b/", "RULE:a{99999999999}/b/",
     "RULE:" + "a" * 1001 + "/b/", "DEFAULT," * 101, "RULE:a/" + "b" * 10_000 + "/"],
)  # fmt: skip
def test_rules_that_say_nothing_are_refused(rules):
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapper(rules)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "subject",
    [
        "CN=x" + ",OU=" * 70 + ",O=" * 70 + ",L=" * 70 + ",ST=" * 70 + ",D=",
        "CN=x" + ",OU=,O=,L=,ST=,D=" * 55,
        "CN=x" + ",OU=" * 4_000,
    ],
)
def test_no_subject_takes_long(subject):
    """The rules of Kafka's own documentation: seconds to days where each place is tried."""
    with pytest.raises(NoRuleMatches):
        PrincipalMapper(RULES.removesuffix(", DEFAULT")).name_of(subject)


def test_digits_and_words_are_javas():
    with pytest.raises(NoRuleMatches):
        PrincipalMapper(r"RULE:CN=(\w|\d)+(?<!x)/y/").name_of("CN=é٣")


def test_a_subject_is_written_as_java_writes_it():
    parts = [
        [("2.5.4.6", "US", b"")],
        [("2.5.4.10", 'A, "B" + C; <D> \\ #', b""), ("2.5.4.11", " x ", b"")],
        [("1.2.840.113549.1.9.1", "a@b", b"\x16\x03a@b")],
        [("2.5.4.3", "näme", b"")],
    ]
    assert subject_text(parts) == (
        "CN=näme,1.2.840.113549.1.9.1=#1603614062,"
        'O=A\\, \\"B\\" \\+ C\\; \\<D\\> \\\\ \\#+OU=\\ x\\ ,C=US'
    )
