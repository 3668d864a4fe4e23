"""The contest of regressions finds what its docstring promises."""


def test_contest(smoke):
    rows = smoke("regression/contest.py", real=("diabetes",)).tables["contest"]
    assert len(rows) >= 6
    for row in rows:
        assert row["chosen"] < row["AdaSSP"] + 4 * (row["chosen_error"] + row["AdaSSP_error"])
