"""The people of an account. Read next: `tenancy.members.store`."""
