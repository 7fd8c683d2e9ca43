"""What can go wrong for a caller.

CoreError               an OnwardError whose next step may depend on the door
├── NotFound            no such task (or not yours: the two look the same)
├── QueueFull           the queue is at its cap
├── NoWorker            no worker that could do it is connected, and the caller would wait
├── KeyReused           an idempotency key came again with another body
├── Conflict            the task is not in a state in which that can be done
├── Invalid             the request makes no sense; `pointer` says where
│   ├── Malformed       its body cannot be read at all
│   └── NotYet          what it needs is missing here, and may come
├── Unauthorized        no key, or one that does not count here (any more)
├── Forbidden           the caller's key has not the scope that this needs
│   └── OwnApproval     the key handed in itself what it would approve
├── RateLimited         the key has made as many calls as it may for now
├── TooBusy             too many callers wait already
└── LedgerUnavailable   the store cannot take or answer this now
    ├── NotLetIn        it wants another user, password or database
    └── Unreadable      what it holds is sealed, and does not open here

`code` is stable and public; `hint` is the next step, in words, or `step` where the words depend on
the door: a path here, a tool there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from onward.errors import OnwardError


class Step(StrEnum):
    APPROVE = "approve"
    ASK_AGAIN = "ask_again"
    CALL_LIST_TOOL = "call_list_tool"
    CHECK_LEDGER = "check_ledger"
    LIST_APPROVALS = "list_approvals"
    FORK_ELSEWHERE = "fork_elsewhere"
    LIST_FLOWS = "list_flows"
    LIST_QUEUES = "list_queues"
    LIST_RUNS = "list_runs"
    LIST_SCHEDULES = "list_schedules"
    LIST_TASKS = "list_tasks"
    LIST_SESSIONS = "list_sessions"
    LIST_SESSION_TASKS = "list_session_tasks"
    LIST_TOOLS = "list_tools"
    LIST_WORKERS = "list_workers"
    MAKE_KEY = "make_key"
    PUT_LIMIT = "put_limit"
    PUBLISH_VERSION = "publish_version"
    REMOVE_SERVICE = "remove_service"
    REPLACE_SCHEDULE = "replace_schedule"
    REPLAY_DEAD = "replay_dead"
    RESUME_QUEUE = "resume_queue"
    RUN_AGAIN = "run_again"
    SEND_KEY = "send_key"
    SHOW_BREAKERS = "show_breakers"
    SHOW_SERVICE = "show_service"
    START_STREAM_WORKER = "start_stream_worker"
    START_WORKER = "start_worker"
    SHOW_RUN = "show_run"
    SIGNAL_LATER = "signal_later"
    SUBMIT_NOW = "submit_now"


class NextStep(NamedTuple):
    what: Step
    about: str = ""  # the name of the thing that the step is about


class CoreError(OnwardError):
    step: NextStep | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, step: NextStep | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.step = step


class NotFound(CoreError):
    code = "not_found"


class QueueFull(CoreError):
    code = "queue_full"

    def __init__(self, queue: str, cap: int, *, retry_after_s: int = 1) -> None:
        super().__init__(
            f"queue {queue!r} holds {cap} of {cap} tasks",
            hint=f"try again in {retry_after_s} s, add workers, or raise MAX_QUEUE_LENGTH",
        )
        self.retry_after_s = retry_after_s


class NoWorker(CoreError):
    code = "no_worker"


class KeyReused(CoreError):
    code = "idempotency_key_reused"


class Conflict(CoreError):
    code = "conflict"


class Invalid(CoreError):
    code = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        pointer: str = "",
        hint: str | None = None,
        step: NextStep | None = None,
    ) -> None:
        super().__init__(message, hint=hint, step=step)
        self.pointer = pointer


class Malformed(Invalid):
    """Not JSON, or JSON that may not come in."""


class NotYet(Invalid):
    """Nothing is wrong with it: the same request is taken once what it needs is there."""


class Unauthorized(CoreError):
    code = "unauthorized"

    def __init__(self, message: str) -> None:
        super().__init__(message, step=NextStep(Step.SEND_KEY))


class Forbidden(CoreError):
    code = "forbidden"


class OwnApproval(Forbidden):
    code = "own_approval"


class RateLimited(CoreError):
    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, hint=f"try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooBusy(CoreError):
    code = "too_busy"


class LedgerUnavailable(CoreError):
    code = "ledger_unavailable"
    hint = "try again in a moment; what was submitted may be there: send it with an idempotency key"


class NotLetIn(LedgerUnavailable):
    hint = "correct user, password or database in the URL of the ledger"


class Unreadable(LedgerUnavailable):
    code = "unreadable"
    hint = "look at ONWARD_ENCRYPTION_KEYS"


def is_away(error: BaseException) -> bool:
    """Whether the ledger itself fails: every item of a call, for now, and not one of them."""
    return isinstance(error, LedgerUnavailable) and not isinstance(error, Unreadable)


def our_words(message: str) -> str:
    """The message of a validator of ours, without pydantic's words before it."""
    return message.removeprefix("Value error, ")
