"""The same tasks, moved: a decorator, types, and names instead of positions."""

from datetime import timedelta

from onward import Context, Retry, Worker

worker = Worker()


class GatewayBusy(Exception):
    pass


tries: dict[int, int] = {}  # stands in for the bank, which is busy the first time


@worker.service(retry=Retry(max=5, first=timedelta(seconds=0.1), on=(GatewayBusy,)))
def charge(ctx: Context, order: int, amount: float) -> str:
    tries[order] = tries.get(order, 0) + 1
    if tries[order] < 2:
        raise GatewayBusy(f"order {order}")
    ctx.progress(1.0)
    return f"charged {amount:.2f} for order {order}"


@worker.service
def mail(receipt: str, to: str) -> str:
    return f"to {to}: {receipt}"
