"""How heavy the AUC's label coordinate should be: predicted error against ``label_weight``.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 5, where the class sizes take half of epsilon.
Command:  python experiments/pairwise/label_weight.py
Expected: in each row the default, 0.1, is within 8 % of the row's best.
Time: a second (closed form, nothing is drawn); --smoke uses 8 scores instead of 64.
"""

import argparse

import torch

from torchdp import pairwise

WEIGHTS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
EPSILON, USERS = 1.0, 10**6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    k = 8 if arguments.parse_args().smoke else 64
    scores = torch.linspace(-3, 3, k, dtype=torch.float64)
    print(
        f"Predicted RMSE of the AUC, {k} scores, epsilon = {EPSILON:g}, n = {USERS}; normal scores, `apart` apart"
    )
    print(
        f"{'positive':>9}{'apart':>7}{'AUC':>8}"
        + "".join(f"{f'w={w:g}':>10}" for w in WEIGHTS)
        + f"{'0.1/best':>10}"
    )
    for positive, apart in ((0.5, 0.0), (0.5, 1.2), (0.5, 4.0), (0.1, 1.2), (0.1, 4.0), (0.02, 4.0)):
        classes = [torch.exp(-((scores - shift) ** 2) / 2) for shift in (-apart / 2, apart / 2)]
        parts = [(1 - positive) * classes[0] / classes[0].sum(), positive * classes[1] / classes[1].sum()]
        histogram = torch.cat(parts)
        errors = {}
        for weight in WEIGHTS:
            statistic = pairwise.auc(k, label_weight=weight)
            errors[weight] = pairwise.OneMessage(statistic, EPSILON).predicted_mse(histogram, USERS) ** 0.5
        value = float(statistic.exact(histogram * USERS))
        cells = "".join(f"{error:>10.5f}" for error in errors.values())
        print(f"{positive:>9g}{apart:>7g}{value:>8.3f}{cells}{errors[0.1] / min(errors.values()):>10.3f}")


if __name__ == "__main__":
    main()
