//! The mix of transactions (clause 5.2.3) and their rates.
//!
//! Invariant: each hundred successive transactions have 45 new orders, 43 payments and 4 of each other kind, in random
//! order (clause 5.2.4.2).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::Connection;

use super::Scale;
use super::rng::TpccRng;
use super::transactions::{Done, Kind, Terminal};
use crate::measure::thread_cpu;
use crate::stats::as_f64;

/// Transactions of each kind in a hundred.
const MIX: [(Kind, usize); 5] = [
    (Kind::NewOrder, 45),
    (Kind::Payment, 43),
    (Kind::OrderStatus, 4),
    (Kind::Delivery, 4),
    (Kind::StockLevel, 4),
];

/// End of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Transactions(u64),
    Duration(Duration),
}

/// Counts and times of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Committed transactions.
    pub(crate) transactions: u64,
    /// New orders that were rolled back: one in a hundred (clause 2.4.1.4).
    pub(crate) aborted: u64,
    /// Committed transactions by [`Kind`].
    pub(crate) by_kind: [u64; 5],
    pub(crate) elapsed: Duration,
    /// Processor time of the connection's thread: `elapsed` on an idle machine, if no other thread does work and
    /// nothing waits.
    pub(crate) cpu: Duration,
}

impl Outcome {
    /// Committed new orders a minute.
    pub(crate) fn tpmc(&self) -> f64 {
        as_f64(self.by_kind[0]) * 60.0 / self.elapsed.as_secs_f64()
    }

    /// Committed new orders a minute of processor time.
    pub(crate) fn tpmc_of_cpu(&self) -> f64 {
        as_f64(self.by_kind[0]) * 60.0 / self.cpu.as_secs_f64()
    }
}

/// Runs transactions in succession, the same for the same seed and database.
///
/// # Errors
/// An error of SQLite. The failed transaction is rolled back.
pub(crate) fn run(db: &Connection, scale: Scale, seed: u64, until: Until) -> Result<Outcome> {
    run_watched(db, scale, seed, until, &mut |_| Ok(()))
}

/// Runs transactions, and reports each one to `watch` after its end.
///
/// # Errors
/// Those of `run` and of `watch`.
pub(crate) fn run_watched(
    db: &Connection,
    scale: Scale,
    seed: u64,
    until: Until,
    watch: &mut dyn FnMut(&Done) -> Result<()>,
) -> Result<Outcome> {
    let mut terminal = Terminal::new(db, scale, TpccRng::for_running(seed))?;
    let mut deck: Vec<Kind> = Vec::new();
    let mut outcome = Outcome::default();
    let (started, cpu_before) = (Instant::now(), thread_cpu());
    let is_over = |outcome: &Outcome| match until {
        Until::Transactions(count) => outcome.transactions + outcome.aborted >= count,
        // On a busy machine a slice can end before the first transaction.
        Until::Duration(duration) => outcome.transactions > 0 && started.elapsed() >= duration,
    };
    while !is_over(&outcome) {
        if deck.is_empty() {
            let kinds = MIX.iter().map(|&(kind, count)| std::iter::repeat_n(kind, count));
            deck.extend(kinds.flatten());
            terminal.rng.shuffle(&mut deck);
        }
        let Some(kind) = deck.pop() else { continue };
        let done = terminal.transact(kind);
        let done = done.with_context(|| format!("transaction {kind:?} failed"))?;
        if done == Done::RolledBack {
            outcome.aborted += 1;
        } else {
            outcome.transactions += 1;
            outcome.by_kind[kind as usize] += 1;
        }
        watch(&done)?;
    }
    outcome.elapsed = started.elapsed();
    outcome.cpu = thread_cpu().saturating_sub(cpu_before);
    Ok(outcome)
}
