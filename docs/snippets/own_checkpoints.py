"""Your own checkpoint store: one JSON file per message."""

# --8<-- [start:store]
import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path


class FolderCheckpointStore:
    """Stores the steps of each envelope in a separate file, for a single process."""

    persistent = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open(self) -> None:
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)

    async def close(self) -> None: ...

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        return {step: base64.b64decode(value) for step, value in self._read(envelope_id).items()}

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        steps = self._read(envelope_id) | {step: base64.b64encode(value).decode()}
        await asyncio.to_thread(self._file(envelope_id).write_text, json.dumps(steps))

    async def keep(self, envelope_id: str, ttl: float) -> None: ...  # kept until deleted

    async def delete(self, envelope_id: str) -> None:
        await asyncio.to_thread(self._file(envelope_id).unlink, missing_ok=True)

    def _file(self, envelope_id: str) -> Path:
        return self._folder / f"{envelope_id}.json"

    def _read(self, envelope_id: str) -> dict[str, str]:
        file = self._file(envelope_id)
        return json.loads(file.read_text()) if file.exists() else {}


# --8<-- [end:store]


async def main() -> None:
    from matador import CheckpointStore

    store: CheckpointStore = FolderCheckpointStore(Path("steps"))
    await store.open()
    await store.save("envelope-1", "charge-card", b'{"value": 5}')
    print(await store.load("envelope-1"))
    await store.delete("envelope-1")
    print(await store.load("envelope-1"))


if __name__ == "__main__":
    asyncio.run(main())
