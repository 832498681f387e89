"""Requests that wait in the gateway for a node with room, because every one they may go to is full.

Order, each importing only what stands below: queue → model_queue → lines, crowd, pace → waiter.
Only `queue` knows time, tasks and the fleet.
"""
