"""How far the share groups of a Kafka have come, asked with Kafka's own command.

The client library cannot be asked, and the product does not know.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

_COMMAND = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_UNKNOWN = "-"
_ANSWER = 60.0


@dataclass(frozen=True)
class ShareRest:
    """What is left of a partition: ``count`` messages, all of them at ``start`` or behind it."""

    start: int
    count: int


def share_rests(library: str, servers: str, group: str, topic: str) -> dict[int, ShareRest]:
    """Of each partition that the group knows.

    Raises:
        RuntimeError: there is no answer.
    """
    command = ["java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", f"{library}/*", _COMMAND]
    asked = ["--bootstrap-server", servers, "--describe", "--group", group]
    ran = subprocess.run(
        [*command, *asked], capture_output=True, text=True, timeout=_ANSWER, check=False
    )
    if ran.returncode != 0 or "Error" in ran.stdout:
        raise RuntimeError(f"{group} cannot be asked:\n{ran.stdout}{ran.stderr}")
    return dict(_read(ran.stdout, group, topic))


def _read(table: str, group: str, topic: str) -> Iterator[tuple[int, ShareRest]]:
    for line in table.splitlines():
        cells = line.split()
        if cells[:2] == [group, topic] and _UNKNOWN not in cells[2:5]:
            number, start, count = map(int, cells[2:5])
            yield number, ShareRest(start, count)
