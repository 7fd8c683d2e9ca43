"""What can go wrong for a caller of a server.

OnwardError
├── Unreachable     no server answers, or the connection was cut before the answer
├── NotAdmitted     the Redis of a stream worker wants another user or password
├── ServerNeeded    a stream worker's handler asked for what only the server can do
├── WorkerRefused   the server refuses a worker, and would each time it asked
├── ProblemError    the server answered, and the answer is no
├── TaskFailed      the task is over, and did not succeed
└── StillRunning    the task goes on, but the time to wait for it is over (also a TimeoutError)
"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

import msgspec

from onward.errors import OnwardError
from onward.urls import shown

if TYPE_CHECKING:
    from onward.wire.problems import Problem
    from onward.wire.tasks import TaskView


class Unreachable(OnwardError):
    """No server answers, or the connection was cut before its answer came."""

    code = "unreachable"

    def __init__(self, url: str, *, cut: bool = False, cause: BaseException | None = None) -> None:
        url = shown(url)
        self.url: str = url
        self.tls: str | None = _tls_error(cause)  # None: that is not what failed
        if self.tls:
            what = f"no TLS connection to {url}: {self.tls}"
            hint = _TLS_HINTS.get(self.tls.partition(":")[0], "see whether it speaks TLS at all")
        elif cut:
            what = f"the connection to {url} was cut before the answer came"
            hint = f"see whether the server is well: curl {url}/health"
        else:
            what = f"no server answers at {url}"
            hint = "start one with `onward up`, or name yours in ONWARD_URL"
        super().__init__(f"{what}; {hint}", hint=hint)
        self.what = what


_TLS_HINTS = {
    "certificate verify failed": "name the file with its authority's certificate in SSL_CERT_FILE, "
    "or as Client(url, verify=FILE)",
    "wrong version number": "it answers without TLS: use http:// for it",
    "record layer failure": "it answers without TLS: use http:// for it",
}


def _tls_error(error: BaseException | None) -> str | None:
    """What OpenSSL says, if it is what failed, in the words after its codes."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    text = re.sub(r"^\[[^\]]*\] *| *\(_ssl\.c:\d+\)$", "", str(error.args[-1]))
    return text or type(error).__name__


class NotAdmitted(OnwardError):
    code = "not_admitted"

    def __init__(self, why: str) -> None:
        hint = "name user and password in the URL, as in redis://user:password@host:6379"
        super().__init__(f"that Redis does not let us in: {why}", hint=hint)


class ServerNeeded(OnwardError):
    code = "server_needed"

    def __init__(self) -> None:
        hint = "set ONWARD_URL to the server's address, as in http://127.0.0.1:8070"
        super().__init__(f"ctx.once is noted at the server, and none is known; {hint}", hint=hint)


class WorkerRefused(OnwardError):
    code = "worker_refused"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{shown(url)} refuses this worker: {why}")


class ProblemError(OnwardError):
    """The server refused. `code` is stable and for machines; `status` is that of HTTP."""

    def __init__(
        self, *, status: int, code: str, title: str, detail: str = "", hint: str | None = None
    ) -> None:
        super().__init__(f"{title}: {detail}" if detail else title, hint=hint)
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail


class TaskFailed(OnwardError):
    """The task is over, and there is no result. `task` is the task."""

    code = "task_failed"

    def __init__(self, task: TaskView) -> None:
        super().__init__(
            f"{task.type} {task.id} is {task.state}: {task.reason}",
            hint=f"onward task explain {task.id}",
        )
        self.task = task


class StillRunning(OnwardError, TimeoutError):
    """The time to wait is over, and the task goes on. `task` is the task."""

    code = "still_running"

    def __init__(self, task: TaskView) -> None:
        super().__init__(
            f"{task.type} {task.id} is still {task.state}", hint=f"onward task watch {task.id}"
        )
        self.task = task


def problem_of(problem: Problem) -> ProblemError:
    """Of one of many: the others' answers stand beside it."""
    hint = problem.hint if isinstance(problem.hint, str) else None
    return ProblemError(
        status=problem.status,
        code=problem.code,
        title=problem.title,
        detail=problem.detail,
        hint=hint,
    )


class _Problem(msgspec.Struct):
    """RFC 9457, as far as we read it."""

    title: str = ""
    detail: str = ""
    code: str = ""
    hint: str | None = None
    error: str = ""  # all that doors of their own style send


def problem_from(status: int, body: bytes) -> ProblemError:
    try:
        found = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        found = _Problem()
    title = found.title or found.error
    if not title:
        # Something else listens there, or stands in between: its page would explain nothing.
        return ProblemError(
            status=status,
            code="unexpected_answer",
            title=f"HTTP {status} that is not Onward's",
            hint="is that the right server? look at ONWARD_URL or --server",
        )
    return ProblemError(
        status=status,
        code=found.code or "unknown",
        title=title,
        detail=found.detail,
        hint=found.hint,
    )
