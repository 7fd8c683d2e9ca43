"""What every contender carries, about 116 bytes of JSON, and where it is kept."""

PAYLOAD = (
    '{"user":4711,"action":"resize","image":"s3://bucket/originals/0001.jpg",'
    '"sizes":[128,512,1024],"notify":true,"n":1}'
)
BODY = (  # the same size, as the dispatcher door takes it
    '{"model":"small","messages":[{"role":"user","content":'
    '"Say in one short sentence why the sky is blue, please."}]}'
)
TASK = f'{{"type":"noop","payload":{PAYLOAD}}}'  # as /api/v2/tasks does
KEY = "the-key-of-a-benchmark-and-of-nothing-else"


def ledger(path: str) -> str:
    """A file's path, or already a URL."""
    return path if "://" in path else f"sqlite:///{path}"
