"""Every setting once: our name, the environment names it answers to, its unit and its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, TypeAdapter, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from onward.core.policy import BY_ERROR, Schedule

Ms = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]

_SCHEDULES = TypeAdapter(dict[str, list[Annotated[float, Field(ge=0)]]])


def _env(name: str | AliasChoices, default: Any) -> Any:
    return Field(default, validation_alias=name)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True, frozen=True)

    host: str = _env("ONWARD_HOST", "127.0.0.1")
    port: Annotated[int, Field(ge=0, le=65535)] = _env("ONWARD_PORT", 8070)
    ledger: str = _env("ONWARD_LEDGER", "sqlite:///onward.db")
    # For the doors and workers that speak Redis streams.
    redis: str | None = _env(AliasChoices("ONWARD_REDIS", "REDIS_URL"), None)
    redis_prefix: str = _env("ONWARD_REDIS_PREFIX", "")  # "{onward}:" on a cluster
    # Of a Redis ledger: where its events and finished tasks go, "" for nowhere; when they leave it.
    archive: str = _env("ONWARD_ARCHIVE", "sqlite:///onward-archive.db")
    redis_keep_ms: Ms = _env("ONWARD_REDIS_KEEP_MS", 86_400_000)
    synchronous: Literal["full", "normal"] = _env("ONWARD_SYNCHRONOUS", "full")

    lease_ms: Positive = _env("ONWARD_LEASE_MS", 30_000)
    drain_ms: Ms = _env("ONWARD_DRAIN_MS", 10_000)
    max_waiters: Positive = _env("ONWARD_MAX_WAITERS", 10_000)
    max_connections: Positive = _env("ONWARD_MAX_CONNECTIONS", 4_000)
    max_sockets: Positive = _env("ONWARD_MAX_SOCKETS", 1_000)  # worker connections
    header_timeout_ms: Positive = _env("ONWARD_HEADER_TIMEOUT_MS", 10_000)
    body_timeout_ms: Positive = _env("ONWARD_BODY_TIMEOUT_MS", 30_000)
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_ALLOWED_HOSTS", ())
    builtin_slots: Positive = _env("ONWARD_BUILTIN_SLOTS", 256)
    log_level: Literal["debug", "info", "warning", "error"] = _env("ONWARD_LOG_LEVEL", "info")
    log_json: bool = _env("ONWARD_LOG_JSON", False)

    # The dispatcher door.
    task_timeout_ms: Positive = _env("TASK_TIMEOUT_MS", 60_000)
    min_task_timeout_ms: Positive = _env("MIN_TASK_TIMEOUT_MS", 5_000)
    max_task_timeout_ms: Positive = _env("MAX_TASK_TIMEOUT_MS", 600_000)
    max_queue_length: Ms = _env("MAX_QUEUE_LENGTH", 1_000)
    task_result_ttl_ms: Ms = _env("TASK_RESULT_TTL_MS", 300_000)
    queue_age_ms: Positive = _env("ONWARD_QUEUE_AGE_MS", 3_600_000)

    # The stream door.
    stream_types: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_STREAM_TYPES", ())
    stream_credits: Positive = _env("ONWARD_STREAM_CREDITS", 64)  # entries nobody has taken yet
    visibility_timeout_s: Annotated[float, Field(gt=0)] = _env("VISIBILITY_TIMEOUT_S", 300)
    heartbeat_interval_s: Annotated[float, Field(gt=0)] = _env("HEARTBEAT_INTERVAL_S", 30)
    max_retries: Annotated[int, Field(ge=0)] = _env("MAX_RETRIES", 3)

    # Seconds by error class, as JSON: {"Default": [5, 15, 60]}. What is not named stays as it is.
    retry_schedules: Annotated[dict[str, list[float]], NoDecode] = _env(
        "ONWARD_RETRY_SCHEDULES", {}
    )

    @field_validator("allowed_hosts", "stream_types", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("retry_schedules", mode="before")
    @classmethod
    def _decode(cls, value: Any) -> Any:
        return _SCHEDULES.validate_json(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sensible(self) -> Settings:
        if self.min_task_timeout_ms > self.max_task_timeout_ms:
            raise ValueError("MIN_TASK_TIMEOUT_MS is greater than MAX_TASK_TIMEOUT_MS")
        return self

    def schedules(self) -> dict[str, Schedule]:
        named = {
            name: Schedule(tuple(int(delay * 1000) for delay in delays), _jitter(name))
            for name, delays in self.retry_schedules.items()
            if delays
        }
        return {**BY_ERROR, **named}


def _jitter(name: str) -> tuple[float, float]:
    return BY_ERROR["Default"].jitter if name != "protocol" else (0.0, 0.0)
