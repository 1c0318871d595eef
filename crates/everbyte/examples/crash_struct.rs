//! Crash-testing a user-defined type: two balances, and a record to undo half a transfer. The type
//! is generic over the medium: the same code runs on real memory.
//! `cargo run -p everbyte --example crash_struct`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use everbyte::crash::{Crash, Explorer, Labels, Log, Medium, PoolOffset, Scenario, SimMedium};
use everbyte::media::{Mapped, MediaOptions};

const BALANCES: [PoolOffset; 2] = [PoolOffset(0), PoolOffset(64)];
const OLD: [PoolOffset; 2] = [PoolOffset(128), PoolOffset(136)];
/// 1 while the record of the old balances counts.
const RECORDED: PoolOffset = PoolOffset(192);

/// Two balances with a constant sum.
struct Bank<M> {
    medium: Arc<M>,
    /// False for a bank with a mistake: its record may persist after the stores it undoes.
    fences_record: bool,
}

impl<M: Medium> Bank<M> {
    /// Opens the bank, and undoes an incomplete transfer.
    fn open(medium: Arc<M>, fences_record: bool) -> Self {
        let bank = Self { medium, fences_record };
        if bank.medium.load_word(RECORDED) == 1 {
            let old = OLD.map(|at| bank.medium.load_word(at));
            bank.store([(BALANCES[0], old[0]), (BALANCES[1], old[1])], true);
            bank.store([(RECORDED, 0)], true);
        }
        bank
    }

    fn balances(&self) -> [u64; 2] {
        BALANCES.map(|at| self.medium.load_word(at))
    }

    /// Moves `amount` from the first balance to the second, durably.
    fn transfer(&self, amount: u64) {
        let [first, second] = self.balances();
        self.store([(OLD[0], first), (OLD[1], second)], self.fences_record);
        self.store([(RECORDED, 1)], true);
        self.store([(BALANCES[0], first - amount), (BALANCES[1], second + amount)], true);
        self.store([(RECORDED, 0)], true);
    }

    /// Stores words and flushes them; with a fence they are durable afterwards.
    fn store<const N: usize>(&self, words: [(PoolOffset, u64); N], fenced: bool) {
        for (at, word) in words {
            self.medium.store_word(at, word);
            self.medium.flush(at, 8);
        }
        if fenced {
            self.medium.fence().expect("a medium that has not failed");
        }
    }
}

/// Two transfers of 10 from a balance of 100. The workload notes how many are answered.
struct Transfers {
    fences_record: bool,
}

impl Scenario for Transfers {
    type Event = u64;
    type Recovered = Bank<SimMedium>;

    fn medium_len(&self) -> u64 {
        4096
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        medium.store_word(BALANCES[0], 100);
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<u64>) {
        let bank = Bank::open(Arc::clone(medium), self.fences_record);
        for answered in 1..=2 {
            bank.transfer(10);
            log.note(answered);
        }
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Self::Recovered, String> {
        Ok(Bank::open(medium, self.fences_record))
    }

    /// All answered transfers are complete. At most one more transfer is, and none is half done.
    fn check(&self, bank: Self::Recovered, crash: &Crash<'_, u64>) -> Result<(), String> {
        let answered = crash.events.last().map_or(0, |last| last.event);
        let found = bank.balances();
        let right = [answered, answered + 1].map(|count| [100 - 10 * count, 10 * count]);
        right.contains(&found).then_some(()).ok_or(format!("{found:?} after {answered} transfers"))
    }

    fn labels(&self) -> Labels {
        let labels = Labels::default();
        labels.with(0..128, "balances").with(128..144, "old balances").with(192..200, "recorded")
    }
}

fn main() {
    // The same code on real memory.
    let memory = Mapped::anonymous(4096, &MediaOptions::new()).expect("there is memory");
    memory.store_word(BALANCES[0], 100);
    let bank = Bank::open(Arc::new(memory), true);
    bank.transfer(10);
    println!("in memory: {:?}", bank.balances());

    let summary = Explorer::default().explore(&Transfers { fences_record: true });
    let summary = summary.expect("a record that is durable before what it undoes");
    assert!(summary.is_exhaustive());
    println!("with all its fences: {summary}");
    let failure = Explorer::default().explore(&Transfers { fences_record: false });
    println!("without one: {}", failure.expect_err("the missing fence is found"));
}
