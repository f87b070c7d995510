"""The shortest real program: one file, no server, no settings.

python tasks.py                            enqueues into tasks.db beside this file
dever worker tasks.py --until-idle         works what is there
dever jobs --file tasks.py                 shows what became of it
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from dever_sql import Jobs, job, record

jobs = Jobs()


@record
class Photo:
    number: int
    title: str


@jobs.job(retry=3, timeout=10_000)
def shrink(photo: Photo) -> None:
    """Work that takes a while, and that sometimes has to be tried again."""
    context = job.current()
    time.sleep(0.02)
    if photo.number % 50 == 0 and context.attempt == 1:
        raise job.Retry(delay=timedelta(0))  # at once; without a delay: after a backoff


def main(count: int) -> None:
    results = shrink.enqueue_many(
        [
            (Photo(number=number, title=f"photo {number}"), f"photo:{number}")
            for number in range(1, count + 1)
        ]
    )
    created = sum(result.created for result in results)
    print(f"{created} jobs enqueued, {count - created} were waiting already")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
