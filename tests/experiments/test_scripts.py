"""Every script under experiments/ runs with --smoke and prints what its docstring promises."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"
RUN_HERE = {
    "bench/factorization_gpu.py",
    "bench/frequency_oracles.py",
    "bench/journal.py",
    "bench/report_sums.py",
    "bench/rounded_features.py",
    "bench/samplers.py",
    "bench/secure_sketch.py",
    "bench/sweep_devices.py",
    "bench/vector_sums.py",
    "queries/choose.py",
    "queries/error_vs_types.py",
    "queries/learner.py",
    "randomizers/relative_variance.py",
    "queries/strategies.py",
    "bench/randomizers.py",
    "pairwise/error_vs_n.py",
    "pairwise/free_constant.py",
    "pairwise/label_weight.py",
    "pairwise/large_domain.py",
    "pairwise/demo.py",
    "factorization/approximate.py",
    "factorization/gap_against_time.py",
    "factorization/growth.py",
    "factorization/known_values.py",
    "factorization/lower_bounds.py",
    "factorization/prefix_constant.py",
    "factorization/rank.py",
    "factorization/solvers.py",
    "factorization/structured.py",
    "factorization/table.py",
    "bench/sketching.py",
    "mean/covariance.py",
    "mean/errors.py",
    "mean/local_central.py",
    "mean/shapes.py",
    "density/attack.py",
    "density/bitsums.py",
    "density/classification.py",
    "density/collect.py",
    "density/data.py",
    "density/decode.py",
    "density/digits.py",
    "density/error.py",
    "regression/low_rank.py",
    "regression/moments.py",
    "sketching/noise.py",
    "regression/ridge.py",
    "secure/servers.py",
    "regression/tables.py",
    "pairwise/choose.py",
    "pairwise/coverage.py",
    "pairwise/groups.py",
    "pairwise/pictures.py",
    "pairwise/separation.py",
    "pairwise/tables.py",
    "training/epochs.py",
    "training/learned_factorization.py",
    "training/prefix_noise.py",
    "training/quickstart.py",
}
IMPORTED = {"bench/measure.py"}  # by scripts


def test_no_script_is_forgotten():
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")} == RUN_HERE | IMPORTED


@pytest.mark.parametrize("name", sorted(RUN_HERE))
def test_docstrings_say_how_to_run(name):
    text = (FOLDER / name).read_text()
    docstring = text.split('"""')[1]
    assert all(word in docstring for word in ("Command:", "Time:")) and "--smoke" in docstring


def test_frequency_oracles_bench(run):
    printed = run(FOLDER / "bench/frequency_oracles.py", "--smoke")
    rows = re.findall(r"^(torchdp|numpy), ([\w ]+?) +\S+ +\S+ +(\S+)$", printed, re.MULTILINE)
    assert len(rows) == 5 + 2 + 5  # each oracle's messages, the two in numpy, each oracle's aggregate
    assert all(float(rate) > 0 for *_, rate in rows)
    for peer in ("pure-ldp", "multi-freq-ldpy", "opendp"):  # measured, or said to be missing
        assert re.search(rf"^{peer}, .* (missing: \w+|\S+)$", printed, re.MULTILINE)


def test_bench(run):
    printed = run(FOLDER / "bench/randomizers.py", "--smoke")
    rate, floor = map(float, re.search(r"PrivUnitG.sample d=256 float64 +(\S+) +(\S+)", printed).groups())
    assert rate > 0 and floor > 0
    assert float(re.search(r"sample_reports k=1024, 1e9 users +(\S+)", printed).group(1)) > 0


def test_factorization_by_products(run):
    printed = run(FOLDER / "bench/factorization_gpu.py", "--smoke")
    rows = re.findall(r"^64 +(Decomposed|Iterated) .*\[(\S+), (\S+)\]$", printed, re.MULTILINE)
    assert [path for path, _, _ in rows] == ["Decomposed", "Iterated"]
    assert all(float(low) <= 2.1113667 <= float(high) <= 1.001 * float(low) for _, low, high in rows)
