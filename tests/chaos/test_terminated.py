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
        print(f"{count} sessions ended")
        assert steady.rate_is_back()
        steady.drain()
        assert steady.check() == []
