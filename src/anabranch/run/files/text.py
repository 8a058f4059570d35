"""Files of text lines: what CSV and JSON lines have in common.

Such a file has no metadata, so the driver reads it once to see whether it is plain. Invariant: a file that is not
wholly plain is left to Spark.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from anabranch.run.files.form import Columns, Footer, OneByOne, Unsure, reading

MOST_BYTES = 256 * 2**20
"""Of a larger file, Spark's tasks read a part each."""
PACKED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".xz", ".zst")


class TextForm(OneByOne):
    """A form of files of text lines."""

    @abstractmethod
    def can_hold(self, kind: pa.DataType) -> bool:
        """Returns whether slots read columns of a type from files of this form."""

    @abstractmethod
    def rows(self, data: bytes, wanted: Columns, *, use_threads: bool) -> pa.Table:
        """Returns the columns of the lines of a file; raises `Unsure` if they are not plain."""

    def look_into(self, path: str, wanted: Columns) -> Footer:
        try:
            if path.endswith(PACKED):
                return Footer(why_not="it is compressed")
            if (size := os.path.getsize(path)) > MOST_BYTES:
                return Footer(why_not=f"it has {size:,} bytes, more than {MOST_BYTES:,}")
            data = Path(path).read_bytes()
            self.rows(data, wanted, use_threads=True)
        except (OSError, Unsure) as error:
            return Footer(why_not=str(error))
        return Footer((len(data),))

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        with reading(path):
            return self.table(path, wanted)

    def table(self, source: str | pa.NativeFile, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        """Returns columns of a file; raises `Unsure` if its lines are not plain."""
        data = Path(source).read_bytes() if isinstance(source, str) else source.readall()
        # Threads of Arrow's own would compete with the other slots.
        return self.rows(data, wanted, use_threads=False)
