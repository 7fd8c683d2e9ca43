"""Which texts of the core's records are sealed, and the records with them sealed or opened.

What routing needs stays clear: ids, types, queues, clocks, counters, names. Pure but for the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from onward.core.contract import LeaseRenewal, Move, Submission
from onward.core.errors import Unreadable
from onward.core.task import Claimed, Ending, Event, Json, Letter, Note, Task, TaskId, encode
from onward.faults import Fault
from onward.ledgers.sealed.keyring import Keyring, key_of
from onward.ledgers.sealed.texts import CLAIMED, event_field, letter_field, owner_of

SealFn = Callable[[str, str, str], str]  # text, owner, field: seals it, or opens it

FIELDS = ("payload", "result", "error", "progress", "journal", "bulk", "approval", "callback_url")
# Of an approval: what people wrote, and what its digest was salted with. Its status stays clear for
# queries.
WRITTEN = ("reason", "comment", "salt")


class Sealing:
    """One direction: with `Keyring.seal` as its function it seals, with `Keyring.open` it opens."""

    def __init__(self, seal: SealFn) -> None:
        self._seal = seal

    def text(self, task: TaskId, field: str, text: Json) -> Json:
        if field == "approval":
            return self._approval(task, text)
        return self._seal(text, owner_of(task), field)

    def fields(self, task: TaskId, found: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `found` that are sealed, or opened; the rest is left out."""
        return {
            name: self.text(task, name, text)
            for name in FIELDS
            if isinstance(text := found.get(name), str)
        }

    def task(self, task: Task) -> Task:
        found = {name: getattr(task, name) for name in FIELDS}
        return msgspec.structs.replace(task, **self.fields(task.id, found))

    def notes(self, task: TaskId, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple((type_, self._data(task, type_, data)) for type_, data in notes)

    def event(self, event: Event) -> Event:
        if event.data is None:
            return event
        return msgspec.structs.replace(event, data=self._data(event.task, event.type, event.data))

    def letter(self, letter: Letter) -> Letter:
        body = self._seal(letter.body, owner_of(letter.to), letter_field(letter.name))
        return msgspec.structs.replace(letter, body=body)

    def submission(self, submission: Submission) -> Submission:
        task = submission.task
        return msgspec.structs.replace(
            submission, task=self.task(task), events=self.notes(task.id, submission.events)
        )

    def move(self, move: Move) -> Move:
        return msgspec.structs.replace(
            move,
            changes={**move.changes, **self.fields(move.task, move.changes)},
            events=self.notes(move.task, move.events),
            spawn=tuple(map(self.submission, move.spawn)),
            letters=tuple(map(self.letter, move.letters)),
            answer=None if move.answer is None else self.move(move.answer),
        )

    def renewal(self, renewal: LeaseRenewal) -> LeaseRenewal:
        if renewal.progress is None and not renewal.notes:
            return renewal
        progress = renewal.progress
        if progress is not None:
            progress = self.text(renewal.task, "progress", progress)
        notes = self.notes(renewal.task, renewal.notes)
        return msgspec.structs.replace(renewal, progress=progress, notes=notes)

    def claimed(self, claimed: Claimed) -> Claimed:
        found = {name: getattr(claimed, name) for name in ("payload", "journal", "bulk")}
        return msgspec.structs.replace(
            claimed,
            **self.fields(claimed.id, found),
            letters=tuple(map(self.letter, claimed.letters)),
        )

    def ending(self, ending: Ending) -> Ending:
        found = {"result": ending.result, "error": ending.error}
        return msgspec.structs.replace(ending, **self.fields(ending.id, found))

    def _data(self, task: TaskId, type_: str, data: Json | None) -> Json | None:
        if data is None or type_ == CLAIMED:
            return data
        return self._seal(data, owner_of(task), event_field(type_))

    def _approval(self, task: TaskId, text: Json) -> Json:
        asked: dict[str, Any] = msgspec.json.decode(text)
        turned = {
            name: self._written(asked[name], owner_of(task), f"approval.{name}")
            for name in WRITTEN
            if asked.get(name)
        }
        return encode({**asked, **turned}) if turned else text

    def _written(self, text: str, owner: str, field: str) -> str:
        """People's words are no JSON, and may look sealed: they never make a task unreadable."""
        try:
            return self._seal(text, owner, field)
        except Unreadable:
            return text


def shown(opening: Sealing, task: Task) -> Task:
    """Opened as far as possible, the rest replaced by the reason. For lists, which people read."""
    try:
        return opening.task(task)
    except Unreadable:
        pass
    seen: dict[str, Any] = {}
    for name in FIELDS:
        text = getattr(task, name)
        if text is not None:
            try:
                seen[name] = opening.text(task.id, name, text)
            except Unreadable as error:
                seen[name] = _instead(name, text, error)
    return msgspec.structs.replace(task, **seen)


def shown_event(opening: Sealing, event: Event) -> Event:
    try:
        return opening.event(event)
    except Unreadable as error:
        return msgspec.structs.replace(event, data=_unreadable(event.data or "", error))


def _instead(name: str, text: str, error: Unreadable) -> str | None:
    if name == "error":
        return Fault(kind="Unreadable", message=str(error)).encode()
    if name == "approval":  # it still holds who was asked, and when
        return text
    return _unreadable(text, error) if name in ("payload", "result") else None


def _unreadable(text: str, error: Unreadable) -> Json:
    return encode({"sealed": key_of(text), "detail": str(error)})


def seals(keyring: Keyring, is_sealed: Callable[[str], bool] = lambda _: True) -> Sealing:
    """`is_sealed` says of an owner whether its texts are."""

    def seal(text: str, owner: str, field: str) -> str:
        # What did not open was left as it is, and comes back so.
        if key_of(text) is not None or not is_sealed(owner):
            return text
        return keyring.seal(text, owner, field)

    return Sealing(seal)


def opens(keyring: Keyring) -> Sealing:
    return Sealing(keyring.open)
