"""``matador dashboard``: serves web pages about everything in a file that receives."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from matador.cli.commands import Connecting, File, a_location, a_path, option
from matador.cli.connection import missing_storage
from matador.cli.output import CommandError, UsageError, note, warn, wrong_usage
from matador.cli.receivers import look_at
from matador.cli.spark import SparkOptions
from matador.cli.store_options import StorageOption, storage_options
from matador.errors import ConfigurationError, MissingExtraError
from matador.jobs import JobProvider, Queue
from matador.loading import is_file, split_reference
from matador.observe.history import History
from matador.observe.sources import Source, Target

TOKEN = "MATADOR_DASHBOARD_TOKEN"
READ_TOKEN = "MATADOR_DASHBOARD_READ_TOKEN"
WEBHOOK = "MATADOR_DASHBOARD_WEBHOOK"
_LAST_PORT = 65535
_OWNER_ONLY = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the dashboard listens, and which users may use it."""

    port: Annotated[int, option("PORT", "The port to listen on.", min=0, max=_LAST_PORT)] = 8080
    host: Annotated[
        str, option("HOST", "The address to listen on. Any but this machine's needs a token.")
    ] = "127.0.0.1"
    token_file: Annotated[
        Path | None,
        option(
            "FILE",
            "A file with the token of operators, which may look and act; or lines `NAME: TOKEN`, "
            f"one for each. Default: ${TOKEN}.",
            parser=a_path,
        ),
    ] = None
    read_token_file: Annotated[
        Path | None,
        option(
            "FILE",
            f"The same for users that may only look. Default: ${READ_TOKEN}.",
            parser=a_path,
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        option("NAME", "A name by which browsers reach the dashboard. Can be repeated."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """What the dashboard shows, and the files it keeps."""

    webhook_file: Annotated[
        Path | None,
        option(
            "FILE",
            "A file with the address that is told when a problem begins or ends. Default: "
            f"${WEBHOOK}.",
            parser=a_path,
        ),
    ] = None
    mask: Annotated[
        list[str] | None,
        option("FIELD", "Never show the value of this payload field. Can be repeated."),
    ] = None
    history: Annotated[
        Path | None,
        option(
            "FILE",
            "The SQLite file with the history. Default: that of a History hook in FILE, or one in "
            "~/.local/state/matador.",
            parser=a_path,
        ),
    ] = None
    audit: Annotated[
        Path | None,
        option("FILE", "The file to record actions in. Default: beside it.", parser=a_path),
    ] = None
    lake: Annotated[
        str | None,
        option(
            "FOLDER",
            "The lake's folder, or its place in an object store (s3://bucket/lake), for its page.",
            parser=a_location,
        ),
    ] = None
    storage_option: StorageOption = None
    job_queue: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A job queue to show, besides those in FILE. Can be repeated.",
        ),
    ] = None
    job_provider: Annotated[
        str | None, option("URL", "Where the jobs of --job-queue are kept.")
    ] = None


def dashboard(
    file: File, *, listening: Listening, showing: Showing, spark: SparkOptions, common: Connecting
) -> None:
    """Serve web pages with queues, messages, jobs, dead letters and workers, until Ctrl-C.

    They show everything in FILE that receives messages: applications, job queues, RPC servers,
    subscribers and queue services. FILE:name shows one of them, FILE:one,two several.

    Only this machine can reach it, unless --host is given; then a token is required. Every action
    is recorded in an audit log.
    """
    try:
        from matador.dashboard.app import Dashboard
        from matador.dashboard.options import DashboardOptions, LakeSpark
        from matador.dashboard.server import listening as listen
        from matador.dashboard.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "jinja2"):
            raise
        raise MissingExtraError("matador dashboard", "dashboard") from error
    settings = spark.settings()
    if showing.lake is None and spark != SparkOptions():
        raise UsageError(
            "--master, --remote and --conf are for the lake's page: give --lake FOLDER"
        )
    if showing.lake is None and showing.storage_option:
        raise UsageError("--storage-option is for the lake's page: give --lake s3://bucket/lake")
    seen = look_at(file, common.level(logging.INFO))
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    services = _services(seen, showing)
    common.reach(*services)
    with wrong_usage(ConfigurationError):
        options = DashboardOptions(
            history=showing.history or _history(file, seen),
            audit=showing.audit,
            host=listening.host,
            port=listening.port,
            token=_tokens(listening.token_file, TOKEN),
            read_token=_tokens(listening.read_token_file, READ_TOKEN),
            allowed_hosts=tuple(listening.allowed_host or ()),
            webhook=_secret(showing.webhook_file, WEBHOOK) or None,
            mask=tuple(showing.mask or ()),
            lake=showing.lake,
            storage_options=storage_options(showing.storage_option),
            spark=LakeSpark(master=spark.master, remote=spark.remote, config=settings),
        )
        if showing.history is None:
            _make_folder(Path(options.history).parent)
        served = Dashboard(services, options)
        listener = listen(options)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def ready() -> None:
        common.show({"url": url, "history": str(options.history)}, remark=f"dashboard on {url}")
        if not options.needs_login:
            note("every user of this machine may use it; --token-file asks for a token")

    with contextlib.suppress(KeyboardInterrupt):  # the server has finished by then
        asyncio.run(serve(served, listener, ready))


