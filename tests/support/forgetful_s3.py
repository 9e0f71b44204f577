"""An S3 server that ignores the conditions of requests, as some stores do: commits get lost there.

In memory, without signatures. Only what delta-rs asks for is answered. It runs in a process of its
own: delta-rs blocks all threads of the process that asks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "Tue, 17 Nov 2026 07:00:00 GMT"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    objects: dict[str, bytes]


class _Answer(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/").partition("/")[2]

    def _say(
        self, status: int, body: bytes = b"", size: int | None = None, between: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.send_header("Last-Modified", _DATE)
        self.send_header("ETag", '"1"')
        if between:
            self.send_header("Content-Range", between)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.server.objects[self._key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._say(200)

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self._key)
        self._say(404 if found is None else 200, size=len(found or b""))

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._key, None)
        self._say(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys: list[str] = re.findall("<Key>([^<]*)</Key>", body)
        for key in keys:
            self.server.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._say(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            prefix, after = (query.get(one, [""])[0] for one in ("prefix", "start-after"))
            self._say(200, self._listed(prefix, after, "delimiter" in query))
            return
        found = self.server.objects.get(self._key)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None or asked is None:
            self._say(404 if found is None else 200, found or b"")
            return
        part = found[int(asked[1]) : int(asked[2]) + 1]
        self._say(206, part, between=f"bytes {asked[1]}-{asked[2]}/{len(found)}")

    def _listed(self, prefix: str, after: str, by_folder: bool) -> bytes:
        files: list[str] = []
        folders: set[str] = set()
        for key in sorted(self.server.objects):
            if key.startswith(prefix) and key > after:
                rest = key.removeprefix(prefix)
                if by_folder and "/" in rest:
                    folders.add(f"{prefix}{rest.partition('/')[0]}/")
                else:
                    files.append(key)
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-17T07:00:00.000Z"
            f'</LastModified><ETag>"1"</ETag><Size>{len(self.server.objects[key])}</Size>'
            "</Contents>"
            for key in files
        )
        entries += "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        )
        return f"<ListBucketResult>{entries}</ListBucketResult>".encode()


@contextmanager
def forgetful_s3() -> Generator[str]:
    """Its endpoint."""
    command = [sys.executable, "-m", "tests.support.forgetful_s3"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def main() -> None:
    server = _Server(("127.0.0.1", 0), _Answer)
    server.objects = {}
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
