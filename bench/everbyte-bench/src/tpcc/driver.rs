//! The mix of transactions (clause 5.2.3) and their measure.
//!
//! Invariant: of a hundred transactions one after the other, 45 are new orders, 43 payments, and 4
//! each of the others, in an order that is drawn (clause 5.2.4.2).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::Connection;
use serde::Serialize;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Outcome {
    /// New orders that were committed.
    pub(crate) new_orders: u64,
    /// All that were committed.
    pub(crate) transactions: u64,
    /// New orders that were rolled back, as one in a hundred is meant to be.
    pub(crate) aborted: u64,
    /// Committed ones by kind: new orders, payments, order statuses, deliveries, stock levels.
    pub(crate) by_kind: [u64; 5],
    pub(crate) elapsed_ns: u64,
    /// Processor time of the connection's thread: what `elapsed_ns` would be with the machine to
    /// ourselves, where nothing waits and no other thread does the work.
    pub(crate) cpu_ns: u64,
}

impl Outcome {
    /// Committed new orders a minute.
    pub(crate) fn tpmc(&self) -> f64 {
        as_f64(self.new_orders) * 60e9 / as_f64(self.elapsed_ns.max(1))
    }

    /// The same for a minute of processor time.
    pub(crate) fn tpmc_of_cpu(&self) -> f64 {
        as_f64(self.new_orders) * 60e9 / as_f64(self.cpu_ns.max(1))
    }
}

/// Moment in a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// All is done but its end.
    Ending,
    /// It has ended.
    Ended,
}

/// Runs transactions one after the other, the same for the same seed and database.
///
/// # Errors
/// SQLite's. A transaction that failed was rolled back.
pub(crate) fn run(db: &mut Connection, scale: &Scale, seed: u64, until: Until) -> Result<Outcome> {
    run_watched(db, scale, seed, until, &mut |_, _| Ok(()))
}

/// The same, and tells `watch` of every transaction before and after its end.
///
/// # Errors
/// As `run`, and what `watch` returns.
pub(crate) fn run_watched(
    db: &mut Connection,
    scale: &Scale,
    seed: u64,
    until: Until,
    watch: &mut dyn FnMut(Moment, &Done) -> Result<()>,
) -> Result<Outcome> {
    let mut terminal = Terminal::new(db, *scale, TpccRng::for_running(seed))?;
    let mut deck: Vec<Kind> = Vec::new();
    let mut outcome = Outcome::default();
    let (started, cpu_before) = (Instant::now(), thread_cpu());
    loop {
        let over = match until {
            Until::Transactions(count) => outcome.transactions + outcome.aborted >= count,
            Until::Duration(duration) => started.elapsed() >= duration,
        };
        if over {
            break;
        }
        if deck.is_empty() {
            deck = full_deck();
            terminal.rng.shuffle(&mut deck);
        }
        let kind = deck.pop().context("a deck without cards")?;
        let done = transact(&mut terminal, kind, watch)
            .with_context(|| format!("transaction {kind:?} failed"))?;
        outcome.count(kind, &done);
    }
    outcome.elapsed_ns = as_ns(started.elapsed());
    outcome.cpu_ns = as_ns(thread_cpu().saturating_sub(cpu_before));
    Ok(outcome)
}

/// Nanoseconds of a time.
pub(super) fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn full_deck() -> Vec<Kind> {
    MIX.iter().flat_map(|&(kind, count)| std::iter::repeat_n(kind, count)).collect()
}

fn transact(
    terminal: &mut Terminal<'_>,
    kind: Kind,
    watch: &mut dyn FnMut(Moment, &Done) -> Result<()>,
) -> Result<Done> {
    let ended = terminal.work(kind).map_err(anyhow::Error::from).and_then(|done| {
        watch(Moment::Ending, &done)?;
        terminal.end(&done)?;
        Ok(done)
    });
    match ended {
        Ok(done) => {
            watch(Moment::Ended, &done)?;
            Ok(done)
        }
        Err(error) => {
            terminal.abandon();
            Err(error)
        }
    }
}

impl Outcome {
    fn count(&mut self, kind: Kind, done: &Done) {
        if *done == Done::RolledBack {
            self.aborted += 1;
            return;
        }
        self.transactions += 1;
        self.new_orders += u64::from(kind == Kind::NewOrder);
        for (count, (of_kind, _)) in self.by_kind.iter_mut().zip(MIX) {
            *count += u64::from(of_kind == kind);
        }
    }
}
