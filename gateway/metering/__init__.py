"""What a request consumed, handed to whoever keeps the books.

Read next: `gateway.metering.meter`.
"""
