"""The pictures of the stories are drawn from what their blocks leave."""


def test_pictures(smoke):
    found = smoke("stories/pictures.py")
    rows = found.tables["survey"]
    assert len(rows) == 16 and sum(row["low"] <= row["truth"] <= row["high"] for row in rows) >= 13
    assert found.drew("survey.png")
    errors = [row["error"] for row in found.tables["plan"]]
    assert errors == sorted(errors, reverse=True)
