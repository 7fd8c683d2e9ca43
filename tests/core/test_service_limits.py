"""What declared limits come to: rules, and the fields of a submission."""

from __future__ import annotations

import msgspec
import pytest

from onward.core.errors import Invalid
from onward.core.task import Priority, Task, encode
from onward.services.catalog import Declared, strictest
from onward.services.declarations import as_declared
from onward.services.limits import with_rules
from onward.wire.limits import Concurrency, LimitBody, RateLimit
from tests.support import a_task

PER_S = RateLimit(count=10, per_ms=1_000)


def ruled(**fields: object) -> Declared:
    service = Declared(name="mail", task_types=("mail", "sms"), **fields)  # type: ignore[arg-type]
    return with_rules({"mail": service}, {"smtp": LimitBody(rate=(PER_S,))})["mail"]


def submitted(service: Declared, payload: object, **fields: object) -> Task:
    return as_declared(a_task(payload=encode(payload), **fields), service)


@pytest.mark.contract("L-1")
@pytest.mark.parametrize(
    ("payload", "partition"),
    [
        ({"customer": {"id": "ada"}}, "ada"),
        ({"customer": {"id": 7}}, "7"),
        ({"customer": {"id": 1.5}}, "1.5"),
        ({"customer": {"id": None}}, ""),
        ({"customer": {"id": ["ada"]}}, ""),
        ({"customer": "ada"}, ""),
        ({}, ""),
        ("ada", ""),
        (None, ""),
    ],
)
def test_a_partition_is_found_in_the_payload(payload: object, partition: str) -> None:
    assert submitted(ruled(partition_by="customer.id"), payload).partition == partition


@pytest.mark.contract("L-1")
def test_a_partition_given_at_submission_wins() -> None:
    task = submitted(ruled(partition_by="who"), {"who": "ada"}, partition="bob")
    assert task.partition == "bob"


@pytest.mark.contract("L-1")
@pytest.mark.parametrize("who", ["x" * 129, "a\nb"])
def test_a_partition_that_cannot_be_one_is_refused(who: str) -> None:
    with pytest.raises(Invalid, match="partition") as refused:
        submitted(ruled(partition_by="who"), {"who": who})
    assert refused.value.pointer == "/payload/who"


@pytest.mark.contract("L-4")
def test_what_a_start_costs_is_found_in_the_payload() -> None:
    rate = msgspec.structs.replace(PER_S, cost="tokens")
    service = ruled(rate=(rate,))
    name = service.rules[0].bound.name
    assert submitted(service, {"tokens": 7}).costs == encode({name: 7})
    assert submitted(service, {"tokens": 6.2}).costs == encode({name: 7})
    assert submitted(service, {}).costs is None
    for odd in ("7", -1, True):
        with pytest.raises(Invalid) as refused:
            submitted(service, {"tokens": odd})
        assert refused.value.pointer == "/payload/tokens"


@pytest.mark.contract("L-4")
def test_what_could_never_start_is_refused() -> None:
    service = ruled(rate=(msgspec.structs.replace(PER_S, cost="tokens", burst=5),))
    assert submitted(service, {"tokens": 15}).costs is not None
    with pytest.raises(Invalid, match="15 start at most"):
        submitted(service, {"tokens": 16})


@pytest.mark.contract("L-4")
def test_rates_of_the_same_numbers_are_counted_apart() -> None:
    rates = (PER_S, msgspec.structs.replace(PER_S, cost="tokens"))
    service = ruled(rate=rates)
    starts, tokens = (rule.bound.name for rule in service.rules)
    assert starts != tokens
    assert submitted(service, {"tokens": 7}).costs == encode({tokens: 7})
    (alone,) = ruled(rate=rates[:1]).rules
    assert alone.bound.name == starts, "a rate that is added leaves the other where it was"


@pytest.mark.contract("L-3")
def test_one_of_a_partition_at_a_time_is_strict_order() -> None:
    service = ruled(concurrency=Concurrency(per_partition=1))
    task = submitted(service, {}, priority=Priority.HIGH)
    assert (task.strict, task.priority) == (True, Priority.NORMAL)
    assert not submitted(ruled(concurrency=Concurrency(per_partition=2)), {}).strict


@pytest.mark.contract("L-5")
def test_a_shared_limit_holds_for_all_services_that_name_it() -> None:
    services = {
        name: Declared(name=name, task_types=(f"{name}.send",), limits=("smtp",))
        for name in ("mail", "sms")
    }
    ruled = with_rules(services, {"smtp": LimitBody(concurrency=Concurrency(total=3))})
    (rule,) = ruled["mail"].rules
    assert ruled["sms"].rules == (rule,)
    assert set(rule.bound.queues) == {"mail", "mail.send", "sms", "sms.send"}
    assert (rule.name, rule.bound.most, rule.shared) == ("smtp", 3, True)


@pytest.mark.contract("K-7")
def test_a_workers_declaration_can_only_tighten() -> None:
    operator = Declared(
        name="mail", task_types=("mail",), concurrency=Concurrency(total=5), rate=(PER_S,)
    )
    faster = msgspec.structs.replace(PER_S, count=99)
    worker = Declared(
        name="mail",
        task_types=("mail",),
        concurrency=Concurrency(total=9, per_partition=2),
        rate=(faster,),
        limits=("smtp",),
    )
    both = strictest(operator, worker)
    assert both.concurrency == Concurrency(total=5, per_partition=2)
    assert both.rate == (PER_S, faster)
    assert both.limits == ("smtp",)


def test_a_call_of_a_run_is_not_refused_for_what_it_costs() -> None:
    service = ruled(partition_by="who", rate=(msgspec.structs.replace(PER_S, cost="tokens"),))
    task = a_task(payload=encode({"who": "x" * 200, "tokens": 999}))
    task = as_declared(task, service, refusing=False)
    assert (task.partition, task.costs) == ("", encode({service.rules[0].bound.name: 11}))
