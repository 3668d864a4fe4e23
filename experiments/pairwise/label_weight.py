"""How heavy the AUC's label coordinate should be: predicted error against ``label_weight``.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 5, where the class sizes take half of epsilon.
Command:  python experiments/pairwise/label_weight.py
Expected: in each row the default, 0.1, is within 8 % of the row's best, in the last, where positives are 2 %, 14 %.
Output: results/pairwise/label_weight/label_weight.csv.
Artifact: Ghazi et al. (2023) | section 5
Status: agrees
Time: a second (closed form, nothing is drawn); --smoke uses 8 scores instead of 64.
"""

from dataclasses import dataclass

import torch

from torchdp import pairwise
from torchdp.simulate import Experiment, Report

WEIGHTS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
EPSILON, USERS = 1.0, 10**6


@dataclass(frozen=True)
class Config:
    scores: int = 64


def measure(config: Config, report: Report) -> None:
    k = config.scores
    scores = torch.linspace(-3, 3, k, dtype=torch.float64)
    report.say(
        f"Predicted RMSE of the AUC, {k} scores, epsilon = {EPSILON:g}, n = {USERS}; normal scores, `apart` apart"
    )
    for positive, apart in ((0.5, 0.0), (0.5, 1.2), (0.5, 4.0), (0.1, 1.2), (0.1, 4.0), (0.02, 4.0)):
        classes = [torch.exp(-((scores - shift) ** 2) / 2) for shift in (-apart / 2, apart / 2)]
        parts = [(1 - positive) * classes[0] / classes[0].sum(), positive * classes[1] / classes[1].sum()]
        histogram = torch.cat(parts)
        errors = {}
        for weight in WEIGHTS:
            statistic = pairwise.auc(k, label_weight=weight)
            errors[weight] = float(pairwise.OneMessage(statistic, EPSILON).predicted_mse(histogram * USERS)) ** 0.5
        report.row(
            "label_weight",
            positive=positive,
            apart=apart,
            AUC=statistic.exact(histogram * USERS),
            **{f"w={weight:g}": error for weight, error in errors.items()},
            default_over_best=errors[0.1] / min(errors.values()),
        )


EXPERIMENT = Experiment(measure, Config(), Config(8))

if __name__ == "__main__":
    EXPERIMENT.main()
