"""Three statistics of real data under local differential privacy: private estimates, predicted and measured error.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): AUC, Kendall's tau, Gini's mean difference.
Command:  python3 run.py demo        (or: python experiments/pairwise/demo.py)
Expected: measured RMSE within a few per cent of the predicted one; estimates within about two of them of the truth.
Data: tables that ship with scikit-learn (breast cancer, diabetes), resampled with replacement to 100,000 users:
    real values, but not that many real people.
Output: results/pairwise/demo/demo.csv, errors.csv, error_vs_n.png.
Artifact: Ghazi et al. (2023) | AUC, Kendall's tau, Gini
Status: agrees
Time: about 30 s on 2 CPU cores; --smoke in 10 s.
"""

import contextlib
import csv
import io
import json
import shlex
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdp import cli, simulate
from torchdp.cli.estimate import ask
from torchdp.cli.questions import PROTOCOLS
from torchdp.pairwise import PairwiseStatistic
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Trial
from torchdp.simulate.plots import write_csv


@dataclass(frozen=True)
class Config:
    users: int = 100_000
    epsilon: float = 1.0
    sizes: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
    trials: int = 1_000
    block_size: int = 500


Asked = tuple[PairwiseStatistic, Tensor]  # and the users' counts of types
QUESTIONS = {
    "auc": "--statistic auc --columns score malignant --bounds score=0:1 --bins 32",
    "kendall": "--statistic kendall --columns bmi progression --bounds bmi=15:45 progression=0:400 --bins 12",
    "gini-mean-difference": "--statistic gini-mean-difference --columns progression "
    "--bounds progression=0:400 --bins 64",
}


def breast_cancer():
    """Scores of a logistic regression on one feature, fitted to one half of the patients, on the other half."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer()
    # alone, or the task is too easy
    texture = data.data[:, [list(data.feature_names).index("mean texture")]]
    train, test, label, truth = train_test_split(
        texture, 1 - data.target, test_size=0.5, random_state=0
    )
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, label)
    return {"score": model.predict_proba(test)[:, 1].tolist(), "malignant": truth.tolist()}


def diabetes():
    """Body mass index and disease progression after one year."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    return {"bmi": data.data[:, 2].tolist(), "progression": data.target.tolist()}


def write_users(table, path, users):
    """A CSV of ``users`` rows drawn from the table with replacement."""
    rows = list(zip(*table.values(), strict=True))
    generator = keyed_generator(path.name.encode(), "cpu")
    chosen = torch.randint(len(rows), (users,), device="cpu", generator=generator).tolist()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(rows[index] for index in chosen)


def run(arguments):
    """``torchdp estimate`` with these arguments; what it printed as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = cli.main([*arguments, "--json"])
    if code:
        raise SystemExit(code)
    return json.loads(output.getvalue())


def measure(config, report):
    # an AUC of the fewest users: the figure shows its error
    warnings.filterwarnings("ignore", "the denominator")
    folder = report.folder / "users"
    folder.mkdir(exist_ok=True)
    write_users(breast_cancer(), folder / "breast_cancer.csv", config.users)
    write_users(diabetes(), folder / "diabetes.csv", config.users)
    report.say(
        f"Tables from scikit-learn, resampled with replacement to {config.users} users; local DP of one user.\n"
    )
    answers = {}
    questions = {}
    for name, words in QUESTIONS.items():
        table = folder / ("breast_cancer.csv" if name == "auc" else "diabetes.csv")
        arguments = [
            "estimate",
            "--csv",
            str(table),
            *words.split(),
            "--epsilon",
            f"{config.epsilon:g}",
        ]
        arguments += [
            "--trust",
            "local",
            "--protocol",
            "one-message",
        ]  # its error is measured below, at the cost of its sums
        report.say("$ torchdp " + shlex.join(arguments))
        question, [(_, types)], _ = ask(cli.parser().parse_args(arguments))
        questions[name] = question.asked, torch.bincount(types, minlength=question.asked.types)
        answers[name] = run(arguments)
    rows = errors(questions, config, report)
    for name, answer in answers.items():
        key = {
            "statistic": name,
            "protocol": answer["protocol"],
            "epsilon": config.epsilon,
            "n": config.users,
        }
        row = next(row for row in rows if row.config == key)
        low, high = (max(0.0, end) ** 0.5 for end in row.moments.interval())
        report.row(
            "demo",
            statistic=name,
            protocol=answer["protocol"],
            true=truth(questions[name]),
            estimate=answer["estimate"],
            predicted_rmse=row.facts["predicted_mse"] ** 0.5,
            measured_rmse=row.moments.mean**0.5,
            low=low,
            high=high,
        )
    report.say(
        f"\nTrue value: of these {config.users} users on the stated bins; low, high: 95 % of the measured RMSE."
    )
    report.say(f"Guarantee: {answer['guarantee']}.\n")


def truth(question: Asked):
    statistic, counts = question
    return float(statistic.exact(counts))


def errors(questions: dict[str, Asked], config, report):
    """Measured errors against n, as a store, a table and a figure."""

    def make_trial(settings: dict[str, Any]) -> Trial:
        statistic, users = questions[settings["statistic"]]
        protocol = PROTOCOLS[settings["protocol"]](statistic, settings["epsilon"])
        # the same shares of n users
        counts = (users.double() / users.sum() * settings["n"]).round().long()
        exact = statistic.exact(counts)

        def squared_error(generator, size):
            drawn = protocol.sample_estimate(counts, generator=generator, sample_shape=(size,))
            return (drawn.value - exact).square()

        return Trial(squared_error, {"predicted_mse": float(protocol.predicted_mse(counts))})

    grid = [
        {"statistic": name, "protocol": protocol, "epsilon": config.epsilon, "n": n}
        for name in QUESTIONS
        for protocol in PROTOCOLS
        for n in sorted({*config.sizes, config.users})
    ]
    store = report.folder / "results.jsonl"
    store.unlink(missing_ok=True)  # a demo measures anew; `torchdp sweep` resumes
    rows = simulate.sweep(
        make_trial, grid, trials=config.trials, seed=0, store=store, block_size=config.block_size
    )
    write_csv(rows, report.folder / "errors.csv")
    title = f"scikit-learn tables resampled to n users, local DP of one user, epsilon = {config.epsilon:g}"
    figure = simulate.error_curves(rows, x="n", lines="protocol", panels="statistic", title=title)
    figure.savefig(report.folder / "error_vs_n.png", dpi=150)
    return rows


EXPERIMENT = Experiment(
    measure, Config(), Config(users=5_000, sizes=(10**4, 10**6), trials=100, block_size=50)
)

if __name__ == "__main__":
    EXPERIMENT.main()
