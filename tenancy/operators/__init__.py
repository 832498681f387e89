"""Operators, who run the platform. Read next: `store`."""
