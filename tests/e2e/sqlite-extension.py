#!/usr/bin/python3
"""Debian's `sqlite3` and Python's module use databases on volumes through the loadable extension.

Their SQLite has no atomic batches, so the extension emulates them. In each round a process commits
transactions over many pages in one journal mode, and dies by SIGKILL. The judge demands that each
transaction is complete or absent, and that each answered one is there. It must notice planted damage.

usage: sqlite-extension.py [ROUNDS]
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

WAIT_MAX_S = 60
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../..")
EVERBYTE = os.environ.get("EVERBYTE", os.path.join(TOP, "target/release/everbyte"))
EXTENSION = os.environ.get("EVERBYTE_SQLITE", os.path.join(os.path.dirname(EVERBYTE), "libeverbyte_sqlite.so"))
SQLITE3 = "/usr/bin/sqlite3"
# A cache of ten pages makes each transaction write pages before its end.
MODES = ["delete", "truncate", "persist", "exclusive"]
ROWS = 60
DONE_MAX = 1000


def ok(text):
    print(f"ok - sqlite-extension: {text}", flush=True)


def run(*arguments):
    subprocess.run([EVERBYTE, *arguments], check=True, stdout=subprocess.DEVNULL)


def load_extension():
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(EXTENSION)
    loader.close()


def connect(path, **options):
    return sqlite3.connect(f"file:{path}?vfs=everbyte", uri=True, isolation_level=None, **options)


def one(database, query):
    return database.execute(query).fetchone()[0]


def shell(path, *commands):
    """Runs commands of Debian's program on a database. Returns its answers and messages."""
    script = "\n".join([f".load {EXTENSION}", f".open file:{path}?vfs=everbyte", *commands, ""])
    done = subprocess.run([SQLITE3, "-bail"], input=script, capture_output=True, text=True, timeout=WAIT_MAX_S)
    return done.stdout.split("\n")[:-1], done.stderr


def refusal(path):
    """Returns the messages of a connection in another process. SQLite must refuse it."""
    # After a refusal the program continues with a database in memory.
    answers, messages = shell(path, "SELECT file FROM pragma_database_list;")
    assert answers == [""] and "unable to open database" in messages, (path, answers, messages)
    return messages


# --- one process ------------------------------------------------------------------------------


def usual_work(pool):
    path = f"{pool}/usual"
    answers, messages = shell(
        path,
        "CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, amount INTEGER);",
        "CREATE INDEX by_owner ON account (owner);",
        "INSERT INTO account VALUES (1, 'a', 100), (2, 'b', 0);",
        "BEGIN; UPDATE account SET amount = amount - 30 WHERE id = 1;",
        "UPDATE account SET amount = amount + 30 WHERE id = 2; COMMIT;",
        "BEGIN; DELETE FROM account; ROLLBACK;",
        "BEGIN; SAVEPOINT s; DELETE FROM account; ROLLBACK TO s; COMMIT;",
        "SELECT sum(amount), count(*) FROM account; PRAGMA integrity_check;",
    )
    assert (answers, messages) == (["100|2", "ok"], ""), (answers, messages)
    database = connect(path)
    options = [row[0] for row in database.execute("PRAGMA compile_options")]
    assert "ENABLE_BATCH_ATOMIC_WRITE" not in options, "this SQLite has batches of its own"
    assert database.execute("SELECT id, amount FROM account").fetchall() == [(1, 70), (2, 30)]
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO account VALUES (3, 'c', 5)")
    other = connect(path, timeout=0)
    assert one(other, "SELECT count(*) FROM account") == 2
    try:
        other.execute("BEGIN IMMEDIATE")
        raise AssertionError("two connections write")
    except sqlite3.OperationalError as error:
        assert "locked" in str(error), error
    database.execute("COMMIT")
    assert one(other, "SELECT count(*) FROM account") == 3
    database.execute("VACUUM")
    ok("schema, transactions, rollbacks and two connections work in sqlite3 and Python")

    messages = refusal(path)
    assert "in use" in messages or "locked" in messages or "another process" in messages, messages
    other.close()
    database.close()
    answers, _ = shell(path, "SELECT count(*) FROM account;")
    assert answers == ["3"], answers
    ok("a second process is refused, and gets the pool after the last connection")


