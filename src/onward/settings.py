"""Every setting once: our name, the environment names it answers to, its unit and its default."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import AliasChoices, Field, SecretStr, TypeAdapter, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from onward.core.lanes import RetryShare
from onward.core.policy import (
    AGENTS,
    BY_ERROR,
    DEAD,
    PROTOCOL,
    Profile,
    RetrySchedule,
    profiles,
)
from onward.core.pressure.breaker import BreakerRules
from onward.wire.live import EnvironmentColor
from onward.workers.http.address import Hosts

Ms = Annotated[int, Field(ge=0)]
PREFIX = "ONWARD_"
_REDIS = ("redis://", "rediss://", "unix://")
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]  # a year at most

_DELAYS = Annotated[list[Annotated[float, Field(ge=0, le=31_536_000)]], Field(min_length=1)]
_SPANS = TypeAdapter(dict[str, str])
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SCHEDULES = TypeAdapter(dict[str, _DELAYS])
_ADMIN_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{32,}")
_OF_DOORS = {"protocol": PROTOCOL, "agents": AGENTS}  # schedules of streams and of sessions


def _env(name: str | AliasChoices, default: Any) -> Any:
    return Field(default, validation_alias=name)


def _url(name: str | AliasChoices, default: Any) -> Any:
    """Perhaps with a password in it."""
    return Field(default, validation_alias=name, repr=False)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        extra="ignore", populate_by_name=True, frozen=True, hide_input_in_errors=True
    )

    host: str = _env("ONWARD_HOST", "127.0.0.1")
    port: Annotated[int, Field(ge=0, le=65535)] = _env("ONWARD_PORT", 8070)
    # Servers on that port, on a ledger that they share; and, if set, the first of as many ports
    # more: each of them listens on one alone, so that its metrics can be read.
    processes: Annotated[int, Field(ge=1, le=64)] = _env("ONWARD_PROCESSES", 1)
    process_port: Annotated[int, Field(gt=0, le=65535 - 63)] | None = _env(
        "ONWARD_PROCESS_PORT", None
    )
    ledger: str = _url(AliasChoices("ONWARD_LEDGER", "SCHEDULER_DB"), "sqlite:///onward.db")
    # For the doors and workers that speak Redis streams.
    redis: str | None = _url(AliasChoices("ONWARD_REDIS", "REDIS_URL"), None)
    redis_prefix: str = _env("ONWARD_REDIS_PREFIX", "")  # "{onward}:" on a cluster
    redis_volatile: bool = _env("ONWARD_REDIS_VOLATILE", False)  # it may lose its tasks, knowingly
    # Of a Redis ledger: where its events and finished tasks go, "" for nowhere; when they leave it.
    archive: str = _env("ONWARD_ARCHIVE", "sqlite:///{state}/onward-archive-{ledger}.db")
    redis_keep_ms: Ms = _env("ONWARD_REDIS_KEEP_MS", 86_400_000)
    # Encryption at rest, as id:base64 one after the other: the first seals, all open.
    encryption_keys: SecretStr | None = _env("ONWARD_ENCRYPTION_KEYS", None)
    encryption_keys_file: str | None = _env("ONWARD_ENCRYPTION_KEYS_FILE", None)
    # Of tasks, all are sealed, or those of services that are declared with `encrypt`.
    encrypt: Literal["all", "declared"] = _env("ONWARD_ENCRYPT", "all")
    # A key for containers, with the scope admin, beside those in the ledger.
    admin_key: SecretStr | None = _env("ONWARD_ADMIN_KEY", None)
    # TLS without a proxy: files as PEM. Proxies whose X-Forwarded-* headers count.
    tls_cert: str | None = _env("ONWARD_TLS_CERT", None)
    tls_key: str | None = _env("ONWARD_TLS_KEY", None)
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_TRUSTED_PROXIES", ())
    synchronous: Literal["full", "normal"] = _env("ONWARD_SYNCHRONOUS", "full")

    # How long finished tasks are kept, by profile, as JSON: {"console": "30d", "dead": "90d"}; and
    # after how many silent days nothing waits for a reader of the log any more.
    retention: Annotated[dict[str, int], NoDecode] = _env("ONWARD_RETENTION", {})
    reader_expiry_days: Annotated[float, Field(gt=0, le=3650)] = _env(
        "ONWARD_READER_EXPIRY_DAYS", 7
    )

    lease_ms: Positive = _env("ONWARD_LEASE_MS", 30_000)
    drain_ms: Ms = _env("ONWARD_DRAIN_MS", 10_000)
    max_waiters: Positive = _env("ONWARD_MAX_WAITERS", 10_000)
    max_connections: Positive = _env("ONWARD_MAX_CONNECTIONS", 4_000)
    max_sockets: Positive = _env("ONWARD_MAX_SOCKETS", 1_000)  # worker connections
    header_timeout_ms: Positive = _env("ONWARD_HEADER_TIMEOUT_MS", 10_000)
    body_timeout_ms: Positive = _env("ONWARD_BODY_TIMEOUT_MS", 30_000)
    write_timeout_ms: Positive = _env("ONWARD_WRITE_TIMEOUT_MS", 30_000)
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_ALLOWED_HOSTS", ())
    # Of pages that may call this server, besides its own: scheme://host, with :port if not usual.
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_ALLOWED_ORIGINS", ())
    builtin_slots: Positive = _env("ONWARD_BUILTIN_SLOTS", 256)
    log_level: Literal["debug", "info", "warning", "error"] = _env("ONWARD_LOG_LEVEL", "info")
    log_json: bool = _env("ONWARD_LOG_JSON", False)
    task_logs: Literal["on", "off"] = _env("ONWARD_TASK_LOGS", "on")  # what handlers log
    # "auto": where the standard OTEL_* variables, which say all the rest, name a collector.
    traces: Literal["auto", "on", "off"] = _env("ONWARD_TRACES", "auto")

    # From when on something needs a person; 0 turns that rule off.
    attention_dead: Annotated[int, Field(ge=0)] = _env("ONWARD_ATTENTION_DEAD", 1)
    attention_waiting_ms: Ms = _env("ONWARD_ATTENTION_WAITING_MS", 600_000)
    attention_approval_ms: Ms = _env("ONWARD_ATTENTION_APPROVAL_MS", 3_600_000)

    # Where it is sent: URLs, those that take Slack's form with slack+ before them.
    alert_urls: Annotated[tuple[str, ...], NoDecode] = _url("ONWARD_ALERT_URLS", ())
    alert_secret: SecretStr | None = _env("ONWARD_ALERT_SECRET", None)
    alert_hold_ms: Ms = _env("ONWARD_ALERT_HOLD_MS", 60_000)
    public_url: str | None = _env("ONWARD_PUBLIC_URL", None)  # as people reach it, for links

    # Shown at the top of the page, so that one server is not taken for another.
    environment: Annotated[str, Field(max_length=40)] = _env("ONWARD_ENVIRONMENT", "")
    environment_color: EnvironmentColor = _env("ONWARD_ENVIRONMENT_COLOR", "blue")

    # The dispatcher door.
    task_timeout_ms: Positive = _env("TASK_TIMEOUT_MS", 60_000)
    min_task_timeout_ms: Positive = _env("MIN_TASK_TIMEOUT_MS", 5_000)
    max_task_timeout_ms: Positive = _env("MAX_TASK_TIMEOUT_MS", 600_000)
    max_queue_length: Ms = _env("MAX_QUEUE_LENGTH", 1_000)
    task_result_ttl_ms: Ms = _env("TASK_RESULT_TTL_MS", 300_000)
    queue_age_ms: Positive = _env("ONWARD_QUEUE_AGE_MS", 3_600_000)

    # The stream door.
    stream_types: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_STREAM_TYPES", ())
    stream_credits: Positive = _env("ONWARD_STREAM_CREDITS", 64)  # entries not yet taken
    visibility_timeout_s: Seconds = _env("VISIBILITY_TIMEOUT_S", 300)
    heartbeat_interval_s: Seconds = _env("HEARTBEAT_INTERVAL_S", 30)
    max_retries: Annotated[int, Field(ge=0)] = _env("MAX_RETRIES", 3)

    # The agent door: how long an MCP client waits for a result before it gets the task's id.
    mcp_wait_ms: Positive = _env("ONWARD_MCP_WAIT_MS", 25_000)

    # The tasks door: lanes, age and breaker.
    retry_ratio: Annotated[float, Field(ge=0, le=1)] = _env("DEFAULT_RETRY_RATIO", 0.3)
    retry_queue_warning: Positive = _env("RETRY_QUEUE_WARNING", 1_000)
    retry_queue_critical: Positive = _env("RETRY_QUEUE_CRITICAL", 5_000)
    max_task_age_s: Seconds = _env("MAX_TASK_AGE", 3_600)
    circuit_failure_threshold: Annotated[float, Field(gt=0, le=1)] = _env(
        "CIRCUIT_FAILURE_THRESHOLD", 0.5
    )
    circuit_volume_threshold: Positive = _env("CIRCUIT_VOLUME_THRESHOLD", 10)
    circuit_timeout_s: Seconds = _env("CIRCUIT_TIMEOUT", 60)

    # The summariser: any OpenAI-compatible endpoint; without a key it works offline.
    openrouter_api_key: str = Field(default="", validation_alias="OPENROUTER_API_KEY", repr=False)
    openrouter_base_url: str = _env("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1")
    openrouter_model: str = _env("OPENROUTER_MODEL", "meta-llama/llama-3.2-90b-text-preview")
    openrouter_timeout_s: Seconds = _env("OPENROUTER_TIMEOUT", 30)

    # Celery workers: None is the ledger's own Redis.
    celery_broker_url: str | None = _url("CELERY_BROKER_URL", None)
    celery_result_backend: str | None = _url("CELERY_RESULT_BACKEND", None)
    # Besides the shipped services, as module:attr: functions, Celery tasks, SDK workers.
    celery_services: Annotated[tuple[str, ...], NoDecode] = _env("ONWARD_CELERY_SERVICES", ())

    # Workers that are called. A silent one is not chosen; hosts are names, addresses, networks.
    worker_ttl_ms: Positive = _env("WORKER_TTL_MS", 15_000)
    worker_hosts: Annotated[tuple[str, ...], NoDecode] = _env(
        "ONWARD_WORKER_HOSTS", ("127.0.0.0/8", "::1", "localhost")
    )
    push_slots: Positive = _env("ONWARD_PUSH_SLOTS", 8)  # calls at a time to one worker
    push_timeout_ms: Positive = _env("ONWARD_PUSH_TIMEOUT_MS", 600_000)

    # Seconds by error class, as JSON: {"Default": [5, 15, 60]}. What is not named stays as it is.
    retry_schedules: Annotated[dict[str, list[float]], NoDecode] = _env(
        "ONWARD_RETRY_SCHEDULES", {}
    )

    @field_validator(
        "allowed_hosts",
        "allowed_origins",
        "trusted_proxies",
        "stream_types",
        "celery_services",
        "worker_hosts",
        "alert_urls",
        mode="before",
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        # People write a blank after a comma. Kept, it would make a name that nobody ever sends.
        return tuple(part for one in value.split(",") if (part := one.strip()))

    @field_validator("ledger")
    @classmethod
    def _a_file_is_sqlite(cls, value: str) -> str:
        """SCHEDULER_DB names a file and no URL. A bare word is more likely a slip than a file."""
        is_file = "://" not in value and any(sign in value for sign in "./\\:")
        if value.startswith(_REDIS):
            _check_redis(value)
        return f"sqlite:///{value}" if is_file else value

    @field_validator("redis")
    @classmethod
    def _a_redis(cls, value: str | None) -> str | None:
        if value and not value.startswith(_REDIS):
            raise ValueError("it must be an address like redis://127.0.0.1:6379/0")
        _check_redis(value or "")
        return value

    @field_validator("worker_hosts", mode="after")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Hosts(value)
        return value

    @field_validator("admin_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        # It also travels as a cookie and as the name of a subprotocol.
        if value is not None and not _ADMIN_KEY.fullmatch(value.get_secret_value()):
            raise ValueError(
                "it must have at least 32 characters, of letters, digits and . _ ~ + / = -"
            )
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            ip_network(address, strict=False)
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            scheme, _, host = origin.rstrip("/").partition("://")
            if scheme not in ("http", "https") or not host or "/" in host:
                raise ValueError(f"{origin!r} is no origin like https://onward.example:8443")
        return value

    @field_validator("openrouter_base_url", "public_url")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is not None and not _is_http(value):
            raise ValueError("it must be an address like https://openrouter.ai/api/v1")
        return value

    @field_validator("alert_secret")
    @classmethod
    def _signs(cls, value: SecretStr | None) -> SecretStr | None:
        key = "" if value is None else value.get_secret_value()
        if key.startswith("whsec_"):
            b64decode(key.removeprefix("whsec_"), validate=True)
        return value

    @field_validator("alert_urls")
    @classmethod
    def _receivers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:  # without it in the message: such a URL is a secret itself
            if not _is_http(url.removeprefix("slack+")) or not urlsplit(url).hostname:
                raise ValueError("each must be like https://host/path or slack+https://host/path")
            if "?" in url or "#" in url:
                raise ValueError("an address with a query or a fragment cannot be called")
        return value

    @field_validator("retry_schedules", mode="before")
    @classmethod
    def _decode(cls, value: Any) -> Any:
        return _SCHEDULES.validate_json(value) if isinstance(value, str) else value

    @field_validator("retry_schedules", mode="after")
    @classmethod
    def _known(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        known = (*BY_ERROR, *_OF_DOORS)
        for name in value:
            if name not in known:
                raise ValueError(f"{name!r} has no schedule; those that have: {', '.join(known)}")
        return value

    @field_validator("retention", mode="before")
    @classmethod
    def _kept(cls, value: Any) -> Any:
        """In milliseconds."""
        if isinstance(value, str):
            value = _SPANS.validate_json(value)
        return {name: _kept_ms(name, span) for name, span in value.items()}

    @model_validator(mode="after")
    def _sensible(self) -> Settings:
        if self.min_task_timeout_ms > self.max_task_timeout_ms:
            raise ValueError("MIN_TASK_TIMEOUT_MS is greater than MAX_TASK_TIMEOUT_MS")
        if self.retry_queue_warning > self.retry_queue_critical:
            raise ValueError("RETRY_QUEUE_WARNING is greater than RETRY_QUEUE_CRITICAL")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("ONWARD_TLS_CERT and ONWARD_TLS_KEY belong together")
        return self

    @property
    def state_folder(self) -> Path:
        """Where this user's programs keep what they need again, whatever folder they start in."""
        given = Path(os.environ.get("XDG_STATE_HOME", ""))
        if given.is_absolute():
            return given / "onward"
        try:
            return Path.home() / ".local" / "state" / "onward"
        except RuntimeError:  # a container's user that the system does not know
            return Path("/var/lib/onward")

    def admin_token(self) -> str | None:
        return None if self.admin_key is None else self.admin_key.get_secret_value()

    def encryption(self) -> dict[str, Any]:
        """As `open_backend` takes it."""
        given = self.encryption_keys
        keys = "" if given is None else given.get_secret_value()
        return {"keys": keys, "keys_file": self.encryption_keys_file}

    def profiles(self) -> Mapping[str, Profile]:
        found = profiles(
            lease_ms=self.lease_ms,
            max_retries=self.max_retries,
            schedules=self.schedules(),
            age_ms=int(self.max_task_age_s * 1000),
            retention_ms=self.retention,
        )
        sync = found["sync"]
        # The dispatcher door promises a result for this long, whatever else is forgotten sooner.
        kept_ms = max(sync.retention_ms, self.task_result_ttl_ms)
        return {**found, "sync": msgspec.structs.replace(sync, retention_ms=kept_ms)}

    def breaker(self) -> BreakerRules:
        return BreakerRules(
            failure_share=self.circuit_failure_threshold,
            volume=self.circuit_volume_threshold,
            pause_ms=int(self.circuit_timeout_s * 1000),
        )

    def retry_share(self) -> RetryShare:
        return RetryShare(
            normal=self.retry_ratio,
            warning=self.retry_queue_warning,
            critical=self.retry_queue_critical,
        )

    def schedules(self) -> dict[str, RetrySchedule]:
        named = {
            name: RetrySchedule(tuple(int(delay * 1000) for delay in delays), _jitter(name))
            for name, delays in self.retry_schedules.items()
            if delays
        }
        return {**BY_ERROR, **named}


