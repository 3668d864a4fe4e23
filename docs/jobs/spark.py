"""Users of a Spark table: each batch of a partition is told, the driver adds and releases.

Command:  spark-submit docs/jobs/spark.py users.parquet type
"""

import functools
import pickle
import sys

import pyarrow
from pyspark.sql import SparkSession

from torchdp import distributed, pairwise, queries

PROTOCOL = queries.CentralAnswers(pairwise.unequal(16), epsilon=1.0)


def tell(batches):
    """On the executors: a part of a curator's is as secret as the rows, it has no noise yet."""
    for batch in batches:
        part = distributed.told(PROTOCOL, batch.column(0).to_numpy())
        yield pyarrow.RecordBatch.from_pydict({"part": [pickle.dumps(part)]})


def main(path, column):
    frame = SparkSession.builder.getOrCreate().read.parquet(path).select(column)
    parts = [pickle.loads(row.part) for row in frame.mapInArrow(tell, "part binary").collect()]
    total = functools.reduce(functools.partial(distributed.added, PROTOCOL), parts)
    print(PROTOCOL.analyse(distributed.released(PROTOCOL, total)))


if __name__ == "__main__":
    main(*sys.argv[1:])
