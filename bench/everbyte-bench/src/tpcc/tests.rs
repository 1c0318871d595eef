//! Tests of the mix, of transactions' effects, and of equal runs for equal seeds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use everbyte_block::Delta;
use everbyte_sqlite::{Durability, Store, volume_bytes};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::place::{JournalMode, Opened, Place, Setting, database_bytes, new_source};
use super::*;
use crate::subjects::volume::BenchPool;

const SCALE: Scale = Scale { warehouses: 2, shrink: 100 };

fn loaded() -> Connection {
    let db = new_source().unwrap();
    load(&db, SCALE, 1).unwrap();
    db.query_row("PRAGMA journal_mode = memory", [], |_| Ok(())).unwrap();
    db
}

/// A volume of a new pool in `folder`.
fn device(folder: &Path) -> Place {
    let bytes = volume_bytes(64 << 20);
    let pool = BenchPool::new(folder, bytes, 1).unwrap();
    Place::Device(Arc::new(pool.volume("tpcc", bytes, Delta::Auto).unwrap().into_device()))
}

/// Committed atomic batches of the volume of a connection.
fn batches(opened: &Opened) -> u64 {
    let committed = |store: &Store| store.activity("tpcc.db").unwrap().batches_committed;
    opened._vfs.as_ref().map_or(0, |(_, store)| committed(store))
}

fn count(db: &Connection, what: &str) -> u64 {
    let count: i64 = db.query_row(&format!("SELECT {what}"), [], |row| row.get(0)).unwrap();
    u64::try_from(count).unwrap()
}

/// A hash of every row of all tables.
fn contents(db: &Connection) -> Vec<u64> {
    let tables = ["warehouse", "district", "customer", "history", "orders", "new_order"];
    let mut hashes = Vec::new();
    for table in tables.into_iter().chain(["order_line", "item", "stock"]) {
        let mut statement = db.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let mut hasher = DefaultHasher::new();
            for column in 0..columns {
                match row.get_ref(column).unwrap() {
                    ValueRef::Integer(number) => number.hash(&mut hasher),
                    ValueRef::Text(text) => text.hash(&mut hasher),
                    other => assert_eq!(other, ValueRef::Null),
                }
            }
            hashes.push(hasher.finish());
        }
    }
    hashes
}

#[test]
fn loaded_database_has_standard_cardinalities() {
    let db = loaded();
    let (districts, customers) = (2 * 10, 30);
    for (table, rows) in [
        ("warehouse", 2),
        ("district", districts),
        ("customer", districts * customers),
        ("history", districts * customers),
        ("orders", districts * customers),
        ("new_order", districts * 9),
        ("item", 1000),
        ("stock", 2000),
    ] {
        assert_eq!(count(&db, &format!("count(*) FROM {table}")), rows, "{table}");
    }
    let lines = count(&db, "count(*) FROM order_line");
    assert!((districts * customers * 9..districts * customers * 11).contains(&lines), "{lines}");
    consistency::check(&db).unwrap();
}

#[test]
fn full_scale_has_standard_sizes() {
    let scale = Scale { warehouses: 1, shrink: 1 };
    let found = [scale.items(), scale.customers(), scale.delivered(), scale.last_names()];
    assert_eq!(found, [100_000, 3000, 2100, 1000]);
}

#[test]
fn standard_mix_keeps_database_consistent() {
    let db = loaded();
    let [orders, payments] = ["count(*) FROM orders", "count(*) FROM history"];
    let before = [count(&db, orders), count(&db, payments)];
    let outcome = run(&db, SCALE, 5, Until::Transactions(2000)).unwrap();
    let [new_orders, rest @ ..] = outcome.by_kind;
    assert_eq!(rest, [860, 80, 80, 80]);
    assert_eq!(new_orders + outcome.aborted, 900);
    assert_eq!(outcome.transactions, 2000 - outcome.aborted);
    assert!((1..=25).contains(&outcome.aborted), "{outcome:?}");
    assert_eq!(count(&db, orders) - before[0], new_orders);
    assert_eq!(count(&db, payments) - before[1], 860);
    let remote = count(&db, "count(*) FROM history WHERE h_c_w_id <> h_w_id");
    assert!((90..=170).contains(&remote), "15 % of 860 payments: {remote}");
    let remote_lines = count(&db, "count(*) FROM order_line WHERE ol_supply_w_id <> ol_w_id");
    assert!((50..=140).contains(&remote_lines), "1 % of about 9000 lines: {remote_lines}");
    assert!(count(&db, "count(*) FROM orders WHERE o_carrier_id IS NULL") > 0);
    consistency::check(&db).unwrap();
}

#[test]
fn rollback_leaves_no_rows() {
    let db = loaded();
    let is_rolled_back = |seed| run(&db, SCALE, seed, Until::Transactions(1)).unwrap().aborted == 1;
    // The draws do not depend on the database.
    let seeds: Vec<u64> = (0..3000).filter(|&seed| is_rolled_back(seed)).take(3).collect();
    assert_eq!(seeds.len(), 3);
    let before = contents(&db);
    for seed in seeds {
        assert!(is_rolled_back(seed));
        assert!(contents(&db) == before, "seed {seed}");
    }
}

