"""Whether a request may start now under the limits of its account and API token.

Read next: `gateway.admission.admission`.
"""
