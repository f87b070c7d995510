#!/bin/sh
# Enqueue with the sqlite3 shell, work with Python. Needs `sqlite3` and `dever` on the PATH.
set -eu
cd "$(dirname "$0")"
dever sql contracts receipts.py sqlite:///receipts.db
sqlite3 -bail receipts.db < enqueue.sql
dever worker receipts.py --until-idle
dever jobs --file receipts.py
