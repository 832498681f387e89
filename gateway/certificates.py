"""What a listener's certificate says of itself. Read next: `gateway.settings`."""

from datetime import datetime
from pathlib import Path

from cryptography import x509


def read_certificate_end(path: Path) -> datetime:
    """When the first certificate in a PEM file ends to be valid, in UTC.

    Raises: `OSError`, `ValueError`.
    """
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
