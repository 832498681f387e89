"""Words for tests of the gateway's way to nodes."""

from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, ModelName, RequestId

GRANT = Grant(
    RequestId("r"),
    1,
    AccountId("0" * 32),
    b"s" * 32,
    ModelName("@a/b"),
    None,
    0,
    RetentionClass.STANDARD,
    2**50,
    100,
)
