"""Generated requests for every operation of the OpenAPI document, and what is wrong with answers.

Schemathesis reads the document, makes requests that fit it and ones that do not, and checks
answers. Most requests get the names of things that exist, which no document can tell: the account,
its tokens, models and their roles. Owns those names; must not know how the gateway was started.
"""

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

TIMEOUT_S: Final = 60
MAX_TOKENS: Final = 4
CONFIG_FILE: Final = "adapter_config.json"
CONFIG: Final = '{"peft_type": "LORA", "r": 8, "lora_alpha": 16}'
_CHECKS: Final[list[Any]] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
_LENGTHS: Final = {"responses": "max_output_tokens"}
_MODELS: Final = {"embeddings": "embedder", "run": "generator", "run_named": "generator"}


class _EnoughError(Exception):
    """Ends the cases of one operation."""


@dataclass(frozen=True)
class Names:
    """What exists."""

    base: str
    account_id: str
    api_token: str
    """Of this account, with every permission."""
    member_id: str
    generator: str
    embedder: str
    base_model: str
    """One that takes adapters."""
    keep_request: Callable[[], str]
    """Gives the id of another request of the account that is kept word for word."""
    entry_id: str
    """Of the account's audit log."""
    create_finetune: Callable[[], str]
    """Gives the id of another finetune of the account, without files."""


@dataclass
class Findings:
    """What the requests of one operation came to."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    """What is wrong, and a request that shows it."""

    @property
    def has_success(self) -> bool:
        """True when some request was answered with a 2xx."""
        return any(200 <= status < 300 for status in self.statuses)


class DocumentClient:
    """Asks as the owner of one account; `_name` puts what exists into generated requests."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._session = requests.Session()
        self._session.headers["authorization"] = f"Bearer {names.api_token}"
        self._numbers = itertools.count()

    def read_document(self) -> dict[str, Any]:
        """The document as it is served."""
        return self._session.get(f"{self._names.base}/openapi.json", timeout=TIMEOUT_S).json()

    def try_all(
        self, document: dict[str, Any], num_cases: int, max_cases: int, *only: str
    ) -> dict[str, Findings]:
        """Findings by operation, of `num_cases` requests of either kind, fitting and not.

        Where none of the fitting ones succeeds there are more of them, up to `max_cases`.
        """
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=self._names.base)
        found: dict[str, Findings] = {}
        for result in schema.get_all_operations():
            operation = result.ok()
            name = operation.definition.raw["operationId"]
            if only and name not in only:
                continue
            findings = found[name] = Findings()
            self._try(operation, GenerationMode.POSITIVE, findings, num_cases, max_cases)
            if operation.path_parameters or operation.query or operation.body:
                self._try(operation, GenerationMode.NEGATIVE, findings, num_cases, num_cases)
        return found

    def _try(
        self, operation: Any, mode: GenerationMode, findings: Findings, num: int, maximum: int
    ) -> None:
        """Adds to `findings` what requests of one kind show."""
        numbers = itertools.count(1)

        def ask(is_named: bool, case: Any) -> None:
            if is_named:
                self._name(case)
            self._ask(case, findings)
            if next(numbers) >= num and (findings.has_success or num == maximum):
                raise _EnoughError

        run = settings(
            max_examples=maximum,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        # Three of four: as generated, most end at the account.
        kinds = st.sampled_from([True, True, True, False])
        with contextlib.suppress(_EnoughError):
            seed(0)(run(given(kinds, operation.as_strategy(generation_mode=mode))(ask)))()

    def _ask(self, case: Any, findings: Findings) -> None:
        """Sends one request and notes what is wrong with its answer."""
        response = case.call(session=self._session, timeout=TIMEOUT_S)
        findings.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=_CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                kind = f"{response.status_code} {type(failure).__name__}: {failure}"
                findings.faults.setdefault(kind[:600], case.as_curl_command()[:2000])

    def _name(self, case: Any) -> None:
        """Puts what exists in the place of generated names."""
        names, name = self._names, case.operation.definition.raw["operationId"]
        model: str = getattr(names, _MODELS.get(name, "generator"))
        path = case.path_parameters
        known = {"account_id": names.account_id, "model": model, "member_id": names.member_id}
        known["entry_id"] = names.entry_id
        for key, value in known.items():
            if key in path:
                path[key] = value
        if "token_id" in path:
            path["token_id"] = self._create_token()
        if "request_id" in path:
            path["request_id"] = names.keep_request()
        if "finetune" in path:
            path["finetune"] = names.create_finetune()
        if name == "models_schema" and case.query:
            case.query["model"] = model
        if name == "usage_export" and case.query:
            case.query.update(since="2026-01-01", before="2026-01-03")
        if not isinstance(case.body, dict):
            return
        if "policies" in case.body:
            self._name_resources(case.body["policies"])
        elif name.startswith("finetune_asset_create"):
            case.body.update(file_name=CONFIG_FILE, file=CONFIG)
        elif name.startswith("finetune_create"):
            case.body.update(model=names.base_model, name=f"spare {next(self._numbers)}")
        elif "/ai/" in case.operation.path:
            self._name_model(case.body, name, model)

    def _name_model(self, body: dict[str, Any], name: str, model: str) -> None:
        """A model that there is, a role that its template has, and an answer that is short."""
        if name != "run":
            body["model"] = model
        inner = body.get("input") if name == "run_named" else body
        key = _LENGTHS.get(name, "max_tokens")
        if isinstance(inner, dict) and isinstance(inner.get(key), int | None):
            inner[key] = MAX_TOKENS
        turns = inner.get("messages") if isinstance(inner, dict) else None
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict) and isinstance(turn.get("role"), str):
                turn["role"] = "user"

    def _name_resources(self, policies: Any) -> None:
        """The account as what a token may use."""
        for policy in policies if isinstance(policies, list) else ():
            if isinstance(policy, dict) and "resources" in policy:
                policy["resources"] = self._resources

    def _create_token(self) -> str:
        """The id of a token that may be read, changed, rolled and deleted."""
        base = f"{self._names.base}/client/v4/accounts/{self._names.account_id}/tokens"
        groups = self._session.get(f"{base}/permission_groups", timeout=TIMEOUT_S).json()["result"]
        policy = {
            "effect": "allow",
            "permission_groups": [{"id": groups[0]["id"]}],
            "resources": self._resources,
        }
        body = json.dumps({"name": f"spare {next(self._numbers)}", "policies": [policy]})
        response = self._session.post(base, data=body, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        return response.json()["result"]["id"]

    @property
    def _resources(self) -> dict[str, str]:
        return {f"com.cloudflare.api.account.{self._names.account_id}": "*"}
