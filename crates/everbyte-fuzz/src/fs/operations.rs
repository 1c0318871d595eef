//! Operations on a file system and on a plain model of it, with crashes and reopenings.
//!
//! Oracle. Every answer is the model's, error number for error number. A crash loses any
//! unflushed or unfenced lines. After it the tree is one of the model's since the last sync, or
//! since the last change of a file with its own sync. `check` finds nothing, and the story
//! continues from this tree.

use std::sync::Arc;

use arbitrary::Arbitrary;
use everbyte_crash::{Plan, SimMedium};
use everbyte_fs::{FsOptions, IndexKind};
use everbyte_testkit::files::model::Model;
use everbyte_testkit::files::operations::{Op, Subject};
use everbyte_testkit::files::real::Real;

use super::story::Act;

/// Bytes of the pool: room for all that a story can write.
const POOL_BYTES: u64 = 6 << 20;
/// Steps beyond this many are ignored.
const STEPS_MAX: usize = 24;

#[derive(Debug, Arbitrary)]
enum Step {
    Act(Act),
    Crash { seed: u64 },
    Reopen,
}

#[derive(Debug, Arbitrary)]
struct Story {
    index: u8,
    steps: Vec<Step>,
}

/// Makes the operations that `bytes` encode.
///
/// # Panics
/// If a promise is broken.
pub fn fs_operations(bytes: &[u8]) {
    let Some(story) = crate::story::<Story>(bytes) else { return };
    // A window takes 2 MiB.
    let kinds =
        IndexKind::ALL.map(|kind| if kind == IndexKind::Window { IndexKind::Direct } else { kind });
    let index = kinds[usize::from(story.index) % kinds.len()];
    let options = FsOptions {
        index,
        index_node_bytes: index.is_tree().then_some(64),
        inodes_max: Some(300),
        lanes: 1,
        log_bytes: Some(256 << 10),
        ..FsOptions::default()
    };
    let mut medium = Arc::new(SimMedium::new(POOL_BYTES));
    let mut life = Life { real: Real::make(&medium, &options), allowed: vec![Model::new()] };
    for step in story.steps.iter().take(STEPS_MAX) {
        match step {
            Step::Act(act) => life.act(&act.op()),
            Step::Crash { seed } => {
                medium = Arc::new(medium.crash_state().boot(Plan::Seeded(*seed)));
                life = life.after_crash(&medium);
            }
            Step::Reopen => life = life.reopened(&medium),
        }
    }
    life.expect_sound();
}

/// An open file system.
struct Life {
    real: Real<SimMedium>,
    /// Models allowed after a crash; the last one is the present.
    allowed: Vec<Model>,
}

impl Life {
    fn act(&mut self, op: &Op) {
        let mut model = self.allowed.last().expect("there is always one").clone();
        let (found, expected) = (self.real.make(op), model.make(op));
        assert_eq!(found, expected, "{op:?}");
        match op {
            // Nothing older may come back after a sync.
            Op::Sync => self.allowed = vec![model],
            _ => self.allowed.push(model),
        }
        // A sync of one file rules out trees with its older bytes, and no others.
        if let (Op::SyncFile(path), Ok(())) = (op, found) {
            Model::note_synced(&mut self.allowed, path);
        }
    }

    fn expect_sound(&self) {
        let report = self.real.fs.pool().check().expect("a sound pool can be checked");
        assert!(report.is_clean(), "{:?}", report.problems);
        let model = self.allowed.last().expect("there is always one");
        assert_eq!(self.real.tree(), model.tree());
    }

    fn after_crash(self, medium: &Arc<SimMedium>) -> Self {
        let real = Real::open(medium).expect("what a crash leaves opens");
        let tree = real.tree();
        let left = self.allowed.into_iter().rev().find(|model| model.tree() == tree);
        let left = left.unwrap_or_else(|| panic!("a crash left what never was: {tree:?}"));
        // Recovery has made this tree durable, so no earlier one may follow.
        let life = Self { real, allowed: vec![left] };
        life.expect_sound();
        life
    }

    fn reopened(self, medium: &Arc<SimMedium>) -> Self {
        let Self { real, mut allowed } = self;
        let pool = Arc::clone(real.fs.pool());
        drop(real);
        pool.close().expect("a sound pool closes");
        drop(pool);
        let real = Real::open(medium).expect("a sound pool opens");
        // A close makes everything durable: only the present tree may be found.
        let life = Self { real, allowed: allowed.split_off(allowed.len() - 1) };
        life.expect_sound();
        life
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use everbyte_fs::plant::Bug;
    use everbyte_plant::plant;

    use super::*;

    /// Makes two files, changes one, syncs that one or the other alone, and crashes.
    fn crash_after_sync_of(path: &'static str, seed: u64) {
        let medium = Arc::new(SimMedium::new(POOL_BYTES));
        let options = FsOptions { lanes: 1, log_bytes: Some(256 << 10), ..FsOptions::default() };
        let real = Real::make(&medium, &options);
        let mut life = Life { real, allowed: vec![Model::new()] };
        for op in [
            Op::Create(vec!["changed"], 0o644),
            Op::Create(vec!["other"], 0o644),
            Op::Sync,
            Op::Write { path: vec!["changed"], offset: 4000, len: 200, byte: 1 },
            Op::SyncFile(vec![path]),
            Op::Write { path: vec!["other"], offset: 0, len: 9, byte: 1 },
        ] {
            life.act(&op);
        }
        life.after_crash(&Arc::new(medium.crash_state().boot(Plan::Seeded(seed))));
    }

    #[test]
    fn fsynced_file_survives_a_crash() {
        let holds =
            |path| (1..=8).all(|seed| catch_unwind(|| crash_after_sync_of(path, seed)).is_ok());
        assert!(holds("changed") && holds("other"));
        let planted = plant(Bug::FileSyncSkipped);
        let found = (holds("changed"), holds("other"));
        drop(planted);
        assert_eq!(found, (false, true), "only what was changed was to be made durable");
    }
}
