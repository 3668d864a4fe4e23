"""Bytes of a secure sketch in the settings of Tables 3 to 5.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), "Distributed Differentially Private Data
Analytics via Secure
    Sketching", Tables 3 to 5: MB of all communication. Their seconds are of other machines;
    ``secure.py`` has ours.
Command:  python experiments/bench/sketching.py
Expected: MB equal to the paper's in every row, of Table 5 for two servers: its caption says S = 3,
but its MB (80.016
    for s = 1) are those of S = 2 and of Table 4's row for n = 500,000; three servers send 120.024.
    The rows of Table 5 are checked against both numbers of servers.
Output: results/bench/sketching/captions.csv
Artifact: Burkhardt et al. (2025) | Tables 3 to 5
Status: agrees in MB, Table 5 with S = 2 where its caption says 3
Time: at once, with --smoke too.
"""

from dataclasses import dataclass

from torchdp.simulate import Experiment

COLUMNS = 10
HEIGHT = 100
CAPTION = {3: 3, 4: 2, 5: 3}  # servers
# table, clients, copies, servers, the paper's MB; Table 5's caption says 3 servers, its MB are
# those of 2
PAPER = (
    (3, 100_000, 1, 3, 24.024),
    (3, 250_000, 1, 3, 60.024),
    (3, 500_000, 1, 3, 120.024),
    (3, 750_000, 1, 3, 180.024),
    (3, 1_000_000, 1, 3, 240.024),
    (4, 100_000, 1, 2, 16.016),
    (4, 250_000, 1, 2, 40.016),
    (4, 500_000, 1, 2, 80.016),
    (4, 750_000, 1, 2, 120.016),
    (4, 1_000_000, 1, 2, 160.016),
    (5, 500_000, 1, 2, 80.016),
    (5, 500_000, 10, 2, 800.016),
    (5, 500_000, 20, 2, 1600.016),
    (5, 500_000, 30, 2, 2400.016),
    (5, 500_000, 40, 2, 3200.016),
    (5, 500_000, 50, 2, 4000.016),
)


@dataclass(frozen=True)
class Config:
    pass


def measure(config, report):
    """MB of every row of the paper's tables for the servers that its caption states, and for those
    that fit.
    """
    for table, clients, copies, servers, megabytes in PAPER:
        of_one_server = (copies * clients + HEIGHT) * COLUMNS * 8 / 1e6
        report.row(
            "captions",
            table=table,
            n=clients,
            s=copies,
            paper_MB=megabytes,
            MB=servers * of_one_server,
            MB_as_stated=CAPTION[table] * of_one_server,
        )


EXPERIMENT = Experiment(measure, Config(), Config())

if __name__ == "__main__":
    EXPERIMENT.main()
