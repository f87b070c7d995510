"""Durable background jobs and UTC cron in the database you already have.

    from dever_sql import Jobs, record

    jobs = Jobs()

    @record
    class Receipt:
        order_id: int

    @jobs.job(retry=5, timeout=30_000)
    async def send_receipt(receipt: Receipt) -> None: ...

    send_receipt.enqueue(Receipt(order_id=7), key="receipt:7")

Importing starts no thread, no task and no connection (R8.1).
"""

from . import job
from .async_store import AsyncStore
from .database import transaction
from .declare import Job, Jobs
from .errors import (
    CrossDatabaseError,
    DatabaseUnavailable,
    DeclarationError,
    DeverError,
    InstallError,
    InvalidArgument,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    InvalidSpec,
    LeadershipLost,
    LeaseLost,
    ReservedName,
    SchemaVersion,
    SettingsError,
    UnknownJob,
)
from .group import Group
from .record import Json, ModelId, record
from .secret import Secret
from .store import Store

__all__ = [
    "AsyncStore",
    "CrossDatabaseError",
    "DatabaseUnavailable",
    "DeclarationError",
    "DeverError",
    "Group",
    "InstallError",
    "InvalidArgument",
    "InvalidKey",
    "InvalidName",
    "InvalidPayload",
    "InvalidSpec",
    "Job",
    "Jobs",
    "Json",
    "LeadershipLost",
    "LeaseLost",
    "ModelId",
    "ReservedName",
    "SchemaVersion",
    "Secret",
    "SettingsError",
    "Store",
    "UnknownJob",
    "job",
    "record",
    "transaction",
]
