"""The shop's tasks, as they were with Celery."""

from celery import Celery, chain

app = Celery("shop", broker="redis://127.0.0.1:6379/1", backend="redis://127.0.0.1:6379/2")


class GatewayBusy(Exception):
    pass


tries: dict[int, int] = {}  # stands in for the bank, which is busy the first time


@app.task(bind=True, autoretry_for=(GatewayBusy,), retry_backoff=0.1, max_retries=5)
def charge(self, order: int, amount: float) -> str:
    tries[order] = tries.get(order, 0) + 1
    if tries[order] < 2:
        raise GatewayBusy(f"order {order}")
    self.update_state(state="PROGRESS", meta={"done": 1.0})
    return f"charged {amount:.2f} for order {order}"


@app.task
def mail(receipt: str, to: str) -> str:
    return f"to {to}: {receipt}"


def buy(order: int, amount: float, to: str) -> str:
    """Charge, then mail the receipt."""
    return chain(charge.s(order, amount), mail.s(to)).apply_async().get(timeout=30)
