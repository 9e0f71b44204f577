"""What the page on metrics and traces shows: its program, its dashboard and its alert rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.promtool import promtool

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
PAGE = ROOT / "docs" / "guides" / "metrics-and-traces.md"
_METRIC = re.compile(r"\bmatador_[a-z_]+")
_ENDINGS = re.compile(r"_(bucket|count|sum)$")


def documented() -> set[str]:
    """The metrics of the table on the page."""
    rows = PAGE.read_text().splitlines()
    return {match[1] for row in rows if (match := re.match(r"\| `(matador_\w+)` \|", row))}


def test_the_program_shows_what_it_sent_and_logs_json() -> None:
    program = ROOT / "docs" / "snippets" / "observed.py"
    ran = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=120
    )
    assert 'matador_messages_sent_total{name="order.placed"' in ran.stdout
    shown = {_METRIC.match(line) for line in ran.stdout.splitlines()}
    families = set(re.findall(r"^# TYPE (matador_\w+) ", ran.stdout, re.MULTILINE))
    families = {name for name in families if not name.endswith("_created")}
    assert shown
    assert families <= documented(), "every metric is in the table"
    others = {name for name in documented() if "rpc" in name or "ed_total" in name}
    assert documented() - families <= others, "every metric in the table exists"
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    receipt = next(line for line in lines if line["message"] == "a receipt for 1")
    assert (receipt["subscriber"], receipt["service"]) == ("email-receipt", "shop")


def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    board = json.loads((ASSETS / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    alerts = (ASSETS / "alerts.yml").read_text()
    named = {_ENDINGS.sub("", one) for one in _METRIC.findall("\n".join([*expressions, alerts]))}
    assert len(named) > 8
    assert named <= documented()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) == 10


def test_promtool_takes_the_alert_rules() -> None:
    assert "7 rules found" in promtool("check", "rules", str(ASSETS / "alerts.yml"))


def test_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    cases = (Path(__file__).parent / "alerts_test.yml").read_text()
    file = tmp_path / "alerts_test.yml"
    file.write_text(f"rule_files: [{ASSETS / 'alerts.yml'}]\n{cases}")
    promtool("test", "rules", str(file))
