"""How a document goes through the house. onward flow graph flow.py:flow draws it."""

from onward.flow.builder import Flow, params, shared

flow = Flow("invoice")

extract = flow.executor("extract", service="extract", input={"text": params.text}, output="facts")
known = flow.executor(
    "known", service="is_known", input={"vendor": shared.facts.vendor}, output="known"
)
spam = flow.executor("spam", service="spam_score", input={"text": params.text}, output="spam")
decide = flow.choice(
    "decide",
    {"refuse": shared.spam > 0.5, "book": (shared.known == True) & (shared.facts.total < 1000)},  # noqa: E712
    default_action="ask",
)
ask = flow.approval("ask", reason="Pay this invoice?", input=shared.facts)
book = flow.executor(
    "book",
    service="book",
    input={"vendor": shared.facts.vendor, "total": shared.facts.total},
    output="outcome",
    max_retries=5,
)
send_back = flow.executor(
    "send_back", service="send_back", params={"reason": "not by us"}, output="outcome"
)

extract >> known >> spam >> decide
extract - "error" >> send_back
decide - "book" >> book
decide - "refuse" >> send_back
decide - "ask" >> ask
ask - "approved" >> book
ask - "rejected" >> send_back
