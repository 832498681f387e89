"""The tree of errors every package raises, and its form on the wire.

    ServiceError
      RequestError    InvalidRequest · InvalidModelName · UnknownModel · ContextTooLong ·
                      UnsupportedFeature · AdapterUnsupported · AdapterIncomplete ·
                      ConstraintUnmet · PayloadTooLarge · HeadersTooLarge · CodingUnsupported ·
                      RequestTimeout · NotFound · InvalidIdentifier · MethodNotAllowed ·
                      Unimplemented · VersionUnsupported · Conflict       client, never
      AccessError     Unauthenticated · Forbidden · AddressNotAllowed · ModelNotAllowed ·
                      AccountSuspended · ResidencyViolation               client, never
      LimitError      RateLimited · ConcurrencyLimited · QuotaExceeded ·
                      PriceUnknown                                        tenancy
      CapacityError   NoEndpoint · ModelCold · PoolSaturated · OutOfBlocks pool, elsewhere
      UpstreamError   NodeUnreachable · StreamBroken · DeadlineExceeded ·
                      TransferFailed · ModelFailed                        pool, same or elsewhere
      InternalError   InvariantBroken · StoreUnavailable · ServiceStopping any, never

Owns names, source and retry advice; must not know HTTP (`gateway/errors.py` has that table).
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

import msgspec

from contracts.short_text import shorten

_MAX_NAME_CHARS: Final = 200


class Source(StrEnum):
    """Who caused the error."""

    CLIENT = "client"
    GATEWAY = "gateway"
    TENANCY = "tenancy"
    POOL = "pool"
    STANDBY = "standby"


class Retry(StrEnum):
    """What a caller may do next."""

    NEVER = "never"
    SAME = "same"
    ELSEWHERE = "elsewhere"
    AFTER = "after"


class ServiceError(Exception):
    """Root of the tree. `message` is a sentence that is safe to show to the client."""

    code: ClassVar[str] = "service_error"
    source: ClassVar[Source] = Source.GATEWAY
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        """`param` names the offending field; `retry_after_s` is set on `Retry.AFTER` errors."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class RequestError(ServiceError):
    """The request itself is wrong; sending it again cannot help."""

    source = Source.CLIENT


class InvalidRequest(RequestError):
    """A field is missing, of a wrong type, out of range or contradicts another."""

    code = "invalid_request"


class InvalidModelName(RequestError):
    """The model name is malformed."""

    code = "invalid_model_name"


class UnknownModel(RequestError):
    """The name is well-formed, but no such model is offered."""

    code = "unknown_model"


class ContextTooLong(RequestError):
    """Prompt and requested output do not fit in the model's context."""

    code = "context_too_long"


class UnsupportedFeature(RequestError):
    """The request asks for something that this model or version cannot do."""

    code = "unsupported_feature"


class AdapterUnsupported(RequestError):
    """The model takes no adapters."""

    code = "adapter_unsupported"


class AdapterIncomplete(RequestError):
    """The finetune that is asked for lacks one of its files."""

    code = "adapter_incomplete"


class ConstraintUnmet(RequestError):
    """The answer ended before it had the shape that was asked for."""

    code = "constraint_unmet"


class PayloadTooLarge(RequestError):
    """The body is larger than the platform accepts."""

    code = "payload_too_large"


class HeadersTooLarge(RequestError):
    """The headers are larger than the platform accepts."""

    code = "headers_too_large"


class CodingUnsupported(RequestError):
    """The body is packed in a way that is not unpacked here."""

    code = "coding_unsupported"


class RequestTimeout(RequestError):
    """The request did not arrive in time; a new one may."""

    code = "request_timeout"
    retry = Retry.SAME


class NotFound(RequestError):
    """No such route or object."""

    code = "not_found"


class InvalidIdentifier(RequestError):
    """An id in the address has the wrong shape, so that no object can be meant."""

    code = "invalid_identifier"


class MethodNotAllowed(RequestError):
    """The route exists, but not with this method."""

    code = "method_not_allowed"

    allowed: tuple[str, ...] = ()
    """The methods that it has."""


class Unimplemented(RequestError):
    """No route knows this method, or this way to send a body."""

    code = "unimplemented"


class VersionUnsupported(RequestError):
    """The request is in a version of the protocol that is not spoken here."""

    code = "version_unsupported"


class Conflict(RequestError):
    """The object exists already or has changed meanwhile."""

    code = "conflict"


class AccessError(ServiceError):
    """Who is asking may not do this."""

    source = Source.CLIENT


class Unauthenticated(AccessError):
    """No credential, or one that is malformed, unknown, expired or disabled."""

    code = "unauthenticated"


