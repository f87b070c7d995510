"""A server that is restarted again and again under load (R8.5).

15 restarts by default; `DEVER_CHAOS_SCALE=3.4` makes it 51.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from chaos.steady import Steady, a_server

SCALE = float(os.environ.get("DEVER_CHAOS_SCALE", "1"))
RESTARTS = round(15 * SCALE)


@pytest.mark.req("R8.5")
@pytest.mark.timeout(300 * max(1.0, SCALE))
def test_restarts_lose_nothing_and_end_no_worker(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEVER_CHAOS_SEED") or random.randrange(2**31))
    print(f"seed {seed}, {RESTARTS} restarts")
    luck = random.Random(seed)
    with a_server() as (server, url), Steady(url, tmp_path) as steady:
        for number in range(RESTARTS):
            time.sleep(luck.uniform(0.0, 1.5))
            server.restart(["fast", "immediate"][number % 2])
        assert steady.rate_is_back()
        steady.drain()
        assert steady.check() == []
