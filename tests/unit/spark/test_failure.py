"""Errors of Python workers, as the driver shows them."""

from __future__ import annotations

import sys

import pytest
from pyspark.errors import PythonException

from anabranch.errors import HostError
from anabranch.spark.failure import evaluating


@pytest.mark.parametrize(
    ("raised", "hint"),
    [
        ("ModuleNotFoundError: No module named 'anabranch'", f"set PYSPARK_PYTHON={sys.executable} before"),
        ("ValueError: no number", "if the sources use Python functions, look there first"),
    ],
)
def test_a_worker_without_the_environment_of_the_driver_is_told(raised: str, hint: str) -> None:
    text = f'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    import x\n{raised}\n'
    with pytest.raises(HostError, match="a Python worker failed on batch 3") as caught, evaluating(3):
        raise PythonException(text)
    assert caught.value.detail == raised
    assert hint in (caught.value.hint or "")
