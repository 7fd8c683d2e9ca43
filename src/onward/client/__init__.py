"""The SDK: submit in three lines (http.py), a worker in five (worker.py)."""
