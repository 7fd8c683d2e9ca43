import os

from onward.app import build
from onward.settings import Settings


def app():
    return build(Settings(ledger=f"sqlite:///{os.environ['BENCH_LEDGER']}"))
