"""A three-way join through the Python API, over the small files in examples/data.

Run it in a clone of the repository: .venv/bin/python examples/three_streams.py
"""

from __future__ import annotations

from pathlib import Path

import anabranch

DATA = Path(__file__).parent / "data"
COLUMNS = {
    "orders": "ts timestamp, order_id bigint, customer string, amount decimal(10,2)",
    "payments": "ts timestamp, order_id bigint, method string, paid decimal(10,2)",
    "shipments": "ts timestamp, order_id bigint, carrier string",
}


def main() -> None:
    spark = anabranch.local_session(2)
    session = anabranch.Session(spark)
    for name, columns in COLUMNS.items():
        frame = spark.readStream.schema(columns).json(str(DATA / name))
        session.register(name, frame, event_time="ts", watermark="5 seconds")

    query = session.sql(
        """
        SELECT o.order_id, o.customer, p.method, s.carrier
        FROM orders [RANGE 10 MINUTES] AS o, payments [RANGE 5 MINUTES] AS p, shipments [RANGE 5 MINUTES] AS s
        WHERE o.order_id = p.order_id AND p.order_id = s.order_id AND p.paid >= o.amount
        """
    )
    query.explain()

    handle = query.writeStream.format("memory").queryName("shipped").trigger(availableNow=True).start()
    handle.awaitTermination()
    spark.table("shipped").orderBy("order_id").show()
    spark.stop()


if __name__ == "__main__":
    main()
