"""The files in ``deploy/``: as far as they can be checked without systemd, Docker and a cluster."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.conftest import Start, wait
from tests.cli.conftest import folder as folder
from tests.cli.conftest import start as start
from tests.support.ports import free_ports
from tests.support.promtool import promtool
from typer.main import get_command

from matador.cli.program import program
from matador.observe import Metrics
from matador.runtime.service import Shutdown

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "matador-worker.service").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
WORKER, BUDGET = yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text())
SCALED = yaml.safe_load((DEPLOY / "kubernetes" / "keda.yaml").read_text())
CONTAINER: dict[str, Any] = WORKER["spec"]["template"]["spec"]["containers"][0]


def options(arguments: list[str]) -> dict[str, Any]:
    """The options of ``matador worker`` on a command line, which must be valid."""
    assert arguments[0] == "worker"
    command: Any = get_command(program)
    return command.commands["worker"].make_context("worker", arguments[1:]).params


def instruction(name: str) -> list[str]:
    """The list behind an instruction of the Dockerfile."""
    found = re.search(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    assert found, name
    return json.loads(found[1][found[1].index("[") :])


def setting(name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    assert found, name
    return found[1]


def test_everybody_waits_longer_than_a_shutdown_takes() -> None:
    longest = Shutdown().timeout
    assert longest + Shutdown().grace < int(setting("TimeoutStopSec"))
    assert longest < WORKER["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    page = (ROOT / "docs" / "guides" / "deployment.md").read_text()
    assert f"for up to {longest:g} seconds" in page


# -- systemd --------------------------------------------------------------------------------------


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT CHECKED, there is no systemd-analyze")
    here = UNIT.replace("/srv/shop/.venv/bin/matador", sys.executable)
    here = here.replace("User=shop\nGroup=shop\n", "")
    unit = tmp_path / "matador-worker.service"
    unit.write_text(here)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in ran.stderr.splitlines() if "matador-worker" in line]
    assert (ran.returncode, said) == (0, []), ran.stderr


def test_the_unit_starts_a_worker_and_stops_only_its_supervisor() -> None:
    program_, *arguments = shlex.split(setting("ExecStart"))
    assert program_.endswith("/matador")
    given = options(arguments)
    assert (given["processes"], given["metrics_port"]) == (2, 9000)
    assert (setting("KillMode"), setting("KillSignal")) == ("mixed", "SIGTERM")


# -- Docker ---------------------------------------------------------------------------------------


def test_the_image_starts_a_worker_that_passes_its_own_health_check(
    start: Start, folder: Path
) -> None:
    program_, *arguments = instruction("ENTRYPOINT") + instruction("CMD")
    assert program_ == "matador"
    given = options(arguments)
    assert (given["metrics_host"], given["log_format"]) == ("0.0.0.0", "json")
    assert f"EXPOSE {given['metrics_port']}\n" in DOCKERFILE

    port = str(free_ports())
    check = [one.replace("9000", port) for one in instruction("HEALTHCHECK")]
    assert check.pop(0) == "python"
    probe = [sys.executable, *check]
    assert subprocess.run(probe, capture_output=True, check=False).returncode != 0
    arguments = [{"shop.events:app": "shop.py", "9000": port}.get(one, one) for one in arguments]
    worker = start(*arguments)
    worker.says("consuming")
    wait(
        lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0,
        lambda: f"a healthy worker:\n{worker.err}",
    )
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0


def test_the_image_has_extras_that_exist_and_no_root() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.search(r"\.whl\)\[([\w,]+)\]", DOCKERFILE)
    assert found
    assert set(found[1].split(",")) <= set(extras["optional-dependencies"])
    assert "metrics" in found[1]
    user = re.search(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert user
    security = WORKER["spec"]["template"]["spec"]["securityContext"]
    assert security == {"runAsNonRoot": True, "runAsUser": int(user[1])}
    assert DOCKERFILE.index("USER shop") < DOCKERFILE.index("ENTRYPOINT")


def test_the_image_installs_the_wheel_that_its_comment_builds(tmp_path: Path) -> None:
    """Matador is not on the package index: an image that asks for it there cannot be built."""
    build = re.search(r"^#   pip wheel (.*) PATH/OF/THE/CLONE$", DOCKERFILE, re.MULTILINE)
    install = re.search(
        r"^RUN /venv/bin/pip install --no-cache-dir (.*)$", DOCKERFILE, re.MULTILINE
    )
    assert build
    assert install
    assert "COPY wheels /wheels\n" in DOCKERFILE
    folder = shlex.split(build[1])[-1]
    backend = "import hatchling.build as build, sys; build.build_wheel(sys.argv[1])"
    (tmp_path / folder).mkdir()
    made = [sys.executable, "-c", backend, str(tmp_path / folder)]
    subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
    what = install[1].replace("/wheels/", f"{tmp_path}/{folder}/")
    ran = subprocess.run(["sh", "-c", f"echo {what}"], check=True, capture_output=True, text=True)
    assert re.fullmatch(
        rf"{tmp_path}/wheels/matador_events-[\d.]+-\S+\.whl\[[\w,]+\]\n", ran.stdout
    )


# -- Kubernetes -----------------------------------------------------------------------------------


def test_the_pod_runs_a_worker_and_asks_it_where_it_answers() -> None:
    given = options([*instruction("ENTRYPOINT")[1:], *CONTAINER["args"]])
    assert given["queues"] == "events"
    (port,) = CONTAINER["ports"]
    assert given["metrics_port"] == port["containerPort"]
    assert given["metrics_host"] == "0.0.0.0"
    annotations = WORKER["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    for name, path in (
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
        ("startupProbe", "/health/live"),
    ):
        assert CONTAINER[name]["httpGet"] == {"path": path, "port": port["name"]}


def test_the_objects_refer_to_each_other() -> None:
    labels = WORKER["spec"]["selector"]["matchLabels"]
    assert WORKER["spec"]["template"]["metadata"]["labels"] == labels
    assert BUDGET["spec"]["selector"]["matchLabels"] == labels
    assert SCALED["spec"]["scaleTargetRef"]["name"] == WORKER["metadata"]["name"]
    assert "replicas" not in WORKER["spec"]  # or each apply would undo what KEDA decided
    # KEDA may leave a single pod, and its node must be drained all the same.
    assert set(BUDGET["spec"]) == {"selector", "maxUnavailable"}
    assert 1 <= SCALED["spec"]["minReplicaCount"] < SCALED["spec"]["maxReplicaCount"]


def test_the_queries_are_valid_and_about_metrics_that_exist(tmp_path: Path) -> None:
    queries = [one["metadata"]["query"] for one in SCALED["spec"]["triggers"]]
    assert all(float(one["metadata"]["threshold"]) > 0 for one in SCALED["spec"]["triggers"])
    metrics = Metrics()
    known = {family.name for family in metrics.registry.collect()}
    for query in queries:
        assert set(re.findall(r"matador_\w+", query)) <= known
    rules = [
        {"record": f"matador:check{number}", "expr": query} for number, query in enumerate(queries)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "keda", "rules": rules}]}))
    promtool("check", "rules", str(file))
