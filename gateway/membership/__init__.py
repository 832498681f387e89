"""Which nodes there are, where that is not in the settings: operators say who may, nodes say that
they are there, in Valkey or Redis. Read next: `desk`, `enrolments`, `contracts.membership`.
"""
