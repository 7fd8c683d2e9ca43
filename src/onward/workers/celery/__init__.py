"""Celery workers: `celery -A onward.workers.celery worker -B` runs tasks of a Redis ledger.

A Celery message is a wake-up. It names a queue and carries nothing else: tasks and their outcomes
are in the ledger. A wake-up that is lost costs a second, one that comes twice a look at an empty
queue.
"""