#[test]
fn failed_transaction_rolls_back() {
    let db = loaded();
    // A new order inserts its lines last, so the failure leaves half of a transaction.
    let trigger = "CREATE TEMP TRIGGER failure BEFORE INSERT ON order_line
                   BEGIN SELECT raise(FAIL, 'as planned'); END";
    db.execute_batch(trigger).unwrap();
    let failed = (0..100).find_map(|seed| {
        let before = contents(&db);
        let error = run(&db, SCALE, seed, Until::Transactions(1)).err()?;
        Some((format!("{error:#}"), contents(&db) == before))
    });
    let (error, is_same) = failed.unwrap();
    assert!(error.contains("as planned"), "{error}");
    assert!(is_same && db.is_autocommit());
}

#[test]
fn seed_determines_database_and_mix() {
    let outcomes_and_contents = |seed| {
        let db = loaded();
        let mut done = Vec::new();
        let mut watch = |what: &Done| {
            done.push(what.clone());
            Ok(())
        };
        run_watched(&db, SCALE, seed, Until::Transactions(300), &mut watch).unwrap();
        (done, contents(&db))
    };
    let first = outcomes_and_contents(7);
    assert!(first == outcomes_and_contents(7));
    assert!(first != outcomes_and_contents(8));
}

#[test]
fn every_consistency_condition_can_be_violated() {
    let db = loaded();
    for (violation, condition) in [
        ("UPDATE warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 2", "1:"),
        ("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 3", "2:"),
        ("DELETE FROM new_order WHERE no_o_id = 25 AND no_d_id = 1", "3:"),
        ("DELETE FROM order_line WHERE ol_o_id = 4 AND ol_d_id = 1 AND ol_number = 1", "4:"),
        ("UPDATE orders SET o_carrier_id = 1 WHERE o_id = 30 AND o_d_id = 2", "5:"),
        (
            "UPDATE orders SET o_ol_cnt = o_ol_cnt + (CASE o_id WHEN 1 THEN 1 ELSE -1 END)
             WHERE o_id < 3",
            "6:",
        ),
        ("UPDATE order_line SET ol_delivery_d = NULL WHERE ol_o_id = 1 AND ol_number = 1", "7:"),
        (
            "UPDATE warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 1;
             UPDATE district SET d_ytd = d_ytd + 1 WHERE d_w_id = 1 AND d_id = 1;",
            "8:",
        ),
        ("UPDATE district SET d_ytd = d_ytd + d_id * 2 - 3 WHERE d_w_id = 1 AND d_id < 3", "9:"),
        ("UPDATE customer SET c_balance = c_balance + 1 WHERE c_id = 7", "10:"),
        ("UPDATE customer SET c_ytd_payment = 0 WHERE c_id = 7", "12:"),
    ] {
        db.execute_batch("BEGIN").unwrap();
        db.execute_batch(violation).unwrap();
        let error = consistency::check(&db).unwrap_err().to_string();
        assert!(error.contains(&format!("condition {condition}")), "{violation}: {error}");
        db.execute_batch("ROLLBACK").unwrap();
    }
    consistency::check(&db).unwrap();
}

#[test]
fn places_and_journal_modes_agree() {
    let source = loaded();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    assert!(database_bytes(&source).unwrap() < 16 << 20);
    let device = device(folder.path());
    let directory = Place::Directory(folder.path().to_owned());
    let mut expected = None;
    for (place, journal) in [
        (&device, JournalMode::Batch),
        (&device, JournalMode::Delete),
        (&device, JournalMode::Wal),
        (&directory, JournalMode::Delete),
        (&directory, JournalMode::Wal),
    ] {
        for durability in [Durability::AtCommit, Durability::AtCheckpoint] {
            place.fill(&source).unwrap();
            let opened = place.open(&Setting { journal, durability, cache_mib: 8 }).unwrap();
            let outcome = run(&opened.db, SCALE, 9, Until::Transactions(100)).unwrap();
            place.settle().unwrap();
            consistency::check(&opened.db).unwrap();
            let found = (outcome.by_kind, contents(&opened.db));
            assert!(*expected.get_or_insert_with(|| found.clone()) == found, "{journal:?}");
            assert_eq!(opened._vfs.is_some(), matches!(place, Place::Device(_)));
            assert_eq!(batches(&opened) > 0, journal == JournalMode::Batch, "{journal:?}");
        }
    }
    let none = directory.open(&Setting {
        journal: JournalMode::Batch,
        durability: Durability::AtCommit,
        cache_mib: 8,
    });
    assert!(none.is_err(), "files have no atomic writes");
}

#[test]
fn journal_modes_follow_each_other() {
    let source = loaded();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = device(folder.path());
    let directory = Place::Directory(folder.path().to_owned());
    let modes = [JournalMode::Batch, JournalMode::Delete, JournalMode::Wal];
    for place in [&device, &directory] {
        place.fill(&source).unwrap();
        let has = |mode| mode != JournalMode::Batch || matches!(place, Place::Device(_));
        let modes = modes.into_iter().filter(|&mode| has(mode));
        for from in modes.clone() {
            for journal in modes.clone().flat_map(|to| [from, to]) {
                let durability = Durability::AtCommit;
                let setting = Setting { journal, durability, cache_mib: 1 };
                let opened = place.open(&setting).unwrap();
                run(&opened.db, SCALE, 1, Until::Transactions(4)).unwrap();
                place.settle().unwrap();
                assert_eq!(batches(&opened) > 0, journal == JournalMode::Batch, "from {from:?}");
            }
        }
    }
}
