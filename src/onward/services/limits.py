"""The limits of services, own and shared ones, as rules; and what they make of a submission. Pure.

A rule is a bound with what people call it. Whatever is on a queue of a service is bounded, and so
are tasks of its types on queues that no service is named after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from onward.core.errors import Invalid
from onward.core.limits import Bound, Rate
from onward.core.task import Priority, Task, encode
from onward.wire.limits import Concurrency, LimitBody, LimitUse, RateLimit
from onward.wire.paths import ANY, HINT, parse_path

if TYPE_CHECKING:
    from onward.services.catalog import Declared

KIND = "limit"  # of documents: the shared ones, by name
OWN, SHARED = "service", "limit"
LONGEST = 128  # characters of a partition

decode = msgspec.json.Decoder(LimitBody).decode


class Rule(msgspec.Struct, frozen=True):
    name: str  # of the limit; of a service's own, the service's
    bound: Bound
    rate: RateLimit | None = None
    shared: bool = False

    @property
    def cost(self) -> int | str:
        return 1 if self.rate is None else self.rate.cost

    def use(self, used: int | None, next_at: int | None) -> LimitUse:
        most = self.bound.most
        per: Literal["total", "partition"] = "partition" if self.bound.each else "total"
        if self.rate is None:
            return LimitUse(
                name=self.name, kind="concurrency", per=per, max=most or 0, per_ms=None,
                used=used, next_at=None,
            )  # fmt: skip
        return LimitUse(
            name=self.name, kind="rate", per=per, max=self.rate.count, per_ms=self.rate.per_ms,
            used=used, next_at=next_at,
        )  # fmt: skip


def with_rules(
    services: Mapping[str, Declared], shared: Mapping[str, LimitBody]
) -> dict[str, Declared]:
    """The same services, by name, with the rules that their own limits and shared ones come to."""
    naming: dict[str, list[Declared]] = {}
    for service in services.values():
        for name in service.limits:
            naming.setdefault(name, []).append(service)
    found = dict(services)
    of_shared = {
        name: _rules(SHARED, name, limit.concurrency, limit.rate, naming[name])
        for name, limit in shared.items()
        if name in naming
    }
    for service in services.values():
        own = _rules(OWN, service.name, service.concurrency, service.rate, [service])
        others = [rule for name in service.limits for rule in of_shared.get(name, ())]
        if own or others:
            found[service.name] = msgspec.structs.replace(service, rules=(*own, *others))
    return found


def _rules(
    kind: str,
    name: str,
    concurrency: Concurrency | None,
    rates: Sequence[RateLimit],
    services: Sequence[Declared],
) -> tuple[Rule, ...]:
    covered = coverage(f"{kind}:{name}", services)

    def rule(what: str, each: bool, most: int | None, rate: RateLimit | None = None) -> Rule:
        by_time = None if rate is None else Rate(rate.count, rate.per_ms, rate.burst)
        bound = msgspec.structs.replace(
            covered, name=f"{covered.name}:{what}", each=each, most=most, rate=by_time
        )
        return Rule(name, bound, rate, kind == SHARED)

    found: list[Rule] = []
    if concurrency is not None:
        if concurrency.total is not None:
            found.append(rule("total", False, concurrency.total))
        if concurrency.per_partition is not None:
            found.append(rule("each", True, concurrency.per_partition))
    named: Counter[str] = Counter()
    for rate in rates:
        what = f"{rate.per}:{rate.count}/{rate.per_ms}"
        named[what] += 1
        if named[what] > 1:  # another cost: one instant for both would count each start twice
            what += f":{named[what]}"
        found.append(rule(what, rate.per == "partition", None, rate))
    return tuple(found)


def coverage(name: str, services: Sequence[Declared]) -> Bound:
    """What all tasks of these services count to, bounded by nothing."""
    types = _distinct(type_ for service in services for type_ in service.task_types)
    queues = _distinct((*(service.name for service in services), *types))
    return Bound(name, False, None, None, queues, types)


def check_costs(rates: Sequence[RateLimit]) -> None:
    """Invalid: where a cost stands is no path, or it is more than may ever start."""
    for at, rate in enumerate(rates):
        pointer = f"/rate/{at}/cost"
        if isinstance(rate.cost, str):
            check_path(rate.cost, pointer)
        elif rate.cost > rate.count + rate.burst:
            most = rate.count + rate.burst
            raise Invalid(f"cost is {rate.cost}, and at most {most} may start", pointer=pointer)


def check_path(path: str, pointer: str) -> None:
    try:
        keys = parse_path(path)
    except ValueError as error:
        raise Invalid(str(error), pointer=pointer, hint=HINT) from None
    if not keys or ANY in keys:
        raise Invalid(f"{path!r} leads to more than one value", pointer=pointer, hint=HINT)


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def fields_of(task: Task, service: Declared, *, refusing: bool = True) -> Mapping[str, Any]:
    """What limits and partitions make of a submission: the fields of the task that change.

    Invalid: its partition or a cost cannot be read, or it costs more than may ever start. What is
    not to be refused has no partition then, and costs as much as may start.
    """
    changes: dict[str, Any] = {}
    paths = [rule.cost for rule in service.rules if isinstance(rule.cost, str)]
    payload = None
    if paths or (service.partition_by is not None and not task.partition):
        payload = msgspec.json.decode(task.payload)
    if service.partition_by is not None and not task.partition:
        partition = _partition(payload, service.partition_by, refusing)
        if partition:
            changes["partition"] = partition
    costs = {
        rule.bound.name: _cost(rule.name, rule.rate, payload, refusing)
        for rule in service.rules
        if rule.rate is not None
    }
    if any(cost != 1 for cost in costs.values()):
        changes["costs"] = encode({name: cost for name, cost in costs.items() if cost != 1})
    if any(rule.bound.each and rule.bound.most == 1 for rule in service.rules):
        # Another priority is another lane, and would overtake.
        changes |= {"strict": True, "priority": Priority.NORMAL}
    return changes


def _partition(payload: Any, path: str, refusing: bool) -> str | None:
    try:
        return _text(_at(payload, path), path)
    except Invalid:
        if refusing:
            raise
        return None


def _cost(name: str, rate: RateLimit, payload: Any, refusing: bool) -> int:
    most, cost, pointer = rate.count + rate.burst, rate.cost, ""
    try:
        if isinstance(cost, str):
            pointer = f"/payload/{'/'.join(parse_path(cost))}"
            cost = _number(_at(payload, cost), pointer)
        if cost > most:
            message = f"the task costs {cost}, and limit {name!r} lets {most} start at most"
            raise Invalid(message, pointer=pointer)
    except Invalid:
        if refusing:
            raise
        return most
    return cost


def _at(payload: Any, path: str) -> Any:
    for key in parse_path(path):
        if isinstance(payload, list) and key.isascii() and key.isdigit():
            payload = payload[int(key)] if int(key) < len(payload) else None
        elif isinstance(payload, dict):
            payload = payload.get(key)
        else:
            return None
    return payload


def _text(value: Any, path: str) -> str | None:
    if isinstance(value, bool | int | float):
        value = msgspec.json.encode(value).decode()
    if not isinstance(value, str):
        return None
    if len(value) > LONGEST or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise Invalid(
            f"payload: {path!r} is the task's partition: at most {LONGEST} characters, none of"
            " them a control character",
            pointer=f"/payload/{'/'.join(parse_path(path))}",
        )
    return value


def _number(found: Any, pointer: str) -> int:
    if found is None:
        return 1
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
        raise Invalid(f"{pointer[1:]} is what the task costs: not a number", pointer=pointer)
    return -int(-found // 1)  # rounded up
