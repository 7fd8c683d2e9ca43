"""Who calls them: the chain has become a flow, which survives a restart."""

from onward import SyncClient
from onward.flow.builder import Flow, params, shared

flow = Flow("buy")
charge = flow.executor(
    "charge",
    service="charge",
    input={"order": params.order, "amount": params.amount},
    output="receipt",
    max_retries=5,  # in a flow the node says how often, not the service
    wait_ms=100,
)
mail = flow.executor(
    "mail", service="mail", input={"receipt": shared.receipt, "to": params.to}, output="sent"
)
charge >> mail


def buy(order: int, amount: float, to: str) -> str:
    """Charge, then mail the receipt."""
    with SyncClient() as client:
        client.flows.publish(flow)
        bought = client.flows.run("buy", {"order": order, "amount": amount, "to": to})
        return str(bought["sent"])


if __name__ == "__main__":
    print(buy(7, 9.5, "ada@example.org"))
