//! Swap volumes: made, grown, shrunk and deleted with crashes anywhere; lent to processes that end
//! in every way; and tables that cannot be right.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod changes;
mod damage;
mod explored;
mod golden;
mod house;
mod lending;
