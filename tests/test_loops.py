"""What `make lint` refuses in loops (`loops.py`)."""

from tests.loops import main, rebound


def test_a_bound_that_its_loop_assigns_is_found() -> None:
    source = (
        "for _ in range(n):\n    if a:\n        n, p = f(p)\nfor i in range(2, n, i):\n    n += 1\n"
    )
    assert list(rebound(source)) == [(3, "n"), (4, "i"), (5, "n")]


def test_other_loops_are_left_alone() -> None:
    source = "for _ in range(n):\n    m = 1\nn = 2\nfor x in range(len(n)):\n    n = 3\n"
    assert not list(rebound(source))


def test_the_package_has_none() -> None:
    assert main(["twisted_broker"]) == 0
