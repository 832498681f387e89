"""`hearth finetunes` as a real process against a real gateway."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from cli.dev.home import DevAccess, DevHome
from tests.gateway.cloudflare_client import ALL
from tests.gateway.conftest import database_template, node
from tests.gateway.finetunes.adapter_files import format_config, make_weights
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

__all__ = ["database_template", "node"]
ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., Awaitable["subprocess.CompletedProcess[str]"]]


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway in front of a node that takes adapters."""
    node.max_adapter_rank = 16
    async with run_gateway(tmp_path, database_template, [node]) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter as PEFT saves it."""
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(format_config())
    (folder / "adapter_model.safetensors").write_bytes(make_weights(num_layers=20, width=1024))
    (folder / "README.md").write_text("not of interest")
    return folder


@pytest.fixture
async def run(gateway: RunningGateway, tmp_path: Path) -> Run:
    """Runs `hearth finetunes` for an account of its own, which `dev.json` names."""
    tenant = await gateway.add_tenant(permissions=ALL)
    home = tmp_path / "home"
    home.mkdir()
    access = DevAccess(
        base_url=gateway.base,
        admin_url=gateway.admin,
        account_id=tenant.account_id,
        api_token=tenant.api_token,
        admin_token="",
        models=(MODEL,),
    )
    DevHome(home).write_access(access)

    async def run_command(*arguments: object) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "cli", "finetunes", *map(str, arguments), "--dir", str(home)],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200"},
        )

    return run_command


async def test_a_finetune_is_made_filled_listed_and_deleted(
    gateway: RunningGateway, run: Run, folder: Path
) -> None:
    made = await run("create", "cats", "-m", MODEL, "--description", "All of them.", "--json")
    assert made.returncode == 0, made.stderr
    finetune_id = json.loads(made.stdout)["id"]
    tenant = gateway.tenants[-1]
    asked = {"prompt": "Hi", "lora": "cats"}
    assert (await gateway.run(asked, tenant=tenant)).code == 3039
    done = await run("upload", "cats", folder)
    assert done.returncode == 0, done.stderr
    assert "adapter_config.json and adapter_model.safetensors" in done.stdout
    assert "adapter_model.safetensors: " in done.stderr  # how much there was, without a terminal
    assert (await gateway.run(asked, tenant=tenant)).status == 200
    (listed,) = json.loads((await run("list", "--json")).stdout)
    assert (listed["id"], listed["ready"], listed["rank"]) == (finetune_id, True, 8)
    table = (await run("list")).stdout.splitlines()
    assert table[0].split() == ["ID", "NAME", "MODEL", "READY", "RANK", "SIZE", "PUBLIC", "CREATED"]
    assert table[1].split()[:5] == [finetune_id, "cats", MODEL, "yes", "8"]
    gone = await run("delete", "cats")
    assert gone.stdout == f"Deleted finetune {finetune_id}.\n"
    assert json.loads((await run("list", "--json")).stdout) == []


async def test_it_is_made_and_filled_at_once(run: Run, folder: Path) -> None:
    done = await run("create", "cats", "-m", MODEL, "--from", folder, "--public")
    assert done.returncode == 0, done.stderr
    (listed,) = json.loads((await run("list", "--json")).stdout)
    assert (listed["ready"], listed["public"]) == (True, True)


async def test_one_that_cannot_be_filled_is_not_left_behind(run: Run, folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    failed = await run("create", "cats", "-m", MODEL, "--from", folder)
    assert failed.returncode == 1
    assert "it is not whole" in failed.stderr
    assert json.loads((await run("list", "--json")).stdout) == []
    weights.write_bytes(content)
    done = await run("create", "cats", "-m", MODEL, "--from", folder)  # the same name is free
    assert done.returncode == 0, done.stderr


async def test_what_goes_wrong_is_said_in_a_sentence(run: Run, folder: Path) -> None:
    (folder / "adapter_config.json").write_bytes(format_config(use_dora=True))
    await run("create", "cats", "-m", MODEL)
    for arguments, words in (
        (("upload", "cats", folder), "`use_dora` in adapter_config.json"),
        (("upload", "cats", folder / "README.md"), "neither called"),
        (("upload", "cats", folder / "none"), "neither called"),
        (("upload", "dogs", folder), "no finetune of this id or name"),
        (("create", "cats", "-m", MODEL), "has a finetune of this name"),
        (("create", "x", "-m", "@hearth/tests/none"), "There is no model"),
        (("create", "x", "-m", MODEL, "--from", folder.parent), "There is no"),
        (("delete", "dogs"), "no finetune of this id or name"),
    ):
        failed = await run(*arguments)
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert words in failed.stderr
        assert "Traceback" not in failed.stderr
    nobody = await run("list", "--base-url", "http://127.0.0.1:1", "--account-id", "0" * 32)
    assert nobody.returncode == 1
