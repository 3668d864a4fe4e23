"""opacus: its PRV accountant."""

import side
from opacus.accountants import PRVAccountant


def sampled(multiplier, chance, times, delta):
    def work():
        accountant = PRVAccountant()
        accountant.history = [(multiplier, chance, times)]
        return accountant.get_epsilon(delta=delta)

    return (work,)


if __name__ == "__main__":
    side.main("opacus", {"sampled sums": sampled})
