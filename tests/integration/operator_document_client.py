"""The same for the operators' document: what exists there, made anew for whatever ends it."""

from typing import Any, Final

from tests.integration.document_client import TIMEOUT_S, DocumentClient, Names

SMALL: Final = 1_000_000


class OperatorDocumentClient(DocumentClient):
    """Asks as an operator, who must not end what later requests need."""

    def __init__(self, names: Names, node_id: str) -> None:
        """`names.api_token` is the operator's credential, `names.base` the operators' origin."""
        super().__init__(names)
        self._node_id = node_id

    def _name(self, case: Any) -> None:
        """Puts what exists in the place of generated names."""
        name = case.operation.definition.raw["operationId"]
        super()._name(case)
        path, query, body = case.path_parameters, case.query, case.body
        if name == "control_account_purge":
            path["account_id"] = self._create_account()
            self._send("PATCH", f"accounts/{path['account_id']}", {"status": "suspended"})
        elif name == "control_account_update":
            path["account_id"] = self._create_account()
        elif name == "control_member_remove":
            path["member_id"] = self._add_member()
        elif name == "control_operator_delete":
            body_of_new = {"name": f"spare {next(self._numbers)}"}
            path["operator_id"] = self._send("POST", "operators", body_of_new)["id"]
        elif name == "control_price_end":
            query["model"] = f"@spare/model-{next(self._numbers)}"
            rates = dict.fromkeys(("uncached", "cached", "output", "reasoning"), 1)
            self._send("PUT", "prices", {"model": query["model"], "money": rates})
        elif name == "control_quota_delete":
            self._send("PUT", f"accounts/{path['account_id']}/quotas", {"requests_per_min": 1})
            query.clear()
        elif name == "placement_rule_end":
            query["model"] = self._names.generator
            self._send("PUT", "placement/rules", {"model": query["model"]})
        elif name == "control_usage_export":
            query.update(since="2026-01-01", before="2026-01-03")
        elif name == "node_undrain":
            query["node_id"] = self._node_id
            self._send("PUT", "nodes/drains", {"node_id": self._node_id})
        if isinstance(body, dict):
            self._name_fields(name, body)

    def _name_fields(self, name: str, body: dict[str, Any]) -> None:
        """Fields of bodies that only some values fit."""
        if name == "control_member_add":
            body["email"] = "somebody@example.org"
        elif name in ("control_price_set", "control_quota_set", "placement_rule_set"):
            body["model"] = self._names.generator
            body.pop("api_token_id", None)
        elif name in ("node_drain", "node_key"):
            body["node_id"] = self._node_id
        elif name == "placement_plan":
            body.update(node_id=self._node_id, boot_id="boot", targets=[], eviction_order=[])
        for amounts in (body, body.get("money"), body.get("neurons")):
            for key, value in amounts.items() if isinstance(amounts, dict) else ():
                if type(value) is int and value > SMALL:
                    amounts[key] = value % SMALL
        if "allowed_regions" in body and isinstance(body["allowed_regions"], list):
            body["allowed_regions"] = ["weur"]
        if "allowed_models" in body and isinstance(body["allowed_models"], list):
            body["allowed_models"] = [self._names.generator]

    def _create_token(self) -> str:
        """The id of a token that may be read, changed, rolled and deleted."""
        base = f"accounts/{self._names.account_id}/tokens"
        groups = self._send("GET", f"{base}/permission_groups")
        policy = {
            "effect": "allow",
            "permission_groups": [{"id": groups[0]["id"]}],
            "resources": self._resources,
        }
        body = {"name": f"spare {next(self._numbers)}", "policies": [policy]}
        return self._send("POST", base, body)["id"]

    def _create_account(self) -> str:
        return self._send("POST", "accounts", {"name": f"spare {next(self._numbers)}"})["id"]

    def _add_member(self) -> str:
        body = {"email": f"spare-{next(self._numbers)}@example.org"}
        return self._send("POST", f"accounts/{self._names.account_id}/members", body)["id"]

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        """The result of a request of the client's own."""
        url = f"{self._names.base}/operator/v1/{path}"
        response = self._session.request(method, url, json=body, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        return response.json()["result"]