def _history(file: str, seen: Sequence[Source]) -> Path:
    """The file of a history hook, or one for this file in the home folder."""
    for one in seen:
        for hook in one.service.hooks:
            if isinstance(hook, History):
                return hook.file
    where = split_reference(file)[0]
    name = str(Path(where).resolve()) if is_file(where) else where
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "matador"
    return folder / f"dashboard-{digest}.db"


def _make_folder(folder: Path) -> None:
    """Make the folder of the history, for its owner only.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder} ({error}): give --history FILE") from error


def _tokens(file: Path | None, variable: str) -> str | dict[str, str] | None:
    """A token, or those of several users by their names, from a file or from the environment.

    Raises:
        UsageError: the file cannot be read, is empty, or has a line without a name.
    """
    text = _secret(file, variable)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    named = [(name.strip(), token.strip()) for name, _, token in map(_split_name, lines)]
    if len(lines) == 1 and not named[0][0]:
        return lines[0]
    where = f"${variable}" if file is None else file
    for at, (name, _) in enumerate(named, 1):
        if not name or name in dict(named[: at - 1]):
            raise UsageError(f"line {at} of {where} needs a name of its own: write NAME: TOKEN")
    return dict(named)


def _split_name(line: str) -> tuple[str, str, str]:
    return line.partition(": ") if ": " in line else ("", "", line)


def _secret(file: Path | None, variable: str) -> str:
    """The text of a file that others should not read, or of a variable.

    Raises:
        UsageError: the file cannot be read, or is empty.
    """
    if file is None:
        return os.environ.get(variable, "").strip()
    try:
        found = file.read_text("utf-8").strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    if not found:
        raise UsageError(f"{file} is empty")
    if mode & _OWNER_ONLY:
        warn(f"others can read {file}: chmod 600 {file}")
    return found


def _services(seen: Sequence[Source], showing: Showing) -> list[Target]:
    """The services that the pages show.

    Raises:
        UsageError: a queue has no provider, or a provider no queue.
        CommandError: none of it was ever stored.
    """
    services: list[Target] = [one.service for one in seen]
    if showing.job_queue:
        if showing.job_provider is None:
            raise UsageError("--job-queue needs --job-provider URL, such as redis://localhost")
        with wrong_usage(ConfigurationError):
            provider = JobProvider(showing.job_provider)
            services += [Queue(name, provider=provider) for name in showing.job_queue]
    elif showing.job_provider is not None:
        raise UsageError("--job-provider needs --job-queue NAME, the queue to show")
    missing = [missing_storage(one.transport) for one in services]
    if all(missing):
        raise CommandError(
            f"{missing[0]} does not exist yet: start a worker, send a message, or run "
            f"`matador topology apply`"
        )
    return services
