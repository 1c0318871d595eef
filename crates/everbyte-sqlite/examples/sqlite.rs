//! A SQLite database on a block volume of a pool: made, committed to, and found again.
//! `cargo run -p everbyte-sqlite --example sqlite [PATH OF THE POOL]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use everbyte::Pool;
use everbyte_sqlite::{Store, VfsOptions, register, volume_bytes};
use rusqlite::{Connection, OpenFlags};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or(folder.path().join("pool"), Into::into);

    let pool = Pool::create(&path, 64 << 20)?;
    drop(pool.create_block("ledger", volume_bytes(16 << 20))?);
    drop(pool);
    for amount in [40, 2] {
        // The pool is closed at the end of each round. The next round reads it again.
        let pool = Pool::open(&path)?;
        let store = Store::of_devices();
        store.attach("ledger", Arc::new(pool.open_block("ledger")?))?;
        let vfs = register("everbyte", &store, VfsOptions::default())?;
        let db = Connection::open_with_flags_and_vfs("ledger", OpenFlags::default(), "everbyte")?;
        db.execute_batch("CREATE TABLE IF NOT EXISTS entry (amount INTEGER)")?;
        db.execute("INSERT INTO entry VALUES (?1)", [amount])?; // durable on return
        let sum: i64 = db.query_row("SELECT sum(amount) FROM entry", [], |row| row.get(0))?;
        println!("sum {sum}, commits in batches: {}", vfs.commits_in_batches());
        assert_eq!(sum, if amount == 40 { 40 } else { 42 });
    }
    Ok(())
}
