//! How much of an epoch a checkpoint may have to flush.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_media::Medium;
use everbyte_pool::VolumeSpec;
use everbyte_pool::format::{CHECKPOINT_LINES_AT, CHECKPOINT_LINES_DEFAULT};

use crate::{TOY, open, pool_with, reopened, set};

const LINES: u32 = 160;
/// Lines of a toy's table.
const TABLE_LINES: u64 = 64 * 64;

fn spec(checkpoint_lines: u32) -> VolumeSpec {
    let mut spec = VolumeSpec::new("v", TOY, 4096);
    // A log that is never half full here.
    (spec.lanes, spec.log_bytes) = (2, Some(2 << 20));
    spec.checkpoint_lines = checkpoint_lines;
    spec
}

#[test]
fn dirty_line_count_requests_checkpoint() {
    let (_pool, volume, table) = pool_with(&spec(LINES));
    let mut dirty = 0;
    while !volume.wants_checkpoint() {
        // Twice, and a neighbour: a line counts once.
        for at in [0, 0, 8] {
            set(&volume, table.plus(dirty * 64 + at), dirty + 1);
        }
        dirty += 1;
    }
    // The lane reports five lines at a time.
    assert_eq!(dirty, u64::from(LINES));
    assert_eq!(volume.dirty_lines(), u64::from(LINES));
    volume.flush().unwrap();
    assert_eq!((volume.dirty_lines(), volume.wants_checkpoint()), (0, false));
}

#[test]
fn background_checkpoint_begins_at_count() {
    checkpoint_at_the_count(Duration::from_secs(3600));
}

#[test]
fn endless_interval_keeps_count_checkpoints() {
    checkpoint_at_the_count(Duration::MAX);
}

/// Expects a timer of this interval to make a checkpoint requested by the count.
fn checkpoint_at_the_count(interval: Duration) {
    let (pool, volume, table) = pool_with(&spec(LINES));
    let pool = Arc::new(pool);
    let timer = pool.start_timer(interval).unwrap();
    for line in 0..u64::from(LINES) + 10 {
        set(&volume, table.plus(line * 64), 1);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while volume.checkpoints() == 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    drop(timer);
    assert!(volume.checkpoints() > 0, "nobody came");
}

#[test]
fn flush_work_is_bounded_by_twice_count() {
    // No thread makes checkpoints in the background, so writers must.
    let (pool, volume, table) = pool_with(&spec(LINES));
    let most = 2 * u64::from(LINES);
    for line in 0..TABLE_LINES {
        set(&volume, table.plus(line * 64), 1);
        assert!(volume.dirty_lines() <= most);
    }
    assert_eq!(volume.checkpoints(), (TABLE_LINES - 1) / most);
    let before = pool.medium().counters();
    volume.flush().unwrap();
    let flush = pool.medium().counters().since(&before);
    assert!(
        flush.lines_flushed <= most + 2,
        "{} lines, and the checkpoint records",
        flush.lines_flushed
    );
}

#[test]
fn unreadable_checkpoint_count_is_default() {
    let count_of = |pool: &everbyte_pool::Pool<_>| pool.volume("v").unwrap().checkpoint_lines();
    let (pool, volume, _) = pool_with(&spec(LINES));
    assert_eq!(count_of(&reopened(&pool)), u64::from(LINES));
    let at = volume.root_at().plus(CHECKPOINT_LINES_AT - everbyte_pool::format::ROOT_AT);
    pool.medium().store_word(at, 12345);
    assert_eq!(count_of(&reopened(&pool)), CHECKPOINT_LINES_DEFAULT);
    let (pool, volume, _) = pool_with(&spec(0));
    assert_eq!(volume.checkpoint_lines(), CHECKPOINT_LINES_DEFAULT);
    drop(volume);
    assert_eq!(count_of(&open(&Arc::clone(pool.medium()))), CHECKPOINT_LINES_DEFAULT);
}
