"""Private calls of Spark are in one package, so that a new version of Spark is a change of that package."""

from __future__ import annotations

import re
from pathlib import Path

import anabranch

SOURCE = Path(anabranch.__file__).parent
PRIVATE = re.compile(
    r"\._(j[a-z]*[A-Z]\w*|jvm|jdf|jsq|jsc|jc|jrdd|jwrite|jreader|sc|gateway|active_spark_context|accumulatorServer)\b"
    r"|\bjvm\.(org|java|scala)\."
    r"|\.(getDeclaredField|getMethod|forName|setAccessible|queryExecution|sessionState)\("
)


def test_only_the_package_internals_uses_private_attributes_and_classes_of_spark() -> None:
    inside = SOURCE / "spark" / "internals"
    found = {path: PRIVATE.findall(path.read_text("utf8")) for path in SOURCE.rglob("*.py")}
    using = {path for path, calls in found.items() if calls}
    assert {path.name for path in using} >= {"driver.py", "plans.py", "queries.py", "writers.py"}, (
        "the pattern is blind"
    )
    assert not {str(path.relative_to(SOURCE)) for path in using if inside not in path.parents}
