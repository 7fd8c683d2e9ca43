"""local: as executor, for a service that is a function of the server's own process."""

from onward.flow.nodes.executor import CALLS, LOGGED, RECORD, check, enter, recall, resume

__all__ = ["CALLS", "LOGGED", "RECORD", "check", "enter", "recall", "resume"]
