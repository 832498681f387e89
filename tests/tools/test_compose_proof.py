"""What decides whether `make compose-proof` may call itself done, without an engine."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.compose_proof.narration import ProofError, claim, run_command
from tools.compose_proof.network_traces import NetworkState
from tools.compose_proof.root_filesystems import STORES, python_recipe

QUIET = NetworkState(
    saved={"iptables": "", "ip6tables": ""},
    forwarding="0",
    interfaces=frozenset({"lo", "eth0"}),
    mounts=frozenset(),
)
EMPTIED = "# made now\n*filter\n:INPUT ACCEPT [8:90]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"
OTHERS = "*filter\n:INPUT DROP [5:6]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n"


def with_rules(text: str) -> NetworkState:
    """A machine with these rules for IPv4."""
    return replace(QUIET, saved={**QUIET.saved, "iptables": text})


def test_open_chains_and_counters_are_no_trace() -> None:
    assert with_rules(EMPTIED).find_changes(QUIET) == []
    moved = with_rules(OTHERS.replace("[5:6]", "[700:800]"))
    assert moved.find_changes(with_rules(OTHERS)) == []


@pytest.mark.parametrize(
    ("after", "trace"),
    [
        (
            with_rules("*filter\n:FORWARD DROP [0:0]\nCOMMIT\n"),
            "iptables has filter: :FORWARD DROP",
        ),
        (with_rules("*nat\n:DOCKER - [0:0]\nCOMMIT\n"), "iptables has nat: :DOCKER -"),
        (replace(QUIET, forwarding="1"), "net.ipv4.ip_forward was changed"),
        (replace(QUIET, interfaces=frozenset({"lo", "eth0", "docker0"})), "interface docker0"),
        (replace(QUIET, mounts=frozenset({"/tmp/x/netns"})), "mount /tmp/x/netns"),
    ],
)
def test_every_kind_of_trace_is_named(after: NetworkState, trace: str) -> None:
    assert after.find_changes(QUIET) == [trace]


def test_a_rule_of_somebody_else_that_was_lost_is_named() -> None:
    (lost, *_) = with_rules(EMPTIED).find_changes(with_rules(OTHERS))
    assert lost == "iptables lacks filter: -A INPUT -i lo -j ACCEPT"


def test_a_claim_that_does_not_hold_ends_the_proof(capsys: pytest.CaptureFixture[str]) -> None:
    claim(True, "this holds")
    with pytest.raises(ProofError, match=r"does not hold: that\. It was 3"):
        claim(False, "that", "It was 3")
    assert "ok  this holds" in capsys.readouterr().out


def test_a_command_that_fails_is_shown_with_its_output() -> None:
    script = "import sys; print('so far'); sys.exit('no further')"
    with pytest.raises(ProofError, match=r"ended with 1:\nso far\nno further"):
        run_command([sys.executable, "-c", script])
    with pytest.raises(ProofError, match="no command `hearth-has-no-such-command`"):
        run_command(["hearth-has-no-such-command"])


def test_another_recipe_has_another_digest() -> None:
    assert python_recipe("172.30.0.1").digest == python_recipe("172.30.0.1").digest
    assert len({STORES.digest, python_recipe("a").digest, python_recipe("b").digest}) == 3


def test_stand_ins_have_the_names_that_the_files_of_the_fleet_ask_for() -> None:
    root = Path(__file__).resolve().parents[2]
    compose = (root / "docker-compose.yml").read_text(encoding="utf-8")
    main = (root / "tools/compose_proof/__main__.py").read_text(encoding="utf-8")
    assert python_recipe("").tag in compose
    for tag in ("postgres:17-bookworm", "valkey/valkey:8-bookworm"):
        assert f":-{tag}}}" in compose
        assert f'"{tag}"' in main
