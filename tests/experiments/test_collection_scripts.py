"""The script of p-values compares what its docstring names."""


def test_the_level_of_p_values(smoke):
    rows = smoke("collection/level.py").tables["level"]
    assert len(rows) == 8
    first, alone = rows[:6], rows[6:]
    rejected = sum(row["level"] for row in first) / len(first)
    assert rejected < 0.15 < sum(row["noise_alone"] for row in first) / len(first)
    assert all("alone" in row["statistic"] and row["level"] <= 0.1 for row in alone)
