"""Three statistics of real data under local differential privacy: private estimates, predicted and
measured error.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): AUC, Kendall's tau, Gini's mean difference.
Command:  python3 run.py demo        (or: python experiments/pairwise/demo.py)
Expected: measured RMSE within a few per cent of the predicted one; estimates within about two of
them of the truth.
Data: tables that ship with scikit-learn (breast cancer, diabetes), resampled with replacement to
100,000 users:
    real values, but not that many real people.
Output: results/pairwise/demo/demo.csv. Errors against n: experiments/pairwise/error_vs_n.py.
Artifact: Ghazi et al. (2023) | AUC, Kendall's tau, Gini
Status: agrees
Time: a minute of one core; --smoke in 20 CPU-seconds.
"""

import contextlib
import csv
import io
import json
import shlex
from dataclasses import dataclass

import torch

from torchdp import cli
from torchdp.cli.estimate import ask
from torchdp.cli.questions import PROTOCOLS
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Moments


@dataclass(frozen=True)
class Config:
    users: int = 100_000
    epsilon: float = 1.0
    trials: int = 1_000


QUESTIONS = {
    "auc": "--statistic auc --columns score malignant --bounds score=0:1 --bins 32",
    "kendall": "--statistic kendall --columns bmi progression --bounds bmi=15:45 progression=0:400 --bins 12",
    "gini-mean-difference": "--statistic gini-mean-difference --columns progression "
    "--bounds progression=0:400 --bins 64",
}


def breast_cancer():
    """Scores of a logistic regression on one feature, fitted to one half of the patients, on the
    other half.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer()
    # alone, or the task is too easy
    names = list(data.feature_names)
    texture = data.data[:, [names.index("mean texture")]]
    train, test, label, truth = train_test_split(
        texture, 1 - data.target, test_size=0.5, random_state=0
    )
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, label)
    probabilities = model.predict_proba(test)
    return {"score": probabilities[:, 1].tolist(), "malignant": truth.tolist()}


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


def error(statistic, protocol, users, trials):
    """The value for these users, (k,) of each type; predicted and measured RMSE, the latter with
    its 95 % interval.
    """
    truth = statistic.exact(users)
    generator = keyed_generator(statistic.name.encode())
    drawn = protocol.sample_estimate(users, generator=generator, sample_shape=(trials,))
    squares = Moments.of((drawn.value - truth).square())
    low, high = squares.interval()
    return {
        "true": truth,
        "predicted_rmse": protocol.predicted_mse(users) ** 0.5,
        "measured_rmse": squares.mean**0.5,
        # of a few heavy squares the interval may reach below 0
        "low": max(0.0, low) ** 0.5,
        "high": high**0.5,
    }


def measure(config, report):
    folder = report.folder / "users"
    folder.mkdir(exist_ok=True)
    write_users(breast_cancer(), folder / "breast_cancer.csv", config.users)
    write_users(diabetes(), folder / "diabetes.csv", config.users)
    report.say(
        f"Tables from scikit-learn, resampled with replacement to {config.users} users; local DP of one user.\n"
    )
    rows = []
    for name, words in QUESTIONS.items():
        table = folder / ("breast_cancer.csv" if name == "auc" else "diabetes.csv")
        command = f"estimate --csv {shlex.quote(str(table))} {words} --epsilon {config.epsilon:g}"
        # its error is measured, at the cost of its sums
        command += " --trust local --protocol one-message"
        report.say(f"$ torchdp {command}")
        arguments = shlex.split(command)
        question, [(_, types)], _ = ask(cli.parser().parse_args(arguments))
        statistic = question.asked
        answer = run(arguments)
        protocol = PROTOCOLS[answer["protocol"]](statistic, config.epsilon)
        users = torch.bincount(types, minlength=statistic.types)
        cells = error(statistic, protocol, users, config.trials)
        rows.append({"statistic": name, "estimate": answer["estimate"], **cells})
    for row in rows:
        report.row("demo", **row)
    report.say(
        f"\nTrue value: of these {config.users} users on the stated bins; low, high: 95 % of the measured RMSE."
    )
    report.say(f"Guarantee: {answer['guarantee']}.\n")


EXPERIMENT = Experiment(measure, Config(), Config(users=5_000, trials=100))

if __name__ == "__main__":
    EXPERIMENT.main()
