"""The dashboard and the alerts are those of the table, and the table asks for what there is."""

import asyncio
import json
import re

import pytest
import yaml

from contracts.fleet import ModelLoad, NodeReport
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.inference import Usage
from contracts.placement import ModelPlacement, Tier
from gateway.fair_queue.crowd import Crowd, CrowdBounds
from gateway.fair_queue.queue_meter import QueueMeter
from gateway.telemetry import Step, Telemetry
from gpu_pool.engine.messages import KvTiers
from gpu_pool.kv.tiers.measured_tier import TierFigures
from gpu_pool.server.machine_metrics import MachineMetrics
from gpu_pool.server.node_metrics import NodeMetrics
from gpu_pool.server.nvml import GpuFigures
from gpu_pool.server.stream_meter import NodeMeter
from gpu_pool.settings import RunningCosts
from tests.deploy.compose_file import ROOT
from tools.observability.alerts import ALERTS
from tools.observability.generate import DASHBOARD, RULES, create_dashboard, create_rules
from tools.observability.panels import ROWS

MODEL = ModelName("@hearth/tests/model")
TENANT_LABELS = {"account", "account_id", "token", "api_token", "api_token_id", "session", "user"}


class GpuDouble:
    """GPUs that tell what they are given."""

    def __init__(self, *figures: GpuFigures) -> None:
        self._figures = figures

    def read(self) -> tuple[GpuFigures, ...]:
        """The same every time."""
        return self._figures


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Every sample's name that a gateway or a node exports, with its labels."""
    telemetry = Telemetry()
    telemetry.count_request("run", 200, MODEL, 0.1)
    telemetry.count_first_text(MODEL, 0.1)
    telemetry.count_token_gap(MODEL, 0.01)
    telemetry.count_step(Step.ROUTING, 0.0001)
    telemetry.count_usage(MODEL, Usage(3, 2, 1))
    queue = QueueMeter(telemetry)
    queue.watch(lambda: {MODEL: 1.0}, Crowd(CrowdBounds(1, 1, 1)))
    queue.count_wait(MODEL, 0.1)
    meter = NodeMeter(iter(range(1, 100)).__next__)
    stream = meter.open(MODEL)
    stream.note_accepted()
    stream.note_tokens()
    stream.note_tokens()
    stream.note_end("stop", Usage(3, 2, 1))
    load = ModelLoad(
        name=MODEL, is_ready=True, num_running=1, num_waiting=0, num_blocks=8, num_free_blocks=2
    )
    placement = ModelPlacement(name=MODEL, tier=Tier.HOST, weights_bytes=1, kv_bytes=1)
    report = NodeReport(
        node_id=NodeId("node-1"),
        boot_id=BootId("00"),
        region=RegionId("weur"),
        jurisdiction="eu",
        is_draining=False,
        models=(),
        loads=(load,),
        placements=(placement,),
    )
    gpus = GpuDouble(GpuFigures(0, "GPU-0", 0.5, 1, 2, 300.0))
    machine = MachineMetrics(gpus, RunningCosts(per_hour=2.0))
    asyncio.run(machine.look())
    figures = TierFigures("file", 1, True, 1, 1, 1, 1, 1, 1.0)
    node = NodeMetrics(lambda: report, meter, lambda: {MODEL: KvTiers((figures,))}, machine)
    families = [*telemetry.collect(), *node.collect()]
    samples = [sample for family in families for sample in family.samples]
    names: dict[str, set[str]] = {}
    for sample in samples:
        names.setdefault(sample.name, set()).update(sample.labels)
    return names


def list_watched() -> set[str]:
    """Gauges and counters that the gateway's parts add when they are put together."""
    names = ("request_opening", "bookkeeping", "pool", "batches/runner", "membership/composition")
    text = "".join((ROOT / f"gateway/{name}.py").read_text() for name in names)
    counters = re.findall(r'watch_counter\(\s*"(hearth_gateway_\w+)"', text)
    gauges = set(re.findall(r'"(hearth_gateway_\w+)"', text)) - set(counters)
    return gauges | {f"{name}_total" for name in counters}


def list_asked() -> set[str]:
    """Every name of ours in the queries of the table."""
    panels = [query.expression for row in ROWS for p in row.panels for query in p.queries]
    alerts = [alert.expression for alert in ALERTS]
    return {name for text in (*panels, *alerts) for name in re.findall(r"hearth_\w+", text)}


def test_every_name_in_the_table_is_exported(exported: dict[str, set[str]]) -> None:
    asked = list_asked() - {"hearth_gateway", "hearth_node"}
    there = set(exported) | list_watched()
    assert asked - there == set()
    assert len(asked) > 20
    # The control: a name with a slip is found.
    assert {"hearth_gateway_request_total"} - there == {"hearth_gateway_request_total"}


def test_names_have_a_unit_and_no_label_names_a_tenant(exported: dict[str, set[str]]) -> None:
    for name, labels in exported.items():
        assert not labels & TENANT_LABELS, name
        assert re.fullmatch(r"hearth_(gateway|node)_[a-z_]+", name)


def test_every_metric_of_ours_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    there = {name for name in exported if not name.endswith(("_sum", "_count"))} | list_watched()
    assert there - list_asked() == set()


def test_the_files_are_those_that_make_dashboards_writes() -> None:
    assert DASHBOARD.read_text(encoding="utf-8") == create_dashboard()
    assert RULES.read_text(encoding="utf-8") == create_rules()


def test_the_files_have_the_form_that_grafana_and_prometheus_read() -> None:
    panels = json.loads(create_dashboard())["panels"]
    titles = [panel["title"] for panel in panels if panel["type"] == "timeseries"]
    assert titles == [panel.title for row in ROWS for panel in row.panels]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rules = yaml.safe_load(create_rules())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    assert all(rule["annotations"]["action"] for rule in rules)


def test_prometheus_reads_the_ports_that_the_compose_file_opens() -> None:
    settings = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    configs = [job["static_configs"][0] for job in settings["scrape_configs"]]
    targets = {target for config in configs for target in config["targets"]}
    for target in targets:
        service, _, port = target.partition(":")
        text = (ROOT / f"deploy/compose/{service}.toml").read_text(encoding="utf-8")
        assert f'[metrics]\nhost = "0.0.0.0"\nport = {port}\n' in text
    assert len(targets) == 3