def refusals(pool):
    for path, reason in [
        (f"{pool}-missing/usual", "No such file"),
        (f"{pool}/missing", "missing"),
        (f"{pool}/files", "files"),
        (f"{pool}/foreign", "holds no database"),
        (f"{pool}/usual-journal", "cannot be a database's name"),
        ("usual", "POOL/VOLUME"),
        ("/dev/null/usual", "/dev/null"),
    ]:
        messages = refusal(path)
        assert reason in messages, (path, messages)
    ok("missing and foreign pools and volumes are refused with a reason")


def full_volume(pool):
    database = connect(f"{pool}/tiny")
    database.execute("CREATE TABLE t (b)")
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("BEGIN")
    try:
        for _ in range(5000):
            database.execute("INSERT INTO t VALUES (randomblob(4000))")
        raise AssertionError("a volume is never full")
    except sqlite3.OperationalError as error:
        assert "full" in str(error), error
    if database.in_transaction:
        database.execute("ROLLBACK")
    assert one(database, "SELECT count(*) FROM t") == 1
    assert one(database, "PRAGMA integrity_check") == "ok"
    database.execute("INSERT INTO t VALUES (2)")
    database.close()
    ok("a full volume ends a transaction as a full disk does, and the database stays usable")


def reports(pool):
    """Each weaker way is reported once."""
    # A session, the words of its report, and the reported lines.
    for volume, commands, words, count in [
        ("usual", ["PRAGMA journal_mode = WAL;"], "write-ahead log", 0),
        ("log", ["PRAGMA locking_mode = EXCLUSIVE;", "PRAGMA journal_mode = WAL;"], "write-ahead log", 1),
        ("memory", ["PRAGMA journal_mode = MEMORY;"], "after a crash", 1),
        ("off", ["PRAGMA journal_mode = OFF;"], "after a crash", 1),
        ("large", [], "uses the journal", 1),
    ]:
        # A batch has at most 64 MiB.
        size = 70_000_000 if volume == "large" else 3_000_000
        work = [
            "CREATE TABLE t (b);",
            f"INSERT INTO t VALUES (randomblob({size}));",
            f"UPDATE t SET b = randomblob({size});",
            f"UPDATE t SET b = randomblob({size});",
            "SELECT length(b) FROM t;",
            "DROP TABLE t; VACUUM;",
            "PRAGMA integrity_check;",
        ]
        answers, messages = shell(f"{pool}/{volume}", *commands, *work)
        assert answers[-2:] == [str(size), "ok"], (volume, answers, messages)
        assert messages.count(words) == count and messages.count("\n") == count, (volume, messages)
        if volume == "usual":
            assert answers[0] == "delete", answers
    ok("WAL, journal modes without a journal, and the journal on the volume are reported once")


# --- kills ------------------------------------------------------------------------------------


def open_for_round(path, mode):
    load_extension()
    database = connect(path)
    if mode == "exclusive":
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
    journal = mode if mode in ("truncate", "persist") else "delete"
    assert one(database, f"PRAGMA journal_mode = {journal}") == journal
    return database


def work(path, mode):
    """Commits transactions, and prints the number of each one afterwards."""
    database = open_for_round(path, mode)
    rng = random.Random()
    number = one(database, "SELECT max(n) FROM done") + 1
    while True:
        database.execute(f"PRAGMA cache_size = {rng.choice([10, 2000])}")
        database.execute("BEGIN")
        database.execute("UPDATE t SET last = ?, b = randomblob(900)", (number,))
        database.execute("INSERT INTO done VALUES (?, randomblob(700))", (number,))
        database.execute("DELETE FROM done WHERE n <= ?", (number - DONE_MAX,))
        if rng.randrange(8) == 0:
            database.execute("ROLLBACK")
            continue
        database.execute("COMMIT")
        print(number, flush=True)
        number += 1


