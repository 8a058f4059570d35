"""A Kafka cluster for tests and benchmarks: librdkafka's mock cluster, in a process of its own.

    with broker({"orders": 2}) as cluster:
        cluster.send("orders", [b"{}"])

Invariant: the process ends with the one that started it. Limit: a partition keeps its latest five megabytes, and the
mock does not hide the records of aborted transactions.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BROKERS = 1


@dataclass(frozen=True)
class Cluster:
    """A running mock cluster."""

    bootstrap: str
    process: subprocess.Popen[str]

    def ask(self, *words: object) -> None:
        """Executes a command of `_COMMANDS`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if answer != "0":
            raise RuntimeError(f"the mock cluster answers {answer or 'nothing'} to {words}")

    def send(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        keys: Iterable[bytes | None] | None = None,
        times: Iterable[int] | None = None,
        compression: str = "none",
    ) -> None:
        """Writes records, with times in milliseconds, and waits until the broker has them."""
        import confluent_kafka

        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": "5", "compression.type": compression}
        )
        each_key, each_time = iter(keys or ()), iter(times or ())
        for value in values:
            given: dict[str, Any] = {"key": next(each_key, None), "partition": partition}
            if (time := next(each_time, None)) is not None:
                given["timestamp"] = time
            while True:
                try:
                    producer.produce(topic, value, **given)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush()


@contextlib.contextmanager
def broker(topics: Mapping[str, int]) -> Iterator[Cluster]:
    """Starts a cluster with topics, by the number of their partitions."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            found = Cluster(process.stdout.readline().strip(), process)
            for topic, partitions in topics.items():
                found.ask("create", topic, partitions, 1)
            yield found
        finally:
            process.stdin.close()
            process.wait(10)


_COMMANDS = {
    "create": ("rd_kafka_mock_topic_create", (str, int, int)),
    "forget": ("rd_kafka_mock_partition_delete_records", (str, int, int)),
    "down": ("rd_kafka_mock_broker_set_down", (int,)),
    "up": ("rd_kafka_mock_broker_set_up", (int,)),
}
_TYPES = {str: ctypes.c_char_p, int: ctypes.c_int64}


def _serve() -> None:
    library = _library()
    text = ctypes.create_string_buffer(512)
    client = library.rd_kafka_new(0, library.rd_kafka_conf_new(), text, ctypes.c_size_t(512))
    if not client:
        raise RuntimeError(text.value.decode())
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(ctypes.c_void_p(client), BROKERS))
    _say(library.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    for line in sys.stdin:
        word, *given = line.split()
        name, kinds = _COMMANDS[word]
        values = [
            _TYPES[kind](each.encode() if kind is str else int(each)) for kind, each in zip(kinds, given, strict=True)
        ]
        _say(getattr(library, name)(cluster, *values))


def _say(answer: object) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def _library() -> Any:
    import confluent_kafka

    folder = Path(confluent_kafka.__file__).parent
    bundled = sorted([*folder.parent.glob("confluent_kafka.libs/librdkafka*"), *folder.glob(".dylibs/librdkafka*")])
    library = ctypes.CDLL(str(bundled[0]))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


if __name__ == "__main__":
    _serve()
