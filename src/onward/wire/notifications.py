"""What a session is notified of, what it wants to be notified of, and how urgent its work is."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from onward.wire.base import Body, Instant, Limit, PriorityWord, Query, Wire

NotificationType: TypeAlias = Literal[
    "task_completed", "task_failed", "task_timeout", "approval_requested"
]
Delivery: TypeAlias = Literal["websocket", "sse", "poll", "webhook", "interaction"]
Types: TypeAlias = tuple[NotificationType, ...]

EventId = Annotated[str, Meta(max_length=64)]


class Notification(Wire, frozen=True):
    """As it is sent, whichever way."""

    notification_id: str
    type: NotificationType
    task_id: str
    task_type: str
    message: str
    action: str
    timestamp: str
    priority: str


class NotificationView(Notification, frozen=True):
    read: bool
    # Only with `peek`: when it was acknowledged, how it was first delivered, and when.
    read_at: Instant | UnsetType | None = UNSET
    delivered_by: Delivery | UnsetType | None = UNSET
    delivered_at: Instant | UnsetType | None = UNSET


class NotificationsQuery(Query, frozen=True):
    unread: bool = False
    peek: Annotated[bool, Meta(description="look on without counting as a delivery")] = False
    cursor: EventId | None = None
    limit: Limit = 100


class WebhookBody(Body, frozen=True):
    url: Annotated[str, Meta(max_length=512)]
    # Absent: the one that was there, or a new one if the URL is new.
    secret: Annotated[str, Meta(min_length=8, max_length=512)] | None = None
    types: Types | None = None  # None: all


class PreferencesBody(Body, frozen=True):
    push: bool = True
    types: Types | None = None  # of what is pushed; None: all
    webhook: WebhookBody | None = None
    priority: PriorityWord = "normal"  # of its tasks and runs that name none


class WebhookView(Wire, frozen=True, kw_only=True):
    url: str
    secret: str | UnsetType = UNSET  # returned once, to the caller who has just set it
    types: Types


class PreferencesView(Wire, frozen=True):
    push: bool
    types: Types
    webhook: WebhookView | None
    priority: PriorityWord
