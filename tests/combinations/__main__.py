"""`python -m tests.combinations` writes `docs/combinations.md`."""

from pathlib import Path

from tests.combinations.page import PAGE, page

Path(PAGE).write_text(page())
