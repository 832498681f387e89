"""Where questions and answers of batches are stored, for their encryption.

Read next: `tenancy.encryption.envelope`.
"""

from contracts.ids import AccountId, RequestId
from tenancy.encryption.envelope import Cell


def to_input_cell(account_id: AccountId, batch_id: RequestId, index: int) -> Cell:
    """The cell of what an item asks."""
    return Cell("batch_items", f"{batch_id}/{index}", "sealed_input", account_id)


def to_output_cell(account_id: AccountId, batch_id: RequestId, index: int) -> Cell:
    """The cell of what was answered."""
    return Cell("batch_items", f"{batch_id}/{index}", "sealed_output", account_id)
