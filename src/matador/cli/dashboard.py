"""``matador dashboard``: serves the web dashboard of an application."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from matador.cli.commands import App, Common, a_location, a_path, option
from matador.cli.connection import missing_storage, require_shared
from matador.cli.output import CommandError, UsageError, note, warn, wrong_usage
from matador.cli.spark_options import SparkOptions
from matador.cli.store_options import StorageOption, storage_options
from matador.errors import ConfigurationError, MissingExtraError
from matador.loading import Loaded
from matador.observe.history import History

if TYPE_CHECKING:
    from matador.jobs import Queue

TOKEN = "MATADOR_DASHBOARD_TOKEN"
READ_TOKEN = "MATADOR_DASHBOARD_READ_TOKEN"
_LAST_PORT = 65535
_OWNER_ONLY = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the dashboard listens, and who may use it."""

    port: Annotated[int, option("PORT", "The port to listen on.", min=0, max=_LAST_PORT)] = 8080
    host: Annotated[
        str, option("HOST", "The address to listen on. Any but this machine's needs a token.")
    ] = "127.0.0.1"
    token_file: Annotated[
        Path | None,
        option(
            "FILE",
            f"A file with the token of operators, who may look and act. Default: ${TOKEN}.",
            parser=a_path,
        ),
    ] = None
    read_token_file: Annotated[
        Path | None,
        option(
            "FILE",
            f"A file with the token of those who may only look. Default: ${READ_TOKEN}.",
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

    mask: Annotated[
        list[str] | None,
        option("FIELD", "Never show the value of this payload field. Can be repeated."),
    ] = None
    history: Annotated[
        Path | None,
        option(
            "FILE",
            "The SQLite file with the history. Default: that of the application's History hook, "
            "or one in ~/.local/state/matador.",
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
            "A job queue to show, besides those of the application's module. Can be repeated.",
        ),
    ] = None
    job_provider: Annotated[
        str | None, option("URL", "Where the jobs of --job-queue are kept.")
    ] = None


def dashboard(
    app: App, *, listening: Listening, showing: Showing, spark: SparkOptions, common: Common
) -> None:
    """Serve a web page with queues, events, jobs, dead letters and workers, until Ctrl-C.

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
    loaded = common.load(app, logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    target = loaded.app
    require_shared(target)
    missing = missing_storage(target.transport)
    if missing is not None:
        raise CommandError(
            f"{missing} does not exist yet: start a worker, send an event, or run "
            f"`matador topology apply`"
        )
    with wrong_usage(ConfigurationError):
        options = DashboardOptions(
            history=showing.history or _history(loaded),
            audit=showing.audit,
            host=listening.host,
            port=listening.port,
            token=_token(listening.token_file, TOKEN),
            read_token=_token(listening.read_token_file, READ_TOKEN),
            allowed_hosts=tuple(listening.allowed_host or ()),
            mask=tuple(showing.mask or ()),
            lake=showing.lake,
            storage_options=storage_options(showing.storage_option),
            spark=LakeSpark(master=spark.master, remote=spark.remote, config=settings),
        )
        if showing.history is None:
            _make_folder(Path(options.history).parent)
        served = Dashboard(target, options, job_queues=_job_queues(loaded, showing))
        listener = listen(options)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def ready() -> None:
        common.show({"url": url, "history": str(options.history)}, remark=f"dashboard on {url}")
        if not options.needs_login:
            note("everybody on this machine may use it; --token-file asks for a token")

    with contextlib.suppress(KeyboardInterrupt):  # the server has finished by then
        asyncio.run(serve(served, listener, ready))


def _history(loaded: Loaded) -> Path:
    """The file of the application's history, or one for this application in the home folder."""
    for hook in loaded.app.hooks:
        if isinstance(hook, History):
            return hook.file
    where = getattr(loaded.module, "__file__", None) or loaded.module.__name__
    name = f"{Path(where).resolve()}:{loaded.app.topology.namespace}"
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


def _token(file: Path | None, variable: str) -> str | None:
    """A token, from its file or from the environment.

    Raises:
        UsageError: the file cannot be read, or is empty.
    """
    if file is None:
        return os.environ.get(variable, "").strip() or None
    try:
        found = file.read_text("utf-8").strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token in {file}: {error}") from error
    if not found:
        raise UsageError(f"the token file {file} is empty")
    if mode & _OWNER_ONLY:
        warn(f"others can read the token in {file}: chmod 600 {file}")
    return found


def _job_queues(loaded: Loaded, showing: Showing) -> list[Queue]:
    """The job queues to show.

    Raises:
        UsageError: a queue has no provider, or a provider no queue.
    """
    from matador.dashboard.job_desk import job_queues_in
    from matador.jobs import JobProvider, Queue

    found = {queue.name: queue for queue in job_queues_in(loaded.module)}
    if showing.job_queue:
        if showing.job_provider is None:
            raise UsageError("--job-queue needs --job-provider URL, such as redis://localhost")
        with wrong_usage(ConfigurationError):
            provider = JobProvider(showing.job_provider)
            found |= {name: Queue(name, provider=provider) for name in showing.job_queue}
    elif showing.job_provider is not None:
        raise UsageError("--job-provider needs --job-queue NAME, the queue to show")
    return list(found.values())