class Forbidden(AccessError):
    """The credential is good but does not cover this account, model or action."""

    code = "forbidden"


class AddressNotAllowed(AccessError):
    """The credential is good, but may not be used from where the client is."""

    code = "address_not_allowed"


class ModelNotAllowed(AccessError):
    """The account or API token is not let to this model, whether there is one or not."""

    code = "model_not_allowed"


class AccountSuspended(AccessError):
    """The account is suspended and refused everywhere."""

    code = "account_suspended"


class ResidencyViolation(AccessError):
    """No region that the account's data-residency rules allow can serve this."""

    code = "residency_violation"


class LimitError(ServiceError):
    """A limit of the account or API token is reached."""

    source = Source.TENANCY

    limit: int | None = None
    """The limit that is reached, where it is a number."""


class RateLimited(LimitError):
    """Too many requests or tokens per minute."""

    code = "rate_limited"
    retry = Retry.AFTER


class ConcurrencyLimited(LimitError):
    """Too many streams at once."""

    code = "concurrency_limited"
    retry = Retry.AFTER


class QuotaExceeded(LimitError):
    """The budget of the day or month is used up."""

    code = "quota_exceeded"


class PriceUnknown(LimitError):
    """The model has no price, and this account pays."""

    code = "price_unknown"


class CapacityError(ServiceError):
    """The pool cannot take the request now."""

    source = Source.POOL
    retry = Retry.ELSEWHERE


class NoEndpoint(CapacityError):
    """No node is left that may serve this request."""

    code = "no_endpoint"


class ModelCold(CapacityError):
    """The model's weights are not loaded and may not be awaited."""

    code = "model_cold"


class PoolSaturated(CapacityError):
    """Queues are full, or the client asked not to wait."""

    code = "pool_saturated"


class OutOfBlocks(CapacityError):
    """The KV memory cannot hold this sequence."""

    code = "out_of_blocks"


class UpstreamError(ServiceError):
    """A node failed while it held the request."""

    source = Source.POOL
    retry = Retry.ELSEWHERE


class NodeUnreachable(UpstreamError):
    """The node cannot be reached."""

    code = "node_unreachable"


class StreamBroken(UpstreamError):
    """The stream ended before the answer did."""

    code = "stream_broken"
    retry = Retry.SAME


class DeadlineExceeded(UpstreamError):
    """The request's deadline passed."""

    code = "deadline_exceeded"
    retry = Retry.SAME


class TransferFailed(UpstreamError):
    """KV blocks could not be moved between nodes."""

    code = "transfer_failed"
    retry = Retry.SAME


class ModelFailed(UpstreamError):
    """The model is meant to be served, but could not be loaded; an operator has to look."""

    code = "model_failed"


class InternalError(ServiceError):
    """A defect or an outage of our own; the message says no more than that."""


class InvariantBroken(InternalError):
    """Something that cannot happen has happened."""

    code = "internal_error"


class StoreUnavailable(InternalError):
    """The database cannot be reached."""

    code = "store_unavailable"
    source = Source.TENANCY


class ServiceStopping(InternalError):
    """This process ends and another one, or its next life, can serve the same request."""

    code = "service_stopping"
    retry = Retry.AFTER


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `ServiceError` as it crosses the wire: texts are shortened when one is made and when one is
    read, so that no exception's words fill a frame. A pause that no header could name, NaN among
    them, is not read.
    """

    code: str
    message: str
    param: str | None = None
    retry_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None


def walk_error_leaves(root: type[ServiceError] = ServiceError) -> tuple[type[ServiceError], ...]:
    """All classes below `root` that have no subclass, in order of definition."""
    children = root.__subclasses__()
    if not children:
        return (root,)
    return tuple(leaf for child in children for leaf in walk_error_leaves(child))


def to_error_report(error: ServiceError) -> ErrorReport:
    """The wire form of `error`."""
    return ErrorReport(
        code=error.code,
        message=shorten(error.message),
        param=_shorten_param(error.param),
        retry_after_s=error.retry_after_s,
    )


def from_error_report(report: ErrorReport) -> ServiceError:
    """The error that `report` describes; a code this version does not know is an internal one."""
    for leaf in walk_error_leaves():
        if leaf.code == report.code:
            param = _shorten_param(report.param)
            return leaf(shorten(report.message), param=param, retry_after_s=report.retry_after_s)
    code = shorten(report.code, _MAX_NAME_CHARS)
    return InvariantBroken(f"The pool reported an error of an unknown kind ({code}).")


def _shorten_param(param: str | None) -> str | None:
    """The name of a field, which may be a path into what a client has sent."""
    return None if param is None else shorten(param, _MAX_NAME_CHARS)
