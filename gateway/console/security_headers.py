"""What browsers are told about every page: run nothing, load nothing, show it in no frame.

Owns the policy. Nothing inline and nothing from elsewhere is ever needed, so text that slipped
through the templates' escaping could still do nothing. Source: W3C Content Security Policy 3.
Read next: docs/adr (sessions of the console).
"""

from typing import Final

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: browsers would call the origin of our own forms "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
NEVER_STORED: Final = {"cache-control": "no-store"}
