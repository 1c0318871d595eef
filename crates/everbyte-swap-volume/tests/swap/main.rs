//! Swap volumes: created, grown, shrunk and deleted with crashes at every point; lent to processes with
//! every kind of end; and invalid tables.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod changes;
mod damage;
mod explored;
mod golden;
mod lending;
mod test_pool;
