"""How each write of the ledger is done in SQL: plans, which yield statements and get their rows.

SQLite drives a plan within one turn of the loop, Postgres awaits each statement; both in one
transaction. A plan applies decided moves and refuses them on their guards; it decides nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from onward.core.contract import (
    APPLIED,
    BATCH_OVER,
    FRESH,
    FULL,
    MAX_LETTER_BYTES,
    MAX_LETTERS,
    Ask,
    Fate,
    Inserted,
    Key,
    LeaseRenewal,
    LeaseStatus,
    Move,
    Moved,
    Receipt,
    Submission,
    Verdict,
    Want,
)
from onward.core.limits import Bound, Usage
from onward.core.task import (
    FINAL,
    QUEUED,
    STATES,
    Claimed,
    Instant,
    Json,
    Letter,
    Note,
    State,
    Task,
    TaskId,
)
from onward.ledgers.codec import LANES, merge_renewals, text_bytes
from onward.ledgers.sql.dialect import Row, Step
from onward.ledgers.sql.rivals import find_rivals
from onward.ledgers.sql.turns import Waiting
from onward.ledgers.sql.write_batch import CLAIMED, Plan, WriteBatch, born_claimed, claimed_note

KEY_MEMORY_MS = 24 * 3_600_000
AHEAD = 2**52  # less than any place given otherwise
_LANE = CLAIMED.index("lane")

MakeBatch = Callable[[Sequence[Ask], Instant], WriteBatch]


class Plans:
    def __init__(self, batch: MakeBatch) -> None:
        self._batch = batch

    # Coming in.

    def insert(
        self, submissions: Sequence[Submission], asks: Sequence[Ask], now: Instant
    ) -> Plan[Inserted]:
        batch = self._batch(asks, now)
        yield from self._fill(batch)
        receipts = yield from self._admit(submissions, batch)
        yield from batch.close()
        return Inserted(receipts, batch.claimed)

    def _fill(self, batch: WriteBatch) -> Plan[None]:
        """Tasks that are queued already go first; slots that are left are for new ones."""
        for ask in batch.asks:
            claimed = yield from self._claim(ask, batch)
            batch.give(ask, claimed)

    def _admit(self, submissions: Sequence[Submission], batch: WriteBatch) -> Plan[list[Receipt]]:
        keys = {one.task.id: one.key for one in submissions if one.key is not None}
        known = (yield from self._hold_keys(keys)) if keys else {}
        capped = {one.task.queue for one in submissions if one.cap is not None}
        idle = batch.idle_queues(submissions)
        if capped or idle:
            yield from batch.read_depths(capped, idle - capped)
        rivals = yield from find_rivals(submissions, batch)
        receipts: list[Receipt] = []
        born: list[tuple[Task, Sequence[Note]]] = []
        for one in submissions:
            holder = known.get(one.task.id)
            if holder is not None:  # perhaps one of this batch that was not taken
                receipts.append(rivals.untaken.get(holder.task, holder))
                continue
            receipt = rivals.verdict(one) or self._admit_one(one, batch, born, idle)
            rivals.note(one, receipt)
            receipts.append(receipt)
        if rivals.untaken and keys:
            yield from rivals.free_keys(keys)
        if born:
            tids = yield from batch.new_tasks([task for task, _ in born])
            for tid, (task, notes) in zip(tids, born, strict=True):
                batch.write(tid, task.events, task.generation, notes)
        return receipts

    def _admit_one(
        self,
        submission: Submission,
        batch: WriteBatch,
        born: list[tuple[Task, Sequence[Note]]],
        idle: Collection[str],
    ) -> Receipt:
        task, notes, slot = submission.task, submission.events, None
        if (
            task.queue in idle
            and task.state is QUEUED
            and not task.partition
            and not batch.depth(task.queue)
        ):
            slot = batch.take_slot(task.queue)  # born running: one write instead of two
        cap = submission.cap
        if slot is not None:
            task, claimed = born_claimed(task, slot, batch.now)
            batch.claimed.append(claimed)
            notes = (*notes, claimed_note(slot.worker, 1))
        elif cap is not None and batch.depth(task.queue) >= cap:
            return Receipt(FULL, task.id)
        born.append((task, notes))
        batch.count(task.queue, task.state, task.lane, task.priority, +1)
        if task.partition or batch.watching:
            batch.came(task)
        return Receipt(FRESH, task.id, slot is not None)

    def _hold_keys(self, keys: Mapping[TaskId, Key]) -> Plan[Mapping[TaskId, Receipt]]:
        """Of those whose key is another task's: that task."""
        left, found = dict(keys), dict[tuple[str, str], Row]()
        while True:
            rows = [(key.scope, key.key, key.body, task) for task, key in left.items()]
            for (task,) in (yield Step("hold_keys", rows=rows)):
                del left[task]
            places = {(key.scope, key.key) for key in left.values()}
            if places:
                held = yield Step("find_keys", rows=list(places))
                found = {(scope, key): (body, task) for scope, key, body, task in held}
            if places <= found.keys():  # else another server has forgotten one this very moment
                break
        known: dict[TaskId, Receipt] = {}
        for task, key in left.items():
            body, first = found[key.scope, key.key]
            known[task] = Receipt(Fate.KNOWN if body == key.body else Fate.REUSED, first)
        return known

    # Going out.

    def claim(self, asks: Sequence[Ask], now: Instant) -> Plan[Sequence[Claimed]]:
        batch = self._batch(asks, now)
        yield from self._fill(batch)
        yield from batch.close()
        return batch.claimed

    def _claim(self, ask: Ask, batch: WriteBatch) -> Plan[list[Claimed]]:
        claimed: list[Claimed] = []
        for want, rows in (yield from batch.take(ask)):
            lane, priority = want.lane, want.priority
            batch.count(want.queue, State.QUEUED, lane, priority, -len(rows))
            batch.count(want.queue, State.RUNNING, lane, priority, len(rows))
            tids = [row[0] for row in rows if row[2]]
            mail = (yield from self._letters(tids)) if tids else {}
            for tid, events, _, _, *fields in rows:
                fields[_LANE] = LANES[fields[_LANE]]
                task = Claimed(*fields)
                if task.id in mail:
                    task = msgspec.structs.replace(task, letters=tuple(mail[task.id]))
                note = claimed_note(ask.worker, task.attempt)
                batch.write(tid, events, task.generation, (note,))
                claimed.append(task)
        return claimed

    def _letters(self, tids: Sequence[int]) -> Plan[Mapping[TaskId, list[Letter]]]:
        mail: dict[TaskId, list[Letter]] = defaultdict(list)
        for to, name, body in (yield Step("letters", values=tids)):
            mail[to].append(Letter(to=to, name=name, body=body))
        return mail

    # Waiting for a turn.

    def start_at(self, wants: Sequence[Want], now: Instant) -> Plan[Mapping[str, Instant]]:
        batch = self._batch((), now)
        waiting = Waiting()
        yield from batch.look(wants, waiting)
        yield from batch.close()
        return waiting.start_at

    def usage(self, bounds: Sequence[Bound], partition: str, now: Instant) -> Plan[Sequence[Usage]]:
        batch = self._batch((), now)
        room = yield from batch.room(bounds, partition)
        return [room.usage(bound, partition) for bound in bounds]

    def forget_rates(self, now: Instant) -> Plan[None]:
        batch = self._batch((), now)
        batch.forgot((yield Step("forget_rates", (now,))))

    # Being held.

    def extend(self, renewals: Sequence[LeaseRenewal], now: Instant) -> Plan[Sequence[LeaseStatus]]:
        batch = self._batch((), now)
        latest = merge_renewals(renewals)
        rows = [
            (renewal.task, renewal.fence, renewal.until, renewal.progress, len(renewal.notes))
            for renewal in latest
        ]
        # By fence too: a stale owner may beat in the same batch as the true one.
        found = {tuple(row[:2]): row[2:] for row in (yield Step("extend", rows=rows))}
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
                batch.write(row[0], row[1], row[2], renewal.notes)
        yield from batch.close()
        return statuses

    # Moving on.

    def apply(self, moves: Sequence[Move], asks: Sequence[Ask], now: Instant) -> Plan[Moved]:
        batch = self._batch(asks, now)
        yield from self._fill(batch)
        verdicts = yield from self._apply_all(moves, batch)
        if batch.ended:
            yield from self._end_batches(batch)
        yield from batch.close()
        awake, answered = frozenset(batch.awake), frozenset(batch.answered)
        return Moved(verdicts, awake, tuple(batch.claimed), answered)

    def _apply_all(self, moves: Sequence[Move], batch: WriteBatch) -> Plan[list[Verdict]]:
        verdicts = [Verdict.GONE] * len(moves)
        for round_ in _rounds(moves):
            yield from self._apply_round(moves, round_, verdicts, batch)
        return verdicts

    def _apply_round(
        self,
        moves: Sequence[Move],
        indexes: Sequence[int],
        verdicts: list[Verdict],
        batch: WriteBatch,
    ) -> Plan[None]:
        done = yield from self._move([moves[index] for index in indexes], batch)
        refused = [index for index in indexes if moves[index].task not in done]
        applied = [moves[index] for index in indexes if moves[index].task in done]
        for index in indexes:
            if moves[index].task in done:
                verdicts[index] = APPLIED
        for move in applied:
            self._follow(move, done[move.task], batch)
        yield from self._spawn([child for move in applied for child in move.spawn], batch)
        yield from self._read([move for move in applied if move.seen is not None], done, batch)
        keys = [(key, move) for move in applied for key in move.keys]
        if keys:
            rows = [(key.scope, key.key, key.body, move.task) for key, move in keys]
            yield Step("hold_keys", rows=rows)
        # After everybody's own events: a child's letter may wake a parent that is parked in this
        # batch, and the log must tell of the parking first.
        letters = yield from self._unanswered(applied, batch)
        if letters:
            yield from self._deliver(letters, batch)
        if refused:
            yield from self._explain(moves, refused, verdicts)

    def _move(self, moves: Sequence[Move], batch: WriteBatch) -> Plan[Mapping[TaskId, Row]]:
        """The rows of those that were applied, by task. Moves that change the same go together."""
        shapes: dict[tuple[bool, tuple[str, ...]], list[Move]] = defaultdict(list)
        for move in moves:
            placed = move.to is QUEUED and not move.front
            names = (*move.changes, "place") if placed else tuple(move.changes)
            shapes[move.to is move.expect, names].append(move)
        done: dict[TaskId, Row] = {}
        for (same, names), shaped in shapes.items():
            for row in (yield from self._apply_shape(same, names, shaped, batch)):
                done[row[0]] = row[1:]
        return done

    def _apply_shape(
        self,
        same: bool,
        names: tuple[str, ...],
        moves: Sequence[Move],
        batch: WriteBatch,
    ) -> Plan[list[Row]]:
        # A column that is named is written in each index that has it, changed or not.
        changes = "" if same else ", state = m.state"
        placed = len(names) > len(moves[0].changes)
        changes += "".join(f", {name} = m.new_{name}" for name in names[: len(names) - placed])
        places: Iterable[int] = ()
        if placed:
            changes += ", place = {place_after}m.new_place"
            places = batch.places(len(moves))
        rows: list[Row] = []
        nexts = iter(places)
        aside = batch.may_go_aside(names)
        for move in moves:
            values: list[object] = [*move.changes.values()]
            if aside:
                batch.set_aside(move, values, aside)
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
            if placed:
                row = (*row, next(nexts) - (AHEAD if move.ahead else 0))
            rows.append(row)
        return (yield Step("apply", rows=rows, fields=names, changes=changes))

    def _follow(self, move: Move, row: Row, batch: WriteBatch) -> None:
        """What comes with an applied move: events, counts, and where its long texts go."""
        tid, events, generation, queue, lane, priority, type_, partition, again, came_with, _ = row
        if move.to is not move.expect:
            batch.count(queue, move.expect, lane, priority, -1)
            batch.count(queue, move.to, lane, priority, +1)
            if came_with is not None and move.to in FINAL and move.expect not in FINAL:
                batch.ended.add(came_with)
        elif "queue" in move.changes and queue != move.queue:
            batch.count(move.queue, move.expect, lane, priority, -1)
            batch.count(queue, move.to, lane, priority, +1)
        if partition or batch.watching:
            batch.went(move, (queue, priority, lane), type_, partition, again=bool(again))
        batch.write(tid, events, generation, move.events)
        if move.task in batch.aside:
            batch.moved(move, tid)
        if move.to is QUEUED:
            batch.awake.add(queue)

    def _spawn(self, children: Sequence[Submission], batch: WriteBatch) -> Plan[None]:
        if not children:
            return
        receipts = yield from self._admit(children, batch)
        for child, receipt in zip(children, receipts, strict=True):
            if receipt.fate is FRESH and child.task.state is QUEUED and not receipt.running:
                batch.awake.add(child.task.queue)

    def _read(
        self, moves: Sequence[Move], done: Mapping[TaskId, Row], batch: WriteBatch
    ) -> Plan[None]:
        """Letters that were seen are deleted; one that came later keeps the task from parking."""
        all_read: list[int] = []
        awoken: list[int] = []
        for move in moves:
            tid, unread = done[move.task][0], done[move.task][-1]
            if move.seen and not unread:
                all_read.append(tid)
            elif move.seen:
                yield Step("delete_letters", (tid, move.seen))
            if move.to is State.WAITING and unread:
                awoken.append(tid)
        if all_read:
            yield Step("delete_all_letters", values=all_read)
        if awoken:
            yield from self._wake(awoken, batch)

    def _unanswered(self, moves: Sequence[Move], batch: WriteBatch) -> Plan[list[Letter]]:
        """The letters of these moves, without those whose reader has gone on already."""
        answers = [move.answer for move in moves if move.answer is not None]
        verdicts = iter((yield from self._apply_all(answers, batch)) if answers else ())
        letters: list[Letter] = []
        for move in moves:
            if move.answer is not None and next(verdicts) is Verdict.APPLIED:
                batch.answered.add(move.answer.task)
            else:
                letters += move.letters
        return letters

    def _explain(
        self, moves: Sequence[Move], refused: Sequence[int], verdicts: list[Verdict]
    ) -> Plan[None]:
        found = yield Step("look", values=[moves[index].task for index in refused])
        now_are = {id: (state, fence, rev) for id, state, fence, rev in found}
        for index in refused:
            move = moves[index]
            state, fence, rev = now_are.get(move.task, (None, None, None))
            if state is None:
                verdicts[index] = Verdict.GONE
            elif fence != move.fence:
                verdicts[index] = Verdict.STALE
            elif state != move.expect or rev != move.rev:
                verdicts[index] = Verdict.MOVED
            else:
                verdicts[index] = Verdict.EARLY

    def _end_batches(self, batch: WriteBatch) -> Plan[None]:
        """A letter to each batch of tasks that has none left that is not over."""
        ended = sorted(batch.ended)
        # Of two transactions that end its last two tasks, each would else see the other's as live.
        yield from batch.lock([f"batch {id}" for id in ended])
        left = {id for (id,) in (yield Step("live_batches", values=ended))}
        over = [Letter(to=id, name=BATCH_OVER, body="null") for id in ended if id not in left]
        if over:
            yield from self._deliver(over, batch)

    # Letters.

    def post(self, letters: Sequence[Letter], now: Instant) -> Plan[Moved]:
        batch = self._batch((), now)
        fitting = yield from self._fitting(letters)
        alive = yield from self._deliver([letters[at] for at in fitting], batch)
        yield from batch.close()
        verdicts = [
            Verdict.REFUSED
            if at not in fitting
            else Verdict.APPLIED
            if letter.to in alive
            else Verdict.GONE
            for at, letter in enumerate(letters)
        ]
        return Moved(verdicts, frozenset(batch.awake))

    def _fitting(self, letters: Sequence[Letter]) -> Plan[Collection[int]]:
        """Which of them find room: what lies unread with one task is bounded."""
        found = yield Step("lying", values=list({letter.to for letter in letters}))
        lying = {id: (many, size) for id, many, size in found}
        fitting: dict[int, None] = {}
        for at, letter in enumerate(letters):
            many, size = lying.get(letter.to, (0, 0))
            size += text_bytes((letter.name, letter.body))
            if many < MAX_LETTERS and size <= MAX_LETTER_BYTES:
                lying[letter.to] = (many + 1, size)
                fitting[at] = None
        return fitting

    def _deliver(self, letters: Sequence[Letter], batch: WriteBatch) -> Plan[Collection[TaskId]]:
        """Into the inboxes of those who live; returns who they are."""
        found = yield Step("addressees", values=list({letter.to for letter in letters}))
        alive = {id: tid for id, tid, _ in found}
        reach = [letter for letter in letters if letter.to in alive]
        if not reach:
            return alive
        rows: list[Row] = [
            (alive[letter.to], place, letter.name, letter.body)
            for letter, place in zip(reach, batch.places(len(reach)), strict=True)
        ]
        yield Step("post_letters", rows=rows)
        yield Step("count_mail", rows=list(Counter(row[0] for row in rows).items()))
        waiting = [tid for _, tid, waiting in found if waiting]
        if waiting:
            yield from self._wake(waiting, batch)
        return alive

    def _wake(self, tids: Sequence[int], batch: WriteBatch) -> Plan[None]:
        places = batch.places(len(tids))
        rows = [(tid, place, batch.now) for tid, place in zip(tids, places, strict=True)]
        for tid, events, generation, queue, lane, priority, partition in (
            yield Step("wake", rows=rows)
        ):
            batch.count(queue, State.WAITING, lane, priority, -1)
            batch.count(queue, State.QUEUED, lane, priority, +1)
            if partition:
                batch.joined((queue, priority, lane), partition)
            batch.write(tid, events, generation, (("task.woken", None),))
            batch.awake.add(queue)

    # Forgetting.

    def purge(self, ids: Sequence[TaskId], now: Instant, postpone_ms: int) -> Plan[int]:
        batch = self._batch((), now)
        read_up_to = min([_place_in_log(body) for (body,) in (yield Step("cursors"))], default=None)
        over = yield Step("over", values=ids)
        unread = [row[0] for row in over if read_up_to is not None and (row[4] or 0) > read_up_to]
        if unread:
            # A reader of the log has not read its events yet: it stays a while, out of the
            # sweep's way.
            yield Step("postpone", (now + postpone_ms,), values=unread)
        kept = set(unread)
        gone = [row for row in over if row[0] not in kept]
        tids, names = [row[0] for row in gone], [row[1] for row in gone]
        if gone:
            for name in ("purge_events", "delete_all_letters", "purge_tasks"):
                yield Step(name, values=tids)
            yield from batch.purged(tids)
            yield Step("date_keys", (now + KEY_MEMORY_MS,), values=names)
            # Effects live as long as the key they are counted under: a task's own id, or one given.
            yield Step("purge_effects", values=names)
        yield Step("forget_effects", (now,))
        yield Step("forget_keys", (now,))
        for _, _, queue, state, _ in gone:
            batch.count(queue, STATES[state], "", 0, -1)
        yield from batch.close()
        return len(gone)

    def set_aside(self, ids: Sequence[TaskId], until: Instant) -> Plan[None]:
        yield Step("set_aside", (until,), values=ids)


def _place_in_log(cursor: Json) -> int:
    """One that cannot be read stands at the beginning: what its reader has seen is not known."""
    try:
        return int(msgspec.json.decode(cursor) or 0)
    except (TypeError, ValueError):  # msgspec's is one
        return 0


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
