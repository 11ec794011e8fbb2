"""What is deployed names metrics, options and files that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parent.parent / "deploy"
SOURCES = "".join(path.read_text() for path in (DEPLOY.parent / "src/outrider/server").glob("*.py"))


@pytest.mark.parametrize("name", ["alerts.yml", "grafana/outrider.json", "kubernetes.yaml"])
def test_every_metric_that_is_asked_for_is_there(name: str) -> None:
    text = (DEPLOY / name).read_text()
    asked = set(re.findall(r"\boutrider_[a-z_]+\b", text))
    assert asked
    for metric in asked:
        base = re.sub(r"_(total|bucket|count|sum)$", "", metric)
        assert f'"{base}"' in SOURCES, metric


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    board = json.loads((DEPLOY / "grafana/outrider.json").read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) > 10
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def test_files_that_others_mount_exist() -> None:
    for mounted in re.findall(r"- \./([^:]+):", (DEPLOY / "compose.yml").read_text()):
        assert (DEPLOY / mounted).is_file(), mounted
