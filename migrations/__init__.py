"""The history of tenancy's tables, as Alembic revisions that travel inside the wheel.

Programs call `migrations.upgrade`; developers use the `alembic` command with `alembic.ini`.
"""
