"""The demo's flows, by the builder: an order with every kind of step, and one that is undone."""

from __future__ import annotations

from onward.flow.builder import Flow, params, shared

HOUR_MS = 3_600_000  # nobody waits for ever for a person or a payment

ORDER, POSTER = "demo-order", "demo-poster"


def order() -> Flow:
    """Checked by two, large ones by a person; each photo made, left to dry, paid, labelled."""
    flow = Flow(ORDER, description="An order of prints, from the check to the label.")
    check = flow.parallel(
        "check",
        ["demo-stock", "demo-fraud"],
        input=params.order,
        output="checks",
        parallel_mode="concurrent",
    )
    size = flow.choice("size", {"large": params.total > 100}, default_action="small")
    sign = flow.approval(
        "sign",
        reason="More than 100: shall it be printed?",
        timeout_ms=HOUR_MS,
        input={"order": params.order, "customer": params.customer, "total": params.total},
    )
    make = flow.foreach(
        "make",
        "demo-thumbnail",
        input=params.photos,
        output="prints",
        max_parallel=2,
    )
    dry = flow.timer("dry", 1_500)
    paid = flow.wait_event("paid", shared.payment, timeout_ms=HOUR_MS)
    label = flow.executor("label", "demo-label", input=params.customer, output="label")
    check >> size
    size - "large" >> sign
    size - "small" >> make
    sign - "approved" >> make
    make >> dry >> paid >> label
    return flow


def poster() -> Flow:
    """The last step fails, and what the others did is undone, last things first."""
    flow = Flow(POSTER, description="A poster whose plate breaks: paper and money go back.")
    paper = flow.executor(
        "paper", "demo-reserve", input=params.paper, output="sheet", compensate="demo-release"
    )
    charge = flow.executor(
        "charge", "demo-charge", input=params.card, output="receipt", compensate="demo-refund"
    )
    engrave = flow.executor("engrave", "demo-engrave", input=params.text, output="plate")
    paper >> charge >> engrave
    return flow
