"""What is wrong with bytes that could not be read as a request, as an error with a sentence.

The parser's reasons are fixed phrases of its own and quote nothing that a client has sent.
Read next: `gateway.middleware.client_connection`. Source: RFC 9110, 15.5 and 15.6; RFC 9112, 3.
"""

import re
from typing import Final

import httptools

from contracts.errors import InvalidRequest, ServiceError, Unimplemented, VersionUnsupported

_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?= |$)")
_HTTP_2: Final = "Pause on PRI/Upgrade"
_VERSION: Final = "Invalid HTTP version"
_CODING: Final = "Request has invalid `Transfer-Encoding`"


def explain_framing(error: httptools.HttpParserError, data: bytes) -> ServiceError:
    """Why the parser has stopped in `data`, which may begin before what is wrong."""
    if isinstance(error, httptools.HttpParserCallbackError):
        cause = error.__context__
        return cause if isinstance(cause, ServiceError) else _refuse_target()
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return _explain_method(data)
    if isinstance(error, httptools.HttpParserInvalidURLError):
        return _refuse_target()
    reason = str(error)
    if reason == _HTTP_2:
        return VersionUnsupported("HTTP/2 is not spoken here; use HTTP/1.1.")
    if reason == _VERSION:
        return refuse_version()
    if reason == _CODING:
        return Unimplemented("No transfer coding but `chunked` is understood here.")
    return InvalidRequest(f"The request is not well-formed HTTP: {reason}.")


def refuse_version() -> VersionUnsupported:
    """The error of a request in some other version."""
    return VersionUnsupported("This version of HTTP is not spoken here; use HTTP/1.1.")


def _refuse_target() -> InvalidRequest:
    """The error of a request for something that is no path."""
    return InvalidRequest("The request's target is no path or URL that can be read.")


def _explain_method(data: bytes) -> ServiceError:
    """The error of a request whose first word the parser does not know.

    A word that could be a method is one that is not known here; all else is no HTTP.
    """
    word = _METHOD.match(data)
    if word is not None and _is_unknown(word.group()):
        return Unimplemented("The request's method is none that is known here.")
    return InvalidRequest(
        "What was sent is not HTTP: a request begins with its method, in capitals. Is another "
        "protocol meant, such as TLS?"
    )


def _is_unknown(word: bytes) -> bool:
    """False for a word before the one that is wrong: the parser would have taken it."""
    try:
        httptools.HttpRequestParser(object()).feed_data(word + b" /")
    except httptools.HttpParserError:
        return True
    return False
