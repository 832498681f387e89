"""The audit log: every change of the control plane, chained so that nothing can be altered unseen.

Read next: `chain` (what is hashed), `log` (the table), `heads` (signatures outside the database),
`verification`.
"""
