"""A long run can be stopped at any moment and continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from twisted_broker.simulation.run_state import RunState, source_of

RUN = {"source": "a", "brokers": 3}


def stopped_run(path: Path) -> None:
    state = RunState(path, RUN, range(4))
    assert state.began == "" and state.finished == {}
    state.add(0, ["ok"])
    state.add(2, ["lost"])
    state.close()


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "seeds.jsonl"
    stopped_run(path)
    state = RunState(path, RUN, range(4))
    assert state.finished == {0: ["ok"], 2: ["lost"]}
    assert state.began == f"{path}: goes on, 2 are finished"


@pytest.mark.parametrize("torn", range(1, 30))
def test_a_kill_in_a_line_costs_that_line(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "seeds.jsonl"
    stopped_run(path)
    path.write_bytes(path.read_bytes()[:-torn])
    state = RunState(path, RUN, range(4))
    state.add(3, ["more"])
    state.close()
    assert RunState(path, RUN, range(4)).finished in (
        {0: ["ok"], 3: ["more"]},
        {0: ["ok"], 2: ["lost"], 3: ["more"]},  # only the end of the line was torn off
    )


def test_another_source_or_other_options_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    stopped_run(path)
    state = RunState(path, RUN | {"brokers": 1}, range(4))
    assert state.finished == {} and state.began.endswith("other options; begins anew")
    state.close()
    assert RunState(path, RUN | {"brokers": 1}, range(4)).began == ""


def test_a_finished_run_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    stopped_run(path)
    state = RunState(path, RUN, [0, 2])
    assert state.finished == {} and state.began.endswith("that run was finished; begins anew")


def test_the_source_is_every_module(tmp_path: Path) -> None:
    """A changed, a new and a moved module are each another source; a file of another kind is
    none.
    """
    (tmp_path / "part").mkdir()
    module = tmp_path / "part" / "module.py"
    module.write_text("one = 1\n")
    found = [source_of([tmp_path])]
    (tmp_path / "notes.txt").write_text("nothing")
    assert source_of([tmp_path]) == found[0]
    module.write_text("one = 2\n")
    found.append(source_of([tmp_path]))
    module.rename(tmp_path / "module.py")
    found.append(source_of([tmp_path]))
    assert len(set(found)) == 3
