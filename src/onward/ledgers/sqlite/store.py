"""The TaskStore on SQLite. Applies decided moves and refuses them on their guards; decides nothing.

Each method is one piece of work in the transaction of a group commit. Counts are kept in memory as
they are in the file (`tally`), because this process is the file's only writer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from onward.core.approval import Status
from onward.core.contract import (
    APPLIED,
    FRESH,
    FULL,
    LOG_BYTES,
    MAX_LETTER_BYTES,
    MAX_LETTERS,
    PAGE_BYTES,
    POSTPONE_MS,
    Ask,
    Fate,
    Inserted,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    Page,
    Query,
    Receipt,
    Submission,
    Verdict,
    Want,
)
from onward.core.task import (
    QUEUED,
    STATES,
    Claimed,
    Event,
    Instant,
    Lane,
    Letter,
    State,
    Task,
    TaskId,
)
from onward.ledgers.codec import FIELDS, LANES, Cut, RowReader, merge_renewals, text_bytes, to_row
from onward.ledgers.sqlite.counters import Counters
from onward.ledgers.sqlite.database import QUERIES, Database, Row, sql
from onward.ledgers.sqlite.texts import COLUMNS, INLINE, LONG, NAMES, read_as
from onward.ledgers.sqlite.write_batch import WriteBatch, born_claimed, claimed_note

CLAIMED = ", ".join(Claimed.__struct_fields__[:-2])
FAR = 1_000  # positions beyond are not counted
KEY_MEMORY_MS = 24 * 3_600_000
AHEAD = 2**52  # less than any place given otherwise
SECOND_FINAL = "event.tid, event.final"  # in SQLite's error for a generation's second final event

# An index on some rows only is used if the query says in the index's own words that it means them.
TROUBLE = frozenset({State.SCHEDULED, State.WAITING, State.FAILED, State.DEAD, State.CANCELED})
TROUBLED = "state IN ('scheduled', 'waiting', 'failed', 'dead', 'canceled')"
OFFERED = "state = 'running' AND lease_until IS NULL"
APPROVAL = "json_extract(approval, '$.status')"


class SqliteStore:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._counters = Counters(database)
        self._reading = RowReader()

    # Coming in.

    async def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], *, now: Instant
    ) -> Inserted:
        def work() -> Inserted:
            self._counters.open()
            batch = self._begin(asks, now)
            rows: list[Row] = []
            receipts = [self._admit(one, batch, rows) for one in submissions]
            self._insert_rows(rows, batch)
            self._counters.close()
            return Inserted(receipts, batch.claimed)

        return await self._db.write(work)

    def _begin(self, asks: Sequence[Ask], now: Instant) -> WriteBatch:
        """Tasks that are queued already go first; slots that are left are for new ones."""
        batch = WriteBatch(asks, now)
        for ask in asks:
            batch.give(ask, self._claim_for(ask, now))
        return batch

    def _admit(self, submission: Submission, batch: WriteBatch, rows: list[Row]) -> Receipt:
        task = submission.task
        key = submission.key
        if key is not None:
            known = self._db.run(QUERIES["find_key"], (key.scope, key.key))
            if known:
                body, first = known[0]
                return Receipt(Fate.KNOWN if body == key.body else Fate.REUSED, first)
        depth = self._counters.depth(task.queue)
        # With a slot free it is born running: one write instead of two.
        slot = batch.take_slot(task.queue) if task.state is QUEUED and not depth else None
        if slot is None and submission.cap is not None and depth >= submission.cap:
            return Receipt(FULL, task.id)
        if key is not None:
            self._db.run(QUERIES["keep_key"], (key.scope, key.key, key.body, task.id))
        tid, place, notes = (
            self._counters.next_tid(),
            self._counters.next_place(),
            submission.events,
        )
        if slot is not None:
            task, claimed = born_claimed(task, slot, batch.now)
            notes = (*notes, claimed_note(slot.worker, 1))
            batch.claimed.append(claimed)
        rows.append((tid, place, *batch.texts.of_row(tid, to_row(task))))
        self._counters.write(tid, task.events, task.generation, notes, batch.now)
        self._counters.count(task.queue, task.state, task.lane, task.priority, +1)
        return Receipt(FRESH, task.id, slot is not None)

    # Going out.

    async def claim(self, asks: Sequence[Ask], *, now: Instant) -> Sequence[Claimed]:
        def work() -> Sequence[Claimed]:
            self._counters.open()
            claimed = [task for ask in asks for task in self._claim_for(ask, now)]
            self._counters.close()
            return claimed

        return await self._db.write(work)

    def _claim_for(self, ask: Ask, now: Instant) -> list[Claimed]:
        found: list[Claimed] = []
        for want in ask.wants:
            limit = min(want.limit, ask.limit - len(found))
            if limit <= 0:
                break
            if self._counters.ready(want) > 0:
                found += self._claim_lane(want, limit, ask, now)
        return found

    def _claim_lane(self, want: Want, limit: int, ask: Ask, now: Instant) -> list[Claimed]:
        rows = self._db.run(
            sql("claim", columns=CLAIMED),
            {
                "worker": ask.worker,
                "now": now,
                "from": None if ask.lease_ms is None else now,
                "until": None if ask.lease_ms is None else now + ask.lease_ms,
                "queue": want.queue,
                "priority": int(want.priority),
                "lane": str(want.lane),
                "limit": limit,
            },
        )
        rows.sort(key=lambda row: row[3])
        mail = self._letters([row[0] for row in rows if row[2]])
        self._counters.count(want.queue, State.QUEUED, want.lane, want.priority, -len(rows))
        self._counters.count(want.queue, State.RUNNING, want.lane, want.priority, len(rows))
        claimed: list[Claimed] = []
        for tid, events, _, _, *fields in rows:
            fields[13] = LANES[fields[13]]
            task = Claimed(*fields)
            if LONG in (task.payload, task.journal, task.bulk):
                texts: dict[str, str] = dict(self._db.run(QUERIES["long_texts"], (tid,)))
                texts = {name: text for name, text in texts.items() if getattr(task, name) == LONG}
                task = msgspec.structs.replace(task, **texts)
            if task.id in mail:
                task = msgspec.structs.replace(task, letters=tuple(mail[task.id]))
            note = claimed_note(ask.worker, task.attempt)
            self._counters.write(tid, events, task.generation, (note,), now)
            claimed.append(task)
        return claimed

    def _letters(self, tids: Sequence[int]) -> Mapping[TaskId, list[Letter]]:
        mail: dict[TaskId, list[Letter]] = defaultdict(list)
        if tids:
            for to, name, body in self._db.run_list("letters", tids):
                mail[to].append(Letter(to=to, name=name, body=body))
        return mail

    # Being held.

    async def extend(
        self, renewals: Sequence[LeaseRenewal], *, now: Instant
    ) -> Sequence[LeaseStatus]:
        def work() -> Sequence[LeaseStatus]:
            self._counters.open()
            latest = merge_renewals(renewals)
            rows = [
                (renewal.task, renewal.fence, renewal.until, renewal.progress, len(renewal.notes))
                for renewal in latest
            ]
            # By fence too: a stale owner may beat in the same batch as the true one.
            found = {row[:2]: row[2:] for row in self._db.run_rows("extend", rows)}
            statuses: list[LeaseStatus] = []
            for renewal in renewals:
                row = found.get((renewal.task, renewal.fence))
                if row is None:
                    statuses.append(LeaseStatus.LOST)
                    continue
                statuses.append(LeaseStatus.CANCEL if row[3] else LeaseStatus.HELD)
            for renewal in latest:
                row = found.get((renewal.task, renewal.fence))
                if row is not None and renewal.notes:
                    self._counters.write(row[0], row[1], row[2], renewal.notes, now)
            self._counters.close()
            return statuses

        return await self._db.write(work)

    # Moving on.

    async def apply(
        self, moves: Sequence[Move], asks: Sequence[Ask] = (), *, now: Instant
    ) -> Moved:
        def work() -> Moved:
            self._counters.open()
            batch = self._begin(asks, now)
            verdicts = self._apply_all(moves, batch)
            self._counters.close()
            awake, answered = frozenset(batch.awake), frozenset(batch.answered)
            return Moved(verdicts, awake, tuple(batch.claimed), answered)

        try:
            return await self._db.write(work)
        except apsw.ConstraintError as error:
            if len(moves) > 1 or SECOND_FINAL not in str(error):
                raise  # of many: tried again in halves, down to the one that it is
            return Moved([Verdict.REFUSED], frozenset())

    def _apply_all(self, moves: Sequence[Move], batch: WriteBatch) -> list[Verdict]:
        verdicts = [Verdict.GONE] * len(moves)
        for round_ in _rounds(moves):
            self._apply_round(moves, round_, verdicts, batch)
        return verdicts

    def _apply_round(
        self,
        moves: Sequence[Move],
        indexes: Sequence[int],
        verdicts: list[Verdict],
        batch: WriteBatch,
    ) -> None:
        shapes: dict[tuple[bool, tuple[str, ...]], list[int]] = defaultdict(list)
        for index in indexes:
            move = moves[index]
            placed = move.to is QUEUED and not move.front
            names = (*move.changes, "place") if placed else tuple(move.changes)
            shapes[move.to is move.expect, names].append(index)
        done: dict[TaskId, Row] = {}
        for (same, names), members in shapes.items():
            shaped = [moves[index] for index in members]
            done.update(self._apply_shape(same, names, shaped, batch))
        refused: list[int] = []
        applied: list[Move] = []
        born: list[Row] = []
        read: list[int] = []  # tasks whose letters are all read
        awoken: list[int] = []
        for index in indexes:
            row = done.get(moves[index].task)
            if row is None:
                refused.append(index)
                continue
            verdicts[index] = APPLIED
            applied.append(moves[index])
            self._follow(moves[index], row, born, batch)
            if moves[index].seen is not None:
                self._read(moves[index], row, read, awoken)
        self._insert_rows(born, batch)
        self._db.run_list("delete_all_letters", read)
        self._wake(awoken, batch)
        # After everybody's own events: a child's letter may wake a parent that is parked in this
        # batch, and the log must tell of the parking first.
        self._deliver(self._unanswered(applied, batch), batch)
        if refused:
            self._explain(moves, refused, verdicts)

    def _unanswered(self, moves: Sequence[Move], batch: WriteBatch) -> list[Letter]:
        """The letters of these moves, without those whose reader has gone on already."""
        answers = [move.answer for move in moves if move.answer is not None]
        verdicts = iter(self._apply_all(answers, batch) if answers else ())
        letters: list[Letter] = []
        for move in moves:
            if move.answer is not None and next(verdicts) is Verdict.APPLIED:
                batch.answered.add(move.answer.task)
            else:
                letters += move.letters
        return letters

    def _apply_shape(
        self, same: bool, names: tuple[str, ...], moves: Sequence[Move], batch: WriteBatch
    ) -> Mapping[TaskId, Row]:
        # A column that is named is written in each index that has it, changed or not.
        changes = "" if same else ", state = m.column5"
        changes += "".join(f", {name} = m.column{at}" for at, name in enumerate(names, start=10))
        long = [at for at, name in enumerate(names) if name in NAMES]
        rows: list[Row] = []
        for move in moves:
            values = [*move.changes.values()]
            for at in long:
                text = values[at]
                if isinstance(text, str) and len(text) > INLINE:
                    values[at] = LONG
                    batch.long.add(move.task)
            row: Row = (
                move.task,
                move.expect,
                move.fence,
                move.rev,
                move.to,
                move.due_at,
                len(move.events),
                move.due_by,
                move.seen or 0,
                *values,
            )
            if names and names[-1] == "place" and len(names) > len(move.changes):
                place = self._counters.next_place()
                row = (*row, place - AHEAD if move.ahead else place)
            rows.append(row)
        return {row[0]: row[1:] for row in self._db.run_rows("apply", rows, changes=changes)}

    def _follow(self, move: Move, row: Row, born: list[Row], batch: WriteBatch) -> None:
        """What comes with an applied move: events, counts, children."""
        tid, events, generation, queue, lane, priority, _ = row
        if move.to is not move.expect:
            self._counters.count(queue, move.expect, lane, priority, -1)
            self._counters.count(queue, move.to, lane, priority, +1)
        self._counters.write(tid, events, generation, move.events, batch.now)
        if move.task in batch.long:
            batch.texts.of_changes(tid, move.changes)
        if move.to is QUEUED:
            batch.awake.add(queue)
        for child in move.spawn:
            receipt = self._admit(child, batch, born)
            queued = child.task.state is QUEUED and not receipt.running
            if receipt.fate is FRESH and queued:
                batch.awake.add(child.task.queue)

    def _read(self, move: Move, row: Row, read: list[int], awoken: list[int]) -> None:
        """Letters that were seen are deleted; one that came later keeps the task from parking."""
        tid, unread = row[0], row[-1]
        if move.seen and not unread:
            read.append(tid)
        elif move.seen:
            self._db.run(QUERIES["delete_letters"], {"tid": tid, "seen": move.seen})
        if move.to is State.WAITING and unread:
            awoken.append(tid)

    def _insert_rows(self, rows: Sequence[Row], batch: WriteBatch) -> None:
        if rows:
            self._db.run_rows("insert_tasks", rows, columns=f"tid, place, {', '.join(FIELDS)}")
        batch.texts.write(self._db)

    def _explain(
        self, moves: Sequence[Move], refused: Sequence[int], verdicts: list[Verdict]
    ) -> None:
        ids = [moves[index].task for index in refused]
        now_are = {row[0]: row[1:] for row in self._db.run_list("look", ids)}
        for index in refused:
            move, found = moves[index], now_are.get(moves[index].task)
            if found is None:
                verdicts[index] = Verdict.GONE
            elif found[1] != move.fence:
                verdicts[index] = Verdict.STALE
            elif found[0] != move.expect or found[2] != move.rev:
                verdicts[index] = Verdict.MOVED
            else:
                verdicts[index] = Verdict.EARLY

    # Letters.

    async def post(self, letters: Sequence[Letter], *, now: Instant) -> Moved:
        def work() -> Moved:
            self._counters.open()
            batch = WriteBatch((), now)
            fitting = self._fitting(letters)
            alive = self._deliver([letters[at] for at in fitting], batch)
            self._counters.close()
            verdicts = [
                Verdict.REFUSED
                if at not in fitting
                else Verdict.APPLIED
                if letter.to in alive
                else Verdict.GONE
                for at, letter in enumerate(letters)
            ]
            return Moved(verdicts, frozenset(batch.awake))

        return await self._db.write(work)

    def _fitting(self, letters: Sequence[Letter]) -> Collection[int]:
        """Which of them find room: what lies unread with one task is bounded."""
        found = self._db.run_list("lying", list({letter.to for letter in letters}))
        lying = {id: (many, size) for id, many, size in found}
        fitting: list[int] = []
        for at, letter in enumerate(letters):
            many, size = lying.get(letter.to, (0, 0))
            size += text_bytes((letter.name, letter.body))
            if many < MAX_LETTERS and size <= MAX_LETTER_BYTES:
                lying[letter.to] = (many + 1, size)
                fitting.append(at)
        return frozenset(fitting)

    def _deliver(self, letters: Sequence[Letter], batch: WriteBatch) -> Collection[TaskId]:
        """Into the inboxes of those who live; returns who they are."""
        found = self._db.run_list("addressees", list({letter.to for letter in letters}))
        alive = {id: tid for id, tid, _ in found}
        rows = [
            (alive[letter.to], self._counters.next_place(), letter.name, letter.body)
            for letter in letters
            if letter.to in alive
        ]
        self._db.run_rows("post_letters", rows)
        self._db.run_rows("count_mail", list(Counter(row[0] for row in rows).items()))
        self._wake([tid for _, tid, waiting in found if waiting], batch)
        return alive

    def _wake(self, tids: Sequence[int], batch: WriteBatch) -> None:
        rows = [(tid, self._counters.next_place(), batch.now) for tid in tids]
        for tid, events, generation, queue, lane, priority in self._db.run_rows("wake", rows):
            self._counters.count(queue, State.WAITING, lane, priority, -1)
            self._counters.count(queue, State.QUEUED, lane, priority, +1)
            self._counters.write(tid, events, generation, (("task.woken", None),), batch.now)
            batch.awake.add(queue)

    # Looking.

    async def due(
        self,
        *,
        now: Instant,
        limit: int,
        without: Collection[TaskId] = (),
        most_bytes: int = PAGE_BYTES,
    ) -> Sequence[Task]:
        taken = Cut(limit, most_bytes)
        rows = self._db.read(
            sql("due", columns=COLUMNS),
            {"now": now, "limit": limit + len(without)},
            lambda rows: taken(row for row in rows if row[0] not in without),
        )
        found, odd = self._reading.tasks(rows)
        if odd:
            # Left where they are they would come first in every sweep, before all the others.
            await self._db.write(lambda: self._db.run_list("set_aside", odd, now + POSTPONE_MS))
        return found

    async def get(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        found: dict[TaskId, Task] = {}
        for at in range(0, len(ids), 256):
            part = tuple(ids[at : at + 256])
            rows = self._db.read(sql("get", rows=len(part), columns=COLUMNS), part)
            found.update((task.id, task) for task in self._reading.tasks(rows)[0])
        await self._db.kept()
        return [found.get(id) for id in ids]

    async def look(self, ids: Sequence[TaskId]) -> Sequence[Task | None]:
        return await self.get(ids)

    async def find(self, query: Query) -> Page[Task]:
        where, bindings = matching(query, payload=read_as("payload"))
        statement = sql("find", columns=COLUMNS).replace("{where}", where)
        bindings["limit"] = query.limit + 1
        taken = Cut(query.limit, query.most_bytes)
        rows = await self._db.read_far(statement, bindings, taken)
        await self._db.kept()
        return Page(self._reading.tasks(rows)[0], str(rows[-1][-1]) if taken.more else None)

    async def position(self, task: TaskId) -> int | None:
        found = self._db.read(QUERIES["place_of"], (task,))
        if not found:
            return None
        queue, priority, lane, place = found[0]
        before = sum(
            self._counters.waiting(queue, lane_, higher)
            for higher in range(priority)
            for lane_ in Lane
        )
        (ahead,) = self._db.read(QUERIES["ahead"], (queue, priority, lane, place, FAR))[0]
        return int(min(before + ahead, FAR) + 1)

    async def counts(self) -> Mapping[tuple[str, Lane, State], int]:
        counts: Counter[tuple[str, Lane, State]] = Counter()
        for (queue, state, lane, _), count in self._counters.tally():
            if state not in STATES:
                continue  # a newer version's
            counts[queue, LANES.get(lane, Lane.PRIMARY), STATES[state]] += count
        for queue, lane, count in self._db.read(QUERIES["offered"]):
            counts[queue, Lane.PRIMARY, State.RUNNING] -= count
            counts[queue, LANES[lane], State.QUEUED] += count
        return {key: count for key, count in counts.items() if count}

    async def events(
        self, *, after: str, limit: int, task: TaskId | None = None, most_bytes: int = LOG_BYTES
    ) -> Page[Event]:
        taken = Cut(limit, most_bytes)
        if task is not None:
            rows = self._db.read(QUERIES["history"], (task, int(after or 0), limit + 1), taken)
        elif after == "$":
            rows = self._db.read(QUERIES["log_end"])
            await self._db.kept()
            return Page([], str(rows[0][0]))
        else:
            rows = await self._db.read_far(QUERIES["log"], (int(after or 0), limit + 1), taken)
        await self._db.kept()
        next_ = str(rows[-1][0]) if rows else after
        return Page([Event(*row[1:]) for row in rows], next_, taken.more)

    async def purge(
        self, ids: Sequence[TaskId], *, now: Instant, postpone_ms: int = POSTPONE_MS
    ) -> int:
        def work() -> int:
            self._counters.open()
            slowest = self._db.run(QUERIES["slowest_cursor"])[0][0]
            over = self._db.run_list("over", ids)
            unread = [row[0] for row in over if slowest is not None and (row[4] or 0) > slowest]
            if unread:
                # A reader of the log has not read its events yet: it stays a while, out of the
                # sweep's way.
                self._db.run_list("postpone", unread, now + postpone_ms)
            gone = [row for row in over if row[0] not in set(unread)]
            tids = [row[0] for row in gone]
            for name in ("purge_events", "purge_letters", "purge_long_texts", "purge_tasks"):
                self._db.run_list(name, tids)
            self._db.run_list("date_keys", [row[1] for row in gone], now + KEY_MEMORY_MS)
            # Effects live as long as the key they are counted under: a task's own id, or one given.
            self._db.run_list("purge_effects", [row[1] for row in gone])
            self._db.run(QUERIES["forget_effects"], (now,))
            self._db.run(QUERIES["forget_keys"], (now,))
            for _, _, queue, state, _ in gone:
                self._counters.count(queue, STATES[state], "", 0, -1)
            self._counters.close()
            return len(gone)

        return await self._db.write(work)


def _rounds(moves: Sequence[Move]) -> Sequence[Sequence[int]]:
    """Indexes in rounds with no task twice: of two moves for one task the first is tried first."""
    if len({move.task for move in moves}) == len(moves):
        return [range(len(moves))]
    rounds: list[list[int]] = []
    times: Counter[TaskId] = Counter()
    for index, move in enumerate(moves):
        nth = times[move.task]
        times[move.task] += 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append(index)
    return rounds


def matching(query: Query, *, payload: str = "payload") -> tuple[str, dict[str, Any]]:
    parts, bindings = _among(query)
    if query.offered is False:
        parts.append(f"NOT ({OFFERED})")
    elif query.offered and query.states:
        parts[0] = f"({parts[0]} OR {OFFERED})"  # the states come first
    for name in ("type", "queue", "session", "parent", "fingerprint", "waiting_for"):
        value = getattr(query, name)
        if value is not None:
            parts.append(f"{name} = :{name}")
            bindings[name] = value
    if query.text is not None:
        parts.append(
            f"(instr(id, :text) OR instr(type, :text) OR instr({payload}, :text)"
            " OR instr(ifnull(error, ''), :text))"
        )
        bindings["text"] = query.text
    if query.after is not None:
        parts.append("tid < :after")
        bindings["after"] = int(query.after)
    return " AND ".join(parts) or "TRUE", bindings


def _among(query: Query) -> tuple[list[str], dict[str, Any]]:
    parts: list[str] = []
    bindings: dict[str, Any] = {}
    asked = set() if query.approval is None else {query.approval}
    troubled = query.states <= TROUBLE and not query.offered
    for name, column, values, also in (
        ("state", "state", query.states, TROUBLED if troubled else "TRUE"),
        ("profile", "profile", query.profiles, "TRUE"),
        ("approval", APPROVAL, asked if "all" not in asked else set(Status), "approval NOT NULL"),
    ):
        if values:
            names = [f":{name}{at}" for at in range(len(values))]
            parts += [f"{column} IN ({', '.join(names)})", also]
            bindings.update({f"{name}{at}": str(value) for at, value in enumerate(sorted(values))})
    return parts, bindings
