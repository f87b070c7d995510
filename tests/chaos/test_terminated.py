"""Sessions that the server ends, five a second, under a load of 100 jobs a second (R8.5).

12 s by default; `DEVER_CHAOS_SCALE=5` makes it 60 s.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from chaos.steady import Steady, a_server, terminate_one

SCALE = float(os.environ.get("DEVER_CHAOS_SCALE", "1"))
SECONDS = 12.0 * SCALE
EVERY = 0.2
BACK_WITHIN = 5.0
WINDOW = 5.0


@pytest.mark.req("R8.5")
@pytest.mark.timeout(120 + 2 * SECONDS)
def test_terminated_sessions_lose_nothing_and_the_rate_comes_back(tmp_path: Path) -> None:
    with a_server() as (server, url), Steady(url, tmp_path) as steady:
        begun = time.monotonic()
        count = 0
        while time.monotonic() - begun < SECONDS:
            terminate_one(server, url)
            count += 1
            time.sleep(max(0.0, begun + count * EVERY - time.monotonic()))
        since = time.time() + BACK_WITHIN
        time.sleep(BACK_WITHIN + WINDOW)
        enqueued = steady.counted("enqueued", since, since + WINDOW)
        done = steady.counted("effect", since, since + WINDOW)
        print(
            f"{count} sessions ended; then {enqueued} jobs enqueued and {done} done in {WINDOW} s"
        )
        steady.drain()
        assert steady.check() == []
        assert done >= 0.9 * enqueued > 0
