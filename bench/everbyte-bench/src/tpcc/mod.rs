//! TPC-C on SQLite: the benchmark's database, its five transactions and their mix.
//!
//! Follows the TPC Benchmark C standard, revision 5.11, whose clauses are named where they matter.
//! It differs from it, as most uses for comparisons do: one connection, no keying or thinking
//! times, and no terminals; the warehouse of every transaction is drawn. Money is kept in cents and
//! rates in units of 1/10000, so that sums are exact. Dates are the numbers of transactions, so
//! that a seed determines every byte that is stored.
//!
//! Owns no files: see `place` for where a database can be.

pub(crate) mod command;
pub(crate) mod consistency;
mod driver;
pub(crate) mod kill;
mod load;
pub(crate) mod place;
mod rng;
mod schema;
mod statements;
#[cfg(test)]
mod tests;
mod transactions;

pub(crate) use driver::{Moment, Outcome, Until, run, run_watched};
pub(crate) use load::load;
pub(crate) use transactions::Done;

use serde::Serialize;

/// Districts of a warehouse.
pub(crate) const DISTRICTS: u32 = 10;

/// Size of a database (clause 1.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Scale {
    pub(crate) warehouses: u32,
    /// Divisor of the other cardinalities: 1 for the standard's.
    pub(crate) shrink: u32,
}

impl Scale {
    /// Items of the catalogue, and stocks of each warehouse.
    pub(crate) fn items(self) -> u32 {
        (100_000 / self.shrink).max(100)
    }

    /// Customers of each district; as many orders are there to begin with.
    pub(crate) fn customers(self) -> u32 {
        (3000 / self.shrink).max(10)
    }

    /// Orders of each district that were delivered before the beginning.
    pub(crate) fn delivered(self) -> u32 {
        self.customers() * 7 / 10
    }

    /// Last names that customers have (clause 4.3.3.1): all, unless there are too few customers.
    pub(crate) fn last_names(self) -> u32 {
        self.customers().min(1000)
    }
}
