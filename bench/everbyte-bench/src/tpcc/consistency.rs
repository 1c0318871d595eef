//! Conditions that each database meets between transactions (clause 3.3.2).
//!
//! The standard requires a proof of conditions 1 to 4. The others are checked as well, because half of a transaction
//! violates at least one condition. Condition 11 holds in a new database only and is absent.

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

/// A comment line names a condition. The query below counts its violations.
const CONDITIONS: &str = include_str!("conditions.sql");

/// Checks each condition.
///
/// # Errors
/// The first violated condition; an error of SQLite.
pub(crate) fn check(db: &Connection) -> Result<()> {
    for condition in CONDITIONS.split("-- ").skip(1) {
        let (condition, query) = condition.split_once('\n').context("a condition has no query")?;
        let places: i64 = db.query_row(query, [], |row| row.get(0))?;
        ensure!(places == 0, "consistency condition {condition}: violated in {places} places");
    }
    Ok(())
}
