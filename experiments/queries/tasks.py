"""Everyday tasks of whoever holds a table: lines, error and time, beside OpenDP and diffprivlib.

Paper: none; the tasks are what people do with OpenDP, Tumult Analytics, diffprivlib, PipelineDP.
Command:  python experiments/queries/tasks.py --peers PYTHON, an interpreter that has the peers:
    pip install opendp diffprivlib "scikit-learn<1.6"; without --peers torchdp alone.
Expected: experiments/bench/tasks_cpu.txt. Every task is a call of at most five lines.
Output: results/queries/tasks/: tasks.csv, peers.csv.
Artifact: own | everyday tasks of a curator
Status: agrees
Time: two minutes on one core; --smoke in ten CPU-seconds.
    On the CPU, whatever --device says.

All is at epsilon = 1 for replacing one of 20,000 people, delta = 1e-6 where there is one. Errors
are root mean squares over the numbers of an answer and over runs; of a fit what it loses.
"""

import inspect
import json
import math
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from torchdp import domains, mean, pairwise, privacy, protocol, queries, workloads
from torchdp.simulate import Experiment
from torchdp.sklearn import PrivateLogisticRegression, PrivatePCA, PrivateRidge
from torchdp.threads import on_host

HERE = Path(__file__).resolve().parent
DELTA = 1e-6
EDGES = torch.linspace(140, 210, 141)
TOWNS = [f"town {i}" for i in range(8)]


@dataclass(frozen=True)
class Config:
    users: int = 20_000
    runs: int = 25
    peers: str = ""
    only: tuple[str, ...] = ()


FULL = Config()


