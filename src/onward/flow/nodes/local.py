"""local: as executor, for a service that is a function of the server's own process."""

from onward.flow.nodes.executor import RECORD, check, enter, resume

__all__ = ["RECORD", "check", "enter", "resume"]
