"""A Python prompt that takes pieces as lines of JSON; `await` may stand at the top, as in
`python -m asyncio`. What one piece defines the next one knows.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import sys
import traceback
from typing import Any

names: dict[str, Any] = {"__name__": "__prompt__"}


def main() -> None:
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 as a prompt has it
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    for line in sys.stdin:
        piece = json.loads(line)
        try:
            code = compile(piece["source"], "<block>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            found = eval(code, names)  # noqa: S307 our own documents
            if inspect.iscoroutine(found):
                loop.run_until_complete(found)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.write(f"\n{piece['mark']}\n")
        sys.stdout.flush()


main()