class People:
    """A table of people, some numbers of it, and what they wrote."""

    def __init__(self, n):
        draws = np.random.default_rng(0)
        town = (draws.random(n) ** 2 * 8).astype(int)
        age = draws.integers(18, 90, n)
        height = np.clip(draws.normal(165 + age / 10, 9), 140, 210)
        self.n = n
        self.table = pd.DataFrame({"age": age, "height": height, "town": [TOWNS[i] for i in town]})
        self.table["town"] = self.table["town"].astype(pd.CategoricalDtype(TOWNS))
        self.table["vote"] = draws.random(n) < 0.3 + town / 20
        self.bits = (draws.random((n, 20)) < np.linspace(0.1, 0.9, 20)).astype(np.int64)
        self.word = pd.Series([f"w{i}" for i in draws.zipf(1.5, n)], name="word")
        self.events = pd.DataFrame({"who": draws.integers(0, n // 10, n), "hours": draws.random(n)})
        directions = draws.normal(size=(n, 8)) * np.array([3, 2, 1, 1, 1, 1, 1, 1]) / 12
        self.rows = directions / np.maximum(1, np.linalg.norm(directions, axis=1))[:, None]
        self.target = np.clip(self.rows @ np.linspace(1, -1, 8), -1, 1)
        self.label = draws.random(n) < 1 / (1 + np.exp(-6 * self.rows @ np.linspace(1, -1, 8)))

    def saved(self, path):
        table = self.table
        plain = {"age": table["age"], "height": table["height"], "vote": table["vote"]}
        words = self.word.to_numpy(str)
        town = table["town"].cat.codes
        fits = {"rows": self.rows, "target": self.target, "label": self.label}
        np.savez(path, town=town, words=words, bits=self.bits, **plain, **fits)


def count_of_those_who(t):
    """Counts with delta = 0: of yes and no."""
    votes = queries.CentralLaplace.of(queries.Linear(workloads.identity(2)), epsilon=1.0)
    return votes.estimate(t.table["vote"]).value * t.n


def histogram(t):
    """Users of each town."""
    best = queries.choose(workloads.identity(8), t.n, 1.0, DELTA, trust="curator").best
    return best.estimate(t.table["town"]).value * t.n


def mean_of_a_number(t):
    """Mean height, by 256 bins."""
    edges = torch.linspace(140, 210, 257)
    asked = edges[None, 1:] - 35 / 256  # the middles of the bins
    best = queries.choose(asked, t.n, 1.0, DELTA, trust="curator", search=False).best
    return best.estimate(queries.bins_of(edges, t.table["height"])).value


def variance(t):
    """Of height, beside its mean."""
    box = domains.Box(torch.tensor([140.0]), torch.tensor([210.0]))
    best = mean.GaussianCovariance.tuned(box, epsilon=1.0, delta=DELTA)
    return best.estimate(t.table["height"]).value.flatten()


def covariances(t):
    """Of age and height."""
    box = domains.Box(torch.tensor([18.0, 140.0]), torch.tensor([90.0, 210.0]))
    best = mean.GaussianCovariance.tuned(box, epsilon=1.0, delta=DELTA)
    return best.estimate(t.table[["age", "height"]]).value.flatten()


def median(t):
    """Of height, half a centimetre a bin."""
    best = queries.choose(queries.Quantiles(EDGES), t.n, 1.0, DELTA, trust="curator", search=False)
    return best.best.estimate(queries.bins_of(EDGES, t.table["height"])).value


def quantiles(t):
    """Five of height, in one release."""
    asked = queries.Quantiles(EDGES, (0.05, 0.25, 0.5, 0.75, 0.95))
    best = queries.choose(asked, t.n, 1.0, DELTA, trust="curator", search=False).best
    return best.estimate(queries.bins_of(EDGES, t.table["height"])).value


def trimmed_mean(t):
    """Of height, a tenth off at each end: the mean of many quantiles."""
    asked = queries.Quantiles(EDGES, torch.linspace(0.1, 0.9, 801))
    best = queries.choose(asked, t.n, 1.0, DELTA, trust="curator", search=False).best
    return best.estimate(queries.bins_of(EDGES, t.table["height"])).value.mean()[None]


def distribution_function(t):
    """Shares at most each of 72 ages."""
    best = queries.choose(workloads.prefix(72), t.n, 1.0, DELTA, trust="curator", search=False).best
    return best.estimate(t.table["age"] - 18).value


def all_ranges(t):
    """Users in any range of 16 bins of height."""
    types = queries.bins_of(torch.linspace(140, 210, 17), t.table["height"])
    asked = workloads.all_ranges(16)
    best = queries.choose(asked, t.n, 1.0, DELTA, trust="curator", search=False).best
    return best.estimate(types).value


def contingency_table(t):
    """Towns by votes."""
    best = queries.choose(workloads.identity(8 * 2), t.n, 1.0, DELTA, trust="curator").best
    return best.estimate(t.table[["town", "vote"]]).value * t.n


def heat_map(t):
    """Users in 32 x 32 cells of age and height."""
    ages = pd.cut(t.table["age"], np.linspace(17, 90, 33))
    heights = pd.cut(t.table["height"], np.linspace(140, 210, 33), include_lowest=True)
    cells = queries.CentralLaplace.of(queries.Linear(workloads.identity(32 * 32)), epsilon=1.0)
    return cells.estimate(pd.concat([ages, heights], axis=1)).value * t.n


def means_of_public_groups(t):
    """Mean height of each town, where who is in which is public: one epsilon for all."""
    edges = torch.linspace(140, 210, 257)
    asked = edges[None, 1:] - 35 / 256
    best = queries.choose(asked, t.n, 1.0, DELTA, trust="curator", search=False).best
    types = queries.bins_of(edges, t.table["height"])
    return best.estimate(types, groups=t.table["town"]).value.flatten()


def means_of_private_groups(t):
    """Mean height of each town, where the town is private too: counts, and sums from 175 on."""
    bins = pd.cut(t.table["height"], np.linspace(140, 210, 15), include_lowest=True)
    values = torch.stack([torch.ones(14), torch.linspace(-32.5, 32.5, 14)])
    best = queries.choose(torch.kron(torch.eye(8), values), t.n, 1.0, DELTA, trust="curator").best
    counts, sums = best.estimate(pd.concat([t.table["town"], bins], axis=1)).value.view(8, 2).T
    return 175 + sums / counts


def unknown_categories(t):
    """Words that nobody listed, with counts."""
    return queries.UnknownCategories(0.5, DELTA / 2).estimate(t.word)["value"]


def ten_most_frequent(t):
    """Of these words."""
    return queries.UnknownCategories(0.5, DELTA / 2).estimate(t.word)["value"].head(10)


def pairs_of_twenty_columns(t):
    """All 190 tables of two of twenty bits."""
    tables = queries.CentralMarginals(20, order=2, epsilon=1.0, delta=DELTA)
    return tables.estimate(t.bits).value.flatten() * t.n


def users_with_several_rows(t):
    """Mean hours, of users with about ten events each, by three rows of each user."""
    rows = protocol.sampled_rows(t.events, "who", most=3)
    box = domains.Box(torch.zeros(1), torch.ones(1))
    rho = 1 / (2 * (3 * privacy.gaussian_sigma(1.0, DELTA)) ** 2)  # for_groups(..., 3): epsilon 1
    return mean.GaussianMean.tuned(box, rho=rho, delta=DELTA).estimate(rows["hours"]).value


def kendalls_tau(t):
    """Of age and height in 8 x 8 bins."""
    cells = [pd.cut(t.table["age"], 8), pd.cut(t.table["height"], 8)]
    asked = pairwise.kendall(8, 8)
    best = queries.choose(asked, t.n, 1.0, DELTA, trust="curator", search=False).best
    return best.estimate(pd.concat(cells, axis=1)).value[None]


def ridge(t):
    """Mean squared error, labels in [-1, 1]."""
    model = PrivateRidge(epsilon=1.0, delta=DELTA, bound=1.0, label_bound=1.0)
    return ((model.fit(t.rows, t.target).predict(t.rows) - t.target) ** 2).mean()


def principal_components(t):
    """Share of the squares that two directions leave."""
    model = PrivatePCA(epsilon=1.0, delta=DELTA, bound=1.0, n_components=2).fit(t.rows)
    return 1 - (model.transform(t.rows) ** 2).sum() / (t.rows**2).sum()


def logistic_regression(t):
    """Share of wrong labels."""
    model = PrivateLogisticRegression(epsilon=1.0, delta=DELTA, bound=1.0)
    return 1 - model.fit(t.rows, t.label).score(t.rows, t.label)


TASKS = {
    task.__name__: task
    for task in (
        count_of_those_who,
        histogram,
        mean_of_a_number,
        variance,
        covariances,
        median,
        quantiles,
        trimmed_mean,
        distribution_function,
        all_ranges,
        contingency_table,
        heat_map,
        means_of_public_groups,
        means_of_private_groups,
        unknown_categories,
        ten_most_frequent,
        pairs_of_twenty_columns,
        users_with_several_rows,
        kendalls_tau,
        ridge,
        principal_components,
        logistic_regression,
    )
}


def truths(t):
    """By pandas and numpy. Of fits the least that can be lost, by scikit-learn's without privacy."""
    from sklearn.linear_model import LinearRegression, LogisticRegression

    table = t.table
    height = np.sort(table["height"])
    both = table[["age", "height"]]
    words = t.word.value_counts()
    _, sizes, _ = np.linalg.svd(t.rows)
    least = LinearRegression().fit(t.rows, t.target).predict(t.rows)
    likely = LogisticRegression(C=1e6).fit(t.rows, t.label)
    ages = np.cumsum(np.bincount(table["age"] - 18, minlength=72)) / t.n
    bins = np.bincount(np.digitize(height, np.linspace(140, 210, 17)[1:-1]), minlength=16) / t.n
    below = np.concatenate([[0], bins.cumsum()])
    tables = []
    for i in range(20):
        for j in range(i + 1, 20):
            tables.append(np.bincount(t.bits[:, i] + 2 * t.bits[:, j], minlength=4))
    map, *_ = np.histogram2d(
        *both.to_numpy().T, bins=[np.linspace(17, 90, 33), np.linspace(140, 210, 33)]
    )
    coded = [pd.cut(each, 8).cat.codes.to_numpy() for _, each in both.items()]
    grid = np.zeros((8, 8))
    np.add.at(grid, tuple(coded), 1)
    order = np.sign(np.arange(8)[:, None] - np.arange(8))
    tau = (grid * (order @ grid @ order.T)).sum() / (t.n * (t.n - 1))
    groups = table.groupby("town", observed=True)
    per_user = t.events.groupby("who")["hours"].mean()
    middle = np.quantile(height, (0.05, 0.25, 0.5, 0.75, 0.95))
    cut = int(0.1 * t.n)
    return {
        "count_of_those_who": [(~table["vote"]).sum(), table["vote"].sum()],
        "histogram": groups.size(),
        "mean_of_a_number": [height.mean()],
        "variance": [height.var()],
        "covariances": np.cov(both.T, bias=True).ravel(),
        "median": middle[2:3],
        "quantiles": middle,
        "trimmed_mean": [height[cut : t.n - cut].mean()],
        "distribution_function": ages,
        "all_ranges": [below[j + 1] - below[i] for i in range(16) for j in range(i, 16)],
        "contingency_table": table.groupby(["town", "vote"], observed=True).size(),
        "heat_map": map.ravel(),
        "means_of_public_groups": groups["height"].mean(),
        "means_of_private_groups": groups["height"].mean(),
        "unknown_categories": words,
        "ten_most_frequent": words.head(10),
        "pairs_of_twenty_columns": np.concatenate(tables),
        "users_with_several_rows": [per_user.mean()],
        "kendalls_tau": [tau],
        "ridge": ((least - t.target) ** 2).mean(),
        "principal_components": 1 - (sizes[:2] ** 2).sum() / (sizes**2).sum(),
        "logistic_regression": 1 - likely.score(t.rows, t.label),
    }


def squared(answer, truth):
    """Mean squared error; of words of those that are named, and of fits what is lost, squared."""
    if isinstance(answer, pd.Series):
        return float(((answer - truth[answer.index]) ** 2).mean())
    return float(np.square(np.asarray(answer) - np.asarray(truth)).mean())


@on_host
def measure(config, report):
    people = People(config.users)
    truth = truths(people)
    for name, task in TASKS.items():
        if config.only and name not in config.only:
            continue
        squares = []
        times = []
        for _ in range(config.runs):
            start = time.process_time()
            answer = task(people)
            times.append(time.process_time() - start)
            squares.append(squared(answer, truth[name]))
        body = inspect.getsource(task).splitlines()[2:]
        report.row(
            "tasks",
            task=name.replace("_", " "),
            lines=sum(bool(line.strip()) for line in body),
            error=math.sqrt(np.mean(squares)),
            cpu_seconds=np.median(times),
            named=len(answer) if isinstance(answer, pd.Series) else "",
        )
    if not config.peers:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.npz"
        people.saved(path)
        command = [config.peers, HERE / "tasks_peers.py", path, str(config.runs)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in told.splitlines():
        package, name, said, answers, seconds = json.loads(line)
        found = [pd.Series(one) if isinstance(one, dict) else one for one in answers]
        error = math.sqrt(np.mean([squared(one, truth[name]) for one in found]))
        row = {"task": name.replace("_", " "), "package": package, "error": error}
        named = len(found[0]) if isinstance(found[0], pd.Series) else ""
        report.row("peers", **row, cpu_seconds=seconds, named=named, note=said)


SMOKE = Config(users=3_000, runs=2, only=("median", "unknown_categories", "logistic_regression"))
EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
