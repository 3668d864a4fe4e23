"""Methods that answer the same question on the same data, measured side by side."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

# by what is done afterwards ("": nothing): squared error, one for each trial
Squares = dict[str, Tensor]
# standard errors between which a rival is looked at again, in so many times the trials
CLOSE = 1.5
CLEAR = 5.0
AGAIN = 4


@dataclass(frozen=True)
class Cell:
    """One question: n users of k types at epsilon, their histogram as ``data`` says."""

    task: str
    k: int
    n: int
    epsilon: float
    data: str

    @property
    def key(self):
        return asdict(self)

    @property
    def seed(self):
        return "/".join(map(str, self.key.values())).encode()

    @property
    def counts(self):
        """Whole users of each type, (k,) int64."""
        h = shares(self.data, self.k)
        counts = (h * self.n).floor().long()
        counts[h.argmax()] += self.n - counts.sum()
        return counts


@dataclass(frozen=True)
class Method:
    """Draws the squared errors of so many trials.

    side: chosen, own or outside. predicted: RMSE of what is drawn, None where nobody says.
    """

    name: str
    side: str
    draw: Callable[[int], Squares]
    predicted: float | None = None


def shares(data, k):
    """A histogram of k types, (k,), positive, of sum 1; for a grid or labelled scores k is a
    square, or even.
    """
    if data in ("independent", "related"):
        x = torch.linspace(-2, 2, math.isqrt(k), dtype=torch.float64)
        r = 0.6 if data == "related" else 0.0
        square = x[:, None].square() + x.square() - 2 * r * x[:, None] * x
        h = torch.exp(-square / (2 - 2 * r * r)).flatten()
    elif data in ("30 % positive", "5 % positive"):
        positive = float(data.split()[0]) / 100
        x = (torch.arange(k // 2, dtype=torch.float64) + 0.5) / (k // 2)
        negatives = x * (1 - x).pow(2)  # Beta(2, 3)
        positives = x.pow(2) * (1 - x)  # Beta(3, 2)
        h = torch.cat(
            [(1 - positive) * negatives / negatives.sum(), positive * positives / positives.sum()]
        )
    else:
        x = (torch.arange(k, dtype=torch.float64) + 0.5) / k
        if data == "uniform":
            h = torch.ones_like(x)
        elif data == "two peaks":
            first = torch.exp(-((x - 0.25) / 0.06).square() / 2)
            second = torch.exp(-((x - 0.7) / 0.06).square() / 2)
            h = first + 2 * second + 1e-3
        elif data == "skewed":
            h = 1 / (k * x + 0.5)
        elif data == "one frequent":
            h = torch.ones_like(x)
            h[k // 3] = 49.0 * (k - 1)  # 98 % of all users
        else:
            raise ValueError(f"no histogram is called {data}")
    return h / h.sum()


def apart(ours, other):
    """How many standard errors the other's mean square lies below ours."""
    spread = (ours.var() / len(ours) + other.var() / len(other)).sqrt()
    return float((ours.mean() - other.mean()) / spread)


def rmse(squares):
    """Root of the mean, and its standard error."""
    root = math.sqrt(float(squares.mean()))
    return root, float(squares.std()) / math.sqrt(len(squares)) / (2 * root)


def contest(methods: list[Method], trials, preferred):
    """A row for each method and what is done afterwards; the first method is the chosen one.

    z: standard errors by which it lies below the chosen one left as it is, or, done something
    afterwards, below the better of the chosen one with the same done and with the first of
    ``preferred`` done that can be. Who comes near is measured again in four times the trials, and
    so is the chosen one.
    """
    first, *others = methods
    few = first.draw(trials)
    ours_best = next(name for name in preferred if name in few)
    many = {}
    rows = [_row(first, name, squares, 0.0) for name, squares in few.items()]
    for other in others:
        ours = few
        theirs = other.draw(trials)
        leads = [_lead(few, name, squares, ours_best) for name, squares in theirs.items()]
        if any(CLOSE < lead < CLEAR for lead in leads):
            many = many or first.draw(AGAIN * trials)
            ours = many
            theirs = other.draw(AGAIN * trials)
        for name, squares in theirs.items():
            rows.append(_row(other, name, squares, _lead(ours, name, squares, ours_best)))
    for row in rows:
        row["main"] = (
            row["method"] == first.name
            and row["side"] == first.side
            and row["afterwards"] == ours_best
        )
    return rows


def _lead(ours, name, theirs, best):
    if not name:
        return apart(ours[""], theirs)
    return min(apart(ours[each], theirs) for each in {name, best} & set(ours))


def _row(method, name, squares, z):
    root, error = rmse(squares)
    predicted = None if name else method.predicted
    words = {"side": method.side, "method": method.name, "afterwards": name}
    return {**words, "rmse": root, "standard_error": error, "predicted": predicted, "z": z}


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/local_accuracy.py")