OF_CLIENTS = ("ONWARD_URL", "ONWARD_KEY", "ONWARD_BY", "ONWARD_SESSION")  # and not of a server


def unknown(environment: Mapping[str, str] = os.environ) -> Mapping[str, str | None]:
    """Variables that look like ours and are none, each with the setting that was perhaps meant."""
    known = {*OF_CLIENTS}
    for field in Settings.model_fields.values():
        alias = field.validation_alias
        known.update(map(str, alias.choices if isinstance(alias, AliasChoices) else [alias]))
    ours = sorted(name for name in known if name.startswith(PREFIX))
    return {
        name: next(iter(get_close_matches(name.upper(), ours, n=1, cutoff=0.8)), None)
        for name in sorted(environment)
        if name.upper().startswith(PREFIX) and name.upper() not in known
    }


def _is_http(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    return scheme in ("http", "https") and bool(rest.strip("/"))


def as_given(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The name under which this setting was set; pydantic reports the first of its names."""
    given = {variable.upper() for variable in environment}
    for field in Settings.model_fields.values():
        alias = field.validation_alias
        names = list(map(str, alias.choices)) if isinstance(alias, AliasChoices) else []
        if name in names:
            return next((one for one in names if one in given), name)
    return name


def _kept_ms(name: str, span: str | int) -> int:
    names = (*profiles(lease_ms=1), DEAD)
    if name not in names:
        raise ValueError(f"{name!r} is no profile: one of {', '.join(names)}")
    found = re.fullmatch(r"(\d{1,6})(s|m|h|d)", span) if isinstance(span, str) else None
    if found is None or not int(found[1]):
        raise ValueError(f"{name!r} is kept for {span!r}: it must be a span like 12h or 30d")
    return int(found[1]) * _UNITS_MS[found[2]]


def _check_redis(url: str) -> None:
    """redis-py takes database 0 for one that it does not understand."""
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss") and "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError("a / or ? in a password must be written %2F or %3F")
    database = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and database and not database.isdecimal():
        raise ValueError(f"{database!r} is no number of a database, as in redis://127.0.0.1:6379/0")
    if parts.scheme in ("redis", "rediss"):
        parts.port  # noqa: B018 raises what is wrong with it


def _jitter(name: str) -> tuple[float, float]:
    return _OF_DOORS.get(name, BY_ERROR["Default"]).jitter
