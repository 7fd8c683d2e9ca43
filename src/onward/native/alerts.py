"""What needs attention is sent to the operator's webhooks: when it begins, and when it is over.

One server at a time compares the list with what was sent last. That is one document of the ledger:
a change stands in it, with its id, before it is sent, so that a server that dies in between, or the
next one, sends it under the same id, and nothing that was sent is sent again. An item counts once
it has stood, or has been gone, for `hold_ms`: what comes and goes faster than that sends nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

from onward.core.contract import Document
from onward.core.dispatch import Dispatcher
from onward.core.duty import Duty
from onward.core.task import Instant, Json, Priority, encode, new_id
from onward.native.attention import AttentionRules
from onward.native.webhooks import CLOUD_EVENT, JSON, WebhookCall, submit_delivery
from onward.wire.attention import AttentionItem
from onward.wire.times import iso
from onward.workers.http.address import Hosts

TYPE = "onward:alert"
STATE = ("alerts", "state")  # kind and key of the document
LOOK_S = 2.0  # less than half of a duty's lease: the same server looks again
KEPT_MS = 24 * 3_600_000  # a change, for as long as its delivery may be tried again
MOST_KEPT = 100
SLACK = "slack+"  # before a URL that takes Slack's form of a message

Who = tuple[str, str]  # rule and target


class Alert(AttentionItem, frozen=True, kw_only=True):
    id: str
    began_at: Instant
    over_at: Instant | None = None

    @property
    def who(self) -> Who:
        return self.rule, self.target


class AlertChange(msgspec.Struct, frozen=True, kw_only=True):
    """What began and what ended between two looks: one message."""

    id: str
    at: Instant
    began: tuple[Alert, ...] = ()
    over: tuple[Alert, ...] = ()


class AlertState(msgspec.Struct, frozen=True, kw_only=True):
    open: tuple[Alert, ...] = ()
    changes: tuple[AlertChange, ...] = ()  # the newest last
    unsent: tuple[str, ...] = ()  # ids of changes whose deliveries may not be submitted yet


class AlertDelivery(msgspec.Struct, frozen=True):
    """Where to, as a digest: such a URL is a secret itself."""

    change_id: str
    receiver: str


_decode = msgspec.json.Decoder(AlertDelivery).decode
_decode_state = msgspec.json.Decoder(AlertState).decode


class Alerts:
    """Looks, and stands behind the deliveries."""

    type = TYPE

    def __init__(
        self,
        dispatcher: Dispatcher,
        rules: AttentionRules,
        urls: Sequence[str],
        *,
        secret: str | None,
        hold_ms: int,
        public_url: str | None,
        duty: Duty | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._documents = dispatcher.backend.documents
        self._rules = rules
        self._urls = {_digest(url): url for url in urls}
        self._secret = secret
        self._hold_ms = hold_ms
        self._public_url = (public_url or "").rstrip("/")
        self._duty = duty
        self._seen: dict[Who, Instant] = {}  # not sent yet, and since when they are there
        self._gone: dict[Who, Instant] = {}  # sent, and since when they are not there any more
        # Who sets the server's environment decides where it may post to: these hosts, no others.
        self.hosts = Hosts(urlsplit(_plain(url)).hostname or "" for url in urls)

    async def look(self) -> None:
        if self._duty is not None and not await self._duty.mine():
            self._seen.clear()
            self._gone.clear()
            return
        now = self._dispatcher.clock.now()
        found = await self._documents.get(*STATE, now=now)
        state = AlertState() if found is None else _decode_state(found.body)
        changed = self._changed(state, await self._rules.read(), now)
        if changed is not state:
            # Refused if another server, which took us for dead, was here since: it sends then.
            found = await self._put(changed, found, now)
        if found is not None and changed.unsent:
            await self._submit(changed.unsent)
            await self._put(msgspec.structs.replace(changed, unsent=()), found, now)

    def _changed(
        self, state: AlertState, items: Iterable[AttentionItem], now: Instant
    ) -> AlertState:
        there: dict[Who, AttentionItem] = {(item.rule, item.target): item for item in items}
        known = {alert.who: alert for alert in state.open}
        fresh = self._held(self._seen, [who for who in there if who not in known], now)
        ended = self._held(self._gone, [who for who in known if who not in there], now)
        if not fresh and not ended:
            return state
        fields = msgspec.structs.asdict
        began = [Alert(**fields(there[who]), id=new_id(), began_at=now) for who in fresh]
        over = [msgspec.structs.replace(known[who], over_at=now) for who in ended]
        change = AlertChange(id=new_id(), at=now, began=tuple(began), over=tuple(over))
        kept = [one for one in state.changes if one.at + KEPT_MS > now][1 - MOST_KEPT :]
        return AlertState(
            open=(*(alert for alert in state.open if alert.who not in ended), *began),
            changes=(*kept, change),
            unsent=(*state.unsent, change.id),
        )

    def _held(self, since: dict[Who, Instant], now_there: Iterable[Who], now: Instant) -> set[Who]:
        """Those that have been so for `hold_ms`; what is not so any more counts from anew."""
        whos = set(now_there)
        for who in since.keys() - whos:
            del since[who]
        for who in whos:
            since.setdefault(who, now)
        return {who for who in whos if now - since[who] >= self._hold_ms}

    async def _put(
        self, state: AlertState, found: Document | None, now: Instant
    ) -> Document | None:
        expect = 0 if found is None else found.version
        return await self._documents.put(*STATE, encode(state), now=now, expect=expect)

    async def _submit(self, changes: Iterable[str]) -> None:
        for change in changes:
            for receiver in self._urls:
                delivery, key = AlertDelivery(change, receiver), f"{change}.{receiver}"
                # Before callbacks and notifications: they may be many, and alerts are few.
                await submit_delivery(self._dispatcher, TYPE, delivery, key, Priority.HIGH)

    async def prepare(self, payload: Json) -> WebhookCall | str:
        delivery = _decode(payload)
        url = self._urls.get(delivery.receiver)
        if url is None:
            # Another server may have it: while servers are restarted, their settings differ.
            raise LookupError("this server has no such receiver of alerts")
        found = await self._documents.get(*STATE, now=self._dispatcher.clock.now())
        changes = () if found is None else _decode_state(found.body).changes
        change = next((one for one in changes if one.id == delivery.change_id), None)
        if change is None:
            return "no such alert"
        slack = url.startswith(SLACK)
        return WebhookCall(
            id=change.id,
            url=_plain(url),
            secret=self._secret,
            body=encode({"text": self._text(change)}).encode() if slack else _event(change),
            content=JSON if slack else CLOUD_EVENT,
        )

    async def delivered(self, payload: Json) -> None:
        """The task that delivered it shows that."""

    def _text(self, change: AlertChange) -> str:
        """As Slack writes links, and without a way to address a channel from a queue's name."""
        signs = [(":rotating_light:", one) for one in change.began]
        signs += [(":white_check_mark: over:", one) for one in change.over]
        return "\n".join(f"{sign} {self._line(alert)}" for sign, alert in signs)

    def _line(self, alert: Alert) -> str:
        text = _escaped(alert.message)
        return f"{text} <{self._public_url}{alert.link}|open>" if self._public_url else text


def _event(change: AlertChange) -> bytes:
    """CloudEvents 1.0, in one JSON object."""
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": change.id,
            "source": "onward",
            "type": "onward.attention",
            "time": iso(change.at),
            "datacontenttype": "application/json",
            "data": {"began": change.began, "over": change.over},
        }
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(url: str) -> str:
    return url.removeprefix(SLACK)


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]
