"""Five jobs of Spark's Structured Streaming guide: as in the guide, with frames, and as CQL.

`spark_…` takes DataFrames and returns one; `frames_…` takes the same DataFrames and a session; the text reads streams
that are registered as `i` (impressions), `c` (clicks), `w` (words), `s` (sales) and the table `p` (products).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import count, expr, window

from anabranch.api import Frame, Session

WITHIN_AN_HOUR = """
    clickAdId = impressionAdId AND
    clickTime >= impressionTime AND
    clickTime <= impressionTime + interval 1 hour
"""


# --- an inner join with a time range ---------------------------------------------------------------------------------


def spark_inner(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    return impressions.join(clicks, expr(WITHIN_AN_HOUR))


def frames_inner(session: Session, impressions: DataFrame, clicks: DataFrame) -> Frame:
    return session.frame(impressions).alias("i").join(session.frame(clicks).alias("c"), expr(WITHIN_AN_HOUR))


INNER = f"SELECT * FROM i JOIN c ON {WITHIN_AN_HOUR}"


# --- an outer join ---------------------------------------------------------------------------------------------------


def spark_outer(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    return impressions.join(clicks, expr(WITHIN_AN_HOUR), "leftOuter")


def frames_outer(session: Session, impressions: DataFrame, clicks: DataFrame) -> Frame:
    return session.frame(impressions).alias("i").join(session.frame(clicks).alias("c"), WITHIN_AN_HOUR, "leftOuter")


OUTER = f"SELECT * FROM i LEFT JOIN c ON {WITHIN_AN_HOUR}"


# --- a join, then a windowed aggregation -----------------------------------------------------------------------------


def spark_counts(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    joined = impressions.join(clicks, expr(WITHIN_AN_HOUR), "leftOuter")
    return joined.groupBy(window("impressionTime", "1 hour"), "impressionAdId").agg(count("clickAdId").alias("clicks"))


def frames_counts(session: Session, impressions: DataFrame, clicks: DataFrame) -> Frame:
    joined = session.frame(impressions).alias("i").join(session.frame(clicks).alias("c"), WITHIN_AN_HOUR, "leftOuter")
    return joined.groupBy(window("impressionTime", "1 hour"), "impressionAdId").agg(count("clickAdId").alias("clicks"))


COUNTS = f"""
    SELECT window(impressionTime, '1 hour'), impressionAdId, COUNT(clickAdId) AS clicks
    FROM i LEFT JOIN c ON {WITHIN_AN_HOUR}
    GROUP BY window(impressionTime, '1 hour'), impressionAdId
"""


# --- a join with a static DataFrame ----------------------------------------------------------------------------------


def spark_static(sales: DataFrame, products: DataFrame) -> DataFrame:
    return sales.join(products, "type", "left_outer")


def frames_static(session: Session, sales: DataFrame, products: DataFrame) -> Frame:
    return session.frame(sales).alias("s").join(session.frame(products).alias("p"), "type", "left_outer")


STATIC = "SELECT * FROM s LEFT JOIN p USING (type)"


# --- counts in sliding windows ---------------------------------------------------------------------------------------


def spark_words(words: DataFrame) -> DataFrame:
    return words.groupBy(window(words.timestamp, "10 minutes", "5 minutes"), words.word).count()


def frames_words(session: Session, words: DataFrame) -> Frame:
    return session.frame(words).alias("w").groupBy(window(words.timestamp, "10 minutes", "5 minutes"), "word").count()


WORDS = """
    SELECT window(timestamp, '10 minutes', '5 minutes'), word, COUNT(*) AS count
    FROM w GROUP BY window(timestamp, '10 minutes', '5 minutes'), word
"""
