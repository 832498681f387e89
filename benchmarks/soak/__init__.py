"""A fleet of real processes under moderate load for an hour: what grows, and what the ledger says.
`make soak MINUTES=60`, or `python -m benchmarks.soak`.

The warm-up is the first third of the run: twenty minutes of an hour, in which every model has been
woken many times and some thousand requests of every kind were answered. Memory after it is that of
the forty minutes behind: for each process that lives through them, the 95th percentile of its RSS
in the last quarter (ten minutes) over that in the first quarter, at most 1.02. Samples are taken
every five seconds under load; descriptors, tasks and numbers of processes are compared between two
rests, behind the warm-up and at the end. Nothing that grows is excused by what it is.
"""
