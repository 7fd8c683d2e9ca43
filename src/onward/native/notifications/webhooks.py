"""A notification is posted to a URL that the session chose: a CloudEvent, signed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.task import Json
from onward.native.notifications.preferences import PreferenceStore
from onward.native.notifications.store import NotificationStore, StoredNotification
from onward.native.webhooks import QUEUE, WebhookCall, submit_delivery
from onward.wire.notifications import Notification
from onward.workers.http.address import Hosts


class WebhookDelivery(msgspec.Struct, frozen=True):
    session_id: str
    notification_id: str


_decode = msgspec.json.Decoder(WebhookDelivery).decode


def cloud_event(session: str, notification: Notification) -> bytes:
    """CloudEvents 1.0, in one JSON object."""
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": notification.notification_id,
            "source": "onward",
            "type": f"onward.{notification.type}",
            "subject": notification.task_id,
            "time": notification.timestamp,
            "datacontenttype": "application/json",
            "sessionid": session,
            "data": notification,
        }
    )


class SessionWebhooks:
    """Listens to the projector and submits the deliveries; what stands behind them."""

    type = QUEUE

    def __init__(
        self,
        dispatcher: Dispatcher,
        notifications: NotificationStore,
        preferences: PreferenceStore,
        hosts: Hosts,
    ) -> None:
        self._dispatcher = dispatcher
        self._notifications = notifications
        self._preferences = preferences
        self.hosts = hosts

    async def submit(self, session: str, all_: Sequence[StoredNotification]) -> None:
        webhook = (await self._preferences.get(session)).webhook
        if webhook is None:
            return
        await asyncio.gather(
            *[
                submit_delivery(
                    self._dispatcher, QUEUE, WebhookDelivery(session, stored.id), stored.id
                )
                for stored in all_
                if stored.notification.type in webhook.types
            ]
        )

    async def prepare(self, payload: Json) -> WebhookCall | str:
        delivery = _decode(payload)
        stored = await self._notifications.get(delivery.session_id, delivery.notification_id)
        webhook = (await self._preferences.get(delivery.session_id)).webhook
        if stored is None or webhook is None:
            return "no notification" if stored is None else "no webhook"
        return WebhookCall(
            id=stored.id,
            url=webhook.url,
            secret=webhook.secret,
            body=cloud_event(delivery.session_id, stored.notification),
        )

    async def delivered(self, payload: Json) -> None:
        delivery = _decode(payload)
        stored = await self._notifications.get(delivery.session_id, delivery.notification_id)
        if stored is not None:
            now = self._dispatcher.clock.now()
            self._notifications.deliveries.pushed("webhook", stored, now)
            await self._notifications.record(delivery.session_id, [stored], "webhook")
