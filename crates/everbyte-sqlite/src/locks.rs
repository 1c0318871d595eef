//! SQLite's five lock levels on one database, between the connections of this process.
//!
//! Owns the right to read and to write. A pool is open in one process at a time, so no other
//! process needs a message. Invariants: at most one connection holds more than SHARED. While it
//! holds PENDING no new reader enters, and while it holds EXCLUSIVE no other connection reads.
//! (SQLite's "File Locking And Concurrency" describes the levels.)

use parking_lot::Mutex;

/// A connection's lock on a database, in rising order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Level {
    /// Nothing.
    #[default]
    None,
    /// Read.
    Shared,
    /// Read, and write later.
    Reserved,
    /// Read, and write as soon as the readers are gone.
    Pending,
    /// Write.
    Exclusive,
}

#[derive(Debug, Default)]
struct Holders {
    /// Connections at SHARED and above.
    readers: usize,
    /// The level of the one connection above SHARED.
    writer: Level,
}

/// The locks of one database.
#[derive(Debug, Default)]
pub(crate) struct LockTable(Mutex<Holders>);

impl LockTable {
    /// Raises a connection from `held` towards `wanted` and returns its new level. The level is
    /// below `wanted` if other connections prevent it, and may be PENDING then.
    pub(crate) fn raise(&self, held: Level, wanted: Level) -> Level {
        if held >= wanted {
            return held;
        }
        let mut holders = self.0.lock();
        if held == Level::None {
            if holders.writer >= Level::Pending {
                return held;
            }
            holders.readers += 1;
            if wanted == Level::Shared {
                return wanted;
            }
        }
        let held = held.max(Level::Shared);
        let another_writes = held == Level::Shared && holders.writer > Level::Shared;
        if another_writes {
            return held;
        }
        let others_read = holders.readers > 1;
        let reached =
            if wanted == Level::Exclusive && others_read { Level::Pending } else { wanted };
        holders.writer = reached;
        reached
    }

    /// Lowers a connection from `held` to SHARED or nothing.
    pub(crate) fn lower(&self, held: Level, to: Level) -> Level {
        let to = to.min(Level::Shared);
        if held <= to {
            return held;
        }
        let mut holders = self.0.lock();
        if held > Level::Shared {
            holders.writer = Level::None;
        }
        if to == Level::None {
            holders.readers -= 1;
        }
        to
    }

    /// Returns true if some connection means to write.
    pub(crate) fn is_reserved(&self) -> bool {
        self.0.lock().writer >= Level::Reserved
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{Exclusive, None, Pending, Reserved, Shared};
    use super::*;

    #[test]
    fn one_writes_and_only_after_the_readers() {
        let table = LockTable::default();
        assert_eq!(table.raise(None, Shared), Shared);
        assert_eq!(table.raise(None, Shared), Shared);
        assert_eq!(table.raise(Shared, Reserved), Reserved);
        assert!(table.is_reserved());
        assert_eq!(table.raise(Shared, Reserved), Shared, "another one writes");
        assert_eq!(table.raise(Shared, Exclusive), Shared, "another one writes");
        assert_eq!(table.raise(None, Shared), Shared, "readers may come until PENDING");
        assert_eq!(table.raise(Reserved, Exclusive), Pending);
        assert_eq!(table.raise(None, Shared), None, "nobody new reads");
        assert_eq!(table.lower(Shared, None), None);
        assert_eq!(table.raise(Pending, Exclusive), Pending, "one still reads");
        assert_eq!(table.lower(Shared, None), None);
        assert_eq!(table.raise(Pending, Exclusive), Exclusive);
        assert_eq!(table.lower(Exclusive, Shared), Shared);
        assert!(!table.is_reserved());
        assert_eq!(table.raise(None, Shared), Shared);
    }

    #[test]
    fn hot_journal_is_rolled_back_from_shared() {
        let table = LockTable::default();
        assert_eq!(table.raise(None, Shared), Shared);
        assert_eq!(table.raise(Shared, Exclusive), Exclusive);
        assert_eq!(table.raise(None, Shared), None);
        assert_eq!(table.lower(Exclusive, None), None);
        assert_eq!(table.raise(None, Shared), Shared);
    }
}
