//! Emulation of memory technologies with a higher cost per line than DRAM.
//!
//! Invariants: the caller sums a cost exactly before it is spent here. A cost is spent as real time of the
//! calling thread. Amounts below a clock's resolution are saved up per thread and spent together, so the sum
//! of time spent follows the sum of costs. The model knows no caches, queues or bandwidth: it charges every
//! line that software flushes, streams or reads. This is an upper bound for reads that hit a cache. One
//! technology has banks: the writes between two fences overlap. The others write one line after the other;
//! this is an upper bound, too.

use std::cell::Cell;
use std::time::Instant;

/// Nanoseconds a thread may owe before it spins. Below this the clock itself would dominate.
const DEBT_MAX_NS: i64 = 200;
/// The most credit from one overlong spin (the thread lost its processor).
const CREDIT_MAX_NS: i64 = 200;

thread_local! {
    /// Cost charged and not yet spent, in nanoseconds; negative after an overlong spin.
    static DEBT_NS: Cell<i64> = const { Cell::new(0) };
    /// Lines written by this thread since its last fence, on any medium.
    static UNFENCED_LINES: Cell<u64> = const { Cell::new(0) };
}

/// Nanoseconds of a 64-byte line's cost beyond DRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineCost {
    /// Nanoseconds per line read.
    pub read_ns: u64,
    /// Nanoseconds per line flushed or streamed.
    pub write_ns: u64,
}

/// A memory technology to emulate on DRAM.
///
/// The costs are array latencies from the cited papers, less those of DRAM (about 15 ns), in round figures:
/// they stand for the technology, not for a product. K. Suzuki and S. Swanson, "A Survey of Trends in
/// Non-Volatile Memory Technologies: 2000-2014" (IMW 2015) and S. Mittal and J. Vetter, "A Survey of Software
/// Techniques for Using Non-Volatile Memories for Storage and Main Memory Systems" (TPDS 2016) show how
/// widely real devices scatter around them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Technology {
    /// DRAM itself, battery-backed perhaps: no added cost, but flushes are made.
    Dram,
    /// Spin-transfer torque MRAM: reads like DRAM, a write pulse about 10 ns longer. After
    /// E. Kültürsay et al., "Evaluating STT-RAM as an Energy-Efficient Main Memory Alternative"
    /// (ISPASS 2013).
    SttMram,
    /// Phase-change memory: array read 55 ns, write 150 ns. After B. Lee et al., "Architecting
    /// Phase Change Memory as a Scalable DRAM Alternative" (ISCA 2009).
    Pcm,
    /// The same in eight concurrent banks: of the lines between two fences of a thread, each eight cost the
    /// same as one. It stands for the other end: no two lines of a fence meet in one bank.
    PcmBanks,
    /// Resistive RAM: reads somewhat slower than DRAM, a switching pulse of about 50 ns. Crossbars
    /// without access transistors are slower; see C. Xu et al., "Overcoming the Challenges of
    /// Crossbar Resistive Memory Architectures" (HPCA 2015).
    Reram,
}

impl Technology {
    /// Every technology, in order of the cost of many writes.
    pub const ALL: [Self; 5] = [Self::Dram, Self::SttMram, Self::PcmBanks, Self::Reram, Self::Pcm];

    /// Lines written concurrently.
    #[must_use]
    pub const fn banks(self) -> u64 {
        match self {
            Self::PcmBanks => 8,
            Self::Dram | Self::SttMram | Self::Reram | Self::Pcm => 1,
        }
    }

    /// Cost per line beyond DRAM, without overlap.
    #[must_use]
    pub const fn cost(self) -> LineCost {
        match self {
            Self::Dram => LineCost { read_ns: 0, write_ns: 0 },
            Self::SttMram => LineCost { read_ns: 0, write_ns: 10 },
            Self::Reram => LineCost { read_ns: 10, write_ns: 50 },
            Self::Pcm | Self::PcmBanks => LineCost { read_ns: 40, write_ns: 135 },
        }
    }

    /// The name for [`FromStr`](std::str::FromStr).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::SttMram => "stt-mram",
            Self::Reram => "reram",
            Self::Pcm => "pcm",
            Self::PcmBanks => "pcm-banks",
        }
    }
}

impl std::fmt::Display for Technology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Technology {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|technology| technology.name() == name).ok_or_else(|| {
            format!("unknown technology {name:?}: expected dram, stt-mram, reram, pcm or pcm-banks")
        })
    }
}

/// Cost in nanoseconds of `lines` more lines written by this thread.
pub(crate) fn write_ns(technology: Technology, lines: u64) -> u64 {
    let (banks, before) = (technology.banks(), UNFENCED_LINES.get());
    let after = before.saturating_add(lines);
    if banks > 1 {
        UNFENCED_LINES.set(after);
    }
    technology.cost().write_ns * (after.div_ceil(banks) - before.div_ceil(banks))
}

/// Begins a new row of lines: all earlier writes are fenced.
pub(crate) fn fenced() {
    UNFENCED_LINES.set(0);
}

/// Charges `ns` to this thread and spends its debt once that can be measured.
pub(crate) fn charge(ns: u64) {
    let debt = DEBT_NS.get().saturating_add(i64::try_from(ns).unwrap_or(i64::MAX));
    DEBT_NS.set(if debt >= DEBT_MAX_NS { spend(debt) } else { debt });
}

/// Spends all debt of this thread.
pub(crate) fn settle() {
    let debt = DEBT_NS.get();
    if debt > 0 {
        DEBT_NS.set(spend(debt));
    }
}

/// Spins for `debt` nanoseconds; returns the remaining debt: 0 or a credit.
fn spend(debt: i64) -> i64 {
    let start = Instant::now();
    loop {
        let spent = i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        if spent >= debt {
            return (debt - spent).max(-CREDIT_MAX_NS);
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for technology in Technology::ALL {
            assert_eq!(technology.name().parse(), Ok(technology));
        }
        assert!("flash".parse::<Technology>().is_err());
    }

    #[test]
    fn lines_between_fences_share_bank_time() {
        let cost = Technology::PcmBanks.cost().write_ns;
        fenced();
        assert_eq!(write_ns(Technology::PcmBanks, 1), cost);
        assert_eq!(write_ns(Technology::PcmBanks, 7), 0);
        assert_eq!(write_ns(Technology::PcmBanks, 9), 2 * cost);
        fenced();
        assert_eq!(write_ns(Technology::PcmBanks, 64), 8 * cost);
        fenced();
        assert_eq!(write_ns(Technology::Pcm, 9), 9 * cost);
        assert_eq!(write_ns(Technology::Pcm, 1), cost);
    }

    #[test]
    fn small_charges_accumulate() {
        DEBT_NS.set(0);
        charge(150);
        assert_eq!(DEBT_NS.get(), 150);
        settle();
        assert!((-CREDIT_MAX_NS..=0).contains(&DEBT_NS.get()));
        DEBT_NS.set(0);
        charge(DEBT_MAX_NS.unsigned_abs());
        assert!(DEBT_NS.get() <= 0);
    }

    #[test]
    fn spin_lasts_at_least_its_cost() {
        let start = Instant::now();
        DEBT_NS.set(0);
        charge(300_000);
        assert!(start.elapsed().as_nanos() >= 300_000);
    }
}
