"""`make audit` says when it knows nothing."""

from tests.audit import verdict


def test_what_was_not_looked_up_is_not_good() -> None:
    good = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    unknown = {"name": "c", "skip_reason": "Dependency not found"}
    own = {"name": "twisted_broker", "skip_reason": "Dependency not found"}
    assert verdict([good, own])[0] == 0
    assert verdict([good, bad, unknown])[0] == 1
    assert "b 2: CVE-1, fixed in 3" in verdict([bad])[1]
    assert verdict([])[0] == 2
    status, lines = verdict([good, unknown])
    assert status == 2 and "no data on 1 of them" in lines[-1]
