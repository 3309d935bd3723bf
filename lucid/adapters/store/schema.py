"""Tables of the SQLite store, as a list of migrations: each brings the file one version further, and none is
ever edited once released. ``PRAGMA user_version`` says how many a file has had."""

from __future__ import annotations

__all__ = ["MIGRATIONS"]

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE lease (one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT, token INTEGER, until_s REAL);
    CREATE TABLE notes (job_id TEXT PRIMARY KEY, data TEXT NOT NULL);
    CREATE TABLE profiles (
        job_id TEXT PRIMARY KEY, user TEXT, name TEXT, gpus INTEGER, data TEXT NOT NULL, at_s REAL
    );
    CREATE INDEX profiles_like ON profiles (user, name, gpus, at_s);
    CREATE TABLE readings (source TEXT PRIMARY KEY, at_s REAL);
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY, at_s REAL, job_id TEXT, partition TEXT, verb TEXT, reasons TEXT,
        placement TEXT, beside TEXT, mode TEXT
    );
    CREATE INDEX decisions_job ON decisions (job_id, id);
    CREATE INDEX decisions_at ON decisions (at_s);
    CREATE TABLE actions (
        id INTEGER PRIMARY KEY, at_s REAL, job_id TEXT, verb TEXT, detail TEXT, token INTEGER, result TEXT
    );
    CREATE INDEX actions_job ON actions (job_id, id);
    CREATE TABLE ended (
        job_id TEXT PRIMARY KEY, end_s REAL, ran_s REAL, state TEXT, job TEXT NOT NULL
    );
    CREATE INDEX ended_at ON ended (end_s);
    CREATE TABLE models (id INTEGER PRIMARY KEY, name TEXT, version TEXT, at_s REAL, why TEXT);
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE views (name TEXT PRIMARY KEY, data TEXT NOT NULL);
    """,
    """
    CREATE TABLE predictions (job_id TEXT PRIMARY KEY, at_s REAL, user TEXT, data TEXT NOT NULL);
    """,
    """
    CREATE TABLE samples (
        folder TEXT, first INTEGER, job TEXT, node TEXT, gpus TEXT, base_s REAL, data BLOB NOT NULL, at_s REAL,
        PRIMARY KEY (folder, first)
    ) WITHOUT ROWID;
    CREATE INDEX samples_at ON samples (at_s);
    CREATE TABLE cursors (folder TEXT PRIMARY KEY, wanted INTEGER, missing INTEGER, at_s REAL);
    """,
    """
    ALTER TABLE ended ADD COLUMN profile TEXT;
    """,
    """
    DROP TABLE samples;
    DROP TABLE cursors;
    DROP TABLE models;
    DROP INDEX profiles_like;
    """,
)
