//! TPC-C on SQLite: the database, the five transactions and their mix.
//!
//! The modules follow the TPC Benchmark C standard, revision 5.11, and name its clauses. Differences: one connection,
//! no keying or thinking times, no terminals, and a random warehouse for each transaction. Money is in cents and rates
//! are in units of 1/10000, so sums are exact. Dates are numbers of transactions, so a seed determines each stored
//! byte.

pub(crate) mod consistency;
mod driver;
pub(crate) mod kill;
mod load;
pub(crate) mod place;
mod rng;
mod statements;
#[cfg(test)]
mod tests;
mod transactions;

pub(crate) use driver::{Outcome, Until, run, run_watched};
pub(crate) use load::load;
pub(crate) use transactions::Done;

/// Districts of a warehouse.
pub(crate) const DISTRICTS: u32 = 10;

/// Size of a database (clause 1.2.1).
#[derive(Clone, Copy, Debug)]
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

    /// Customers of each district. A new database has as many orders.
    pub(crate) fn customers(self) -> u32 {
        (3000 / self.shrink).max(10)
    }

    /// Delivered orders of each district in a new database.
    pub(crate) fn delivered(self) -> u32 {
        self.customers() * 7 / 10
    }

    /// Last names of customers (clause 4.3.3.1), at most one for each customer.
    pub(crate) fn last_names(self) -> u32 {
        self.customers().min(1000)
    }
}