def judge(path, answered):
    """Returns the last transaction. Another process opens the database than the killed one."""
    answers, messages = shell(
        path,
        "SELECT (SELECT max(n) FROM done), (SELECT min(last) FROM t), (SELECT max(last) FROM t);",
        "SELECT (SELECT count(*) FROM t), (SELECT max(n) - min(n) + 1 - count(*) FROM done);",
        "PRAGMA integrity_check;",
    )
    assert len(answers) == 3 and answers[1:] == [f"{ROWS}|0", "ok"] and not messages, (answers, messages)
    last = {int(number) for number in answers[0].split("|")}
    assert len(last) == 1, f"a part of a transaction is there: {answers}"
    assert last <= {answered, answered + 1}, f"answered {answered}, found {answers[0]}"
    return last.pop()


def kill_round(path, mode, rng, answered):
    command = [sys.executable, __file__, "--work", path, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        first = worker.stdout.readline()
        time.sleep(rng.uniform(0, 0.15))
        worker.kill()
        printed = [first.strip()] + worker.stdout.read().split("\n")[:-1]
        messages = worker.stderr.read()
    assert first and worker.returncode == -signal.SIGKILL, (worker.returncode, messages)
    assert not messages, messages
    assert int(printed[0]) == answered + 1, (printed[0], answered)
    return judge(path, int(printed[-1])), len(printed)


def kills(pool, rounds):
    rng = random.Random(rounds)
    path, transactions = f"{pool}/kill", 0
    database = connect(path)
    database.executescript("CREATE TABLE t (last INTEGER, b); CREATE TABLE done (n INTEGER PRIMARY KEY, b);")
    database.execute("INSERT INTO done VALUES (0, '')")
    database.executemany("INSERT INTO t VALUES (0, randomblob(900))", [()] * ROWS)
    database.close()
    last = judge(path, 0)
    for number in range(rounds):
        last, count = kill_round(path, MODES[number % len(MODES)], rng, last)
        transactions += count
    ok(f"{rounds} kills: each of {transactions} answered transactions is complete, others are complete or absent")
    database = connect(path)
    database.execute("UPDATE t SET last = last + 1 WHERE rowid = 7")
    database.close()
    try:
        judge(path, last)
    except AssertionError:
        ok("the judge notices a part of a transaction")
    else:
        raise SystemExit("the judge does not notice a part of a transaction")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    if not os.path.exists(EXTENSION):
        build = ["cargo", "build", "--quiet", "--release", "-p", "everbyte-sqlite-extension"]
        subprocess.run(build, cwd=TOP, check=True)
    mark = os.environ.get("EVERBYTE_E2E_RUN", os.getpid())
    folder = tempfile.mkdtemp(prefix=f"everbyte-e2e.{mark}.", dir="/dev/shm")
    try:
        load_extension()
        pool = f"{folder}/pool"
        run("pool", "create", pool, "--size", "640M")
        for volume in ("usual", "log", "memory", "off", "kill"):
            run("volume", "create", pool, volume, "--size", "48M")
        run("volume", "create", pool, "large", "--size", "480M")
        run("volume", "create", pool, "tiny", "--size", "4M")
        run("volume", "create", pool, "files", "--kind", "fs", "--size", "16M")
        run("volume", "create", pool, "foreign", "--size", "16M")
        write_foreign(pool, f"{folder}/socket")
        usual_work(pool)
        refusals(pool)
        full_volume(pool)
        reports(pool)
        kills(pool, rounds)
        run("pool", "check", pool)
        ok("the pool is clean")
    finally:
        shutil.rmtree(folder)


def write_foreign(pool, socket):
    """Fills the first block of a volume with foreign bytes."""
    command = [EVERBYTE, "serve", pool, "--nbd", f"unix:{socket}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline().startswith("ready"), "the server did not start"
        # Loaded here, because the workers do not need it.
        import nbd  # pylint: disable=import-outside-toplevel

        client = nbd.NBD()
        client.connect_uri(f"nbd+unix:///foreign?socket={socket}")
        client.pwrite(b"\xa5" * 4096, 0)
        client.flush()
        client.shutdown()
        # A served pool belongs to its server.
        assert "in use" in refusal(f"{pool}/usual")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(WAIT_MAX_S)


if len(sys.argv) == 4 and sys.argv[1] == "--work":
    work(sys.argv[2], sys.argv[3])
else:
    main()
