//! Batches: their view of their own changes, their rollbacks, and their costs.

use std::sync::Arc;

use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium};

use crate::shelf::{Contents, Shelf, ShelfError, open_pool};

pub(crate) fn new_shelf(blocks: u64) -> Shelf<Mapped> {
    let medium = Mapped::anonymous(blocks * BLOCK_U64, &MediaOptions::new()).unwrap();
    Shelf::make(&Arc::new(medium), 2)
}

/// Closes and opens the pool of a shelf. Returns the shelf.
pub(crate) fn reopened(shelf: Shelf<Mapped>) -> Shelf<Mapped> {
    let medium = Arc::clone(shelf.pool.medium());
    shelf.pool.close().unwrap();
    drop(shelf);
    Shelf::open(open_pool(&medium).unwrap())
}

/// Moves the thing at place 0 to place 1 and on to place 2, in one batch.
fn move_twice(shelf: &Shelf<Mapped>) -> Result<(), ShelfError> {
    shelf.change(|batch| {
        for place in 0..2 {
            let word = batch.word(shelf.word_at(place));
            batch.change_word(shelf.word_at(place), 0);
            batch.change_word(shelf.word_at(place + 1), word);
        }
        Ok(())
    })
}

#[test]
fn batch_reads_its_own_changes() {
    let shelf = new_shelf(256);
    shelf.put(0, 64, 7).unwrap();
    move_twice(&shelf).unwrap();
    assert_eq!(shelf.contents().unwrap(), Contents::from([(2, (64, 7, 7))]));
    shelf.volume().flush().unwrap();
    let shelf = reopened(shelf);
    assert_eq!(shelf.contents().unwrap(), Contents::from([(2, (64, 7, 7))]));
    assert!(shelf.pool.check().unwrap().is_clean());
}

/// Plans an empty place 5 and things at places 0 and 2, takes that back, and puts a thing at place 1.
fn change_of_mind(shelf: &Shelf<Mapped>) -> Result<(), ShelfError> {
    shelf.change(|batch| {
        let savepoint = batch.savepoint();
        batch.change_word(shelf.word_at(5), 0);
        shelf.plan_put(batch, 0, 64, 1)?;
        shelf.plan_put(batch, 2, 1 << 14, 2)?;
        batch.roll_back(savepoint);
        shelf.plan_put(batch, 1, 64, 3)
    })
}

#[test]
fn rolled_back_steps_leave_nothing() {
    let shelf = new_shelf(256);
    let free = shelf.pool.info().free_bytes;
    shelf.put(5, 64, 9).unwrap();
    change_of_mind(&shelf).unwrap();
    let contents = Contents::from([(1, (64, 3, 3)), (5, (64, 9, 9))]);
    assert_eq!(shelf.contents().unwrap(), contents);
    shelf.remove(1).unwrap();
    shelf.remove(5).unwrap();
    shelf.volume().flush().unwrap();
    assert!(shelf.pool.check().unwrap().is_clean());
    assert_eq!(shelf.pool.info().free_bytes, free);
}

/// A streamed run has no other owner before the epoch is durable.
#[test]
fn rolled_back_run_is_free_after_checkpoint() {
    let shelf = new_shelf(256);
    let mut taken_back = 0;
    shelf
        .change(|batch| {
            let savepoint = batch.savepoint();
            shelf.plan_put(batch, 0, 1 << 14, 1)?;
            taken_back = batch.word(shelf.word_at(0));
            batch.roll_back(savepoint);
            Ok(())
        })
        .unwrap();
    let free = shelf.pool.allocator().free_blocks();
    shelf.put(1, 1 << 14, 2).unwrap();
    assert_ne!(shelf.volume().medium().load_word(shelf.word_at(1)), taken_back);
    shelf.volume().flush().unwrap();
    assert_eq!(shelf.pool.allocator().free_blocks(), free, "one run for the other");
    assert!(shelf.pool.check().unwrap().is_clean());
}

#[test]
fn batch_costs_one_fence_and_word_records() {
    let shelf = new_shelf(256);
    shelf.put(0, 64, 1).unwrap();
    shelf.volume().flush().unwrap();
    let medium = Arc::clone(shelf.pool.medium());
    let (before, log) = (medium.counters(), shelf.volume().log_bytes());
    shelf
        .change(|batch| {
            shelf.plan_put(batch, 1, 256, 2)?;
            shelf.plan_put(batch, 2, 256, 3)
        })
        .unwrap();
    let cost = medium.counters().since(&before);
    assert_eq!((cost.fences, shelf.volume().log_bytes() - log), (1, 128), "two words, one record");
    assert_eq!(cost.bytes_stored, 2 * 256 + 128 + 2 * 8, "the blocks, the record, the words");
    assert_eq!(cost.lines_flushed, 0);
    let before = medium.counters();
    shelf.touch(1, 9).unwrap();
    let cost = medium.counters().since(&before);
    assert_eq!((cost.bytes_stored, cost.fences), (64, 0), "a fresh block needs no record");
    shelf.volume().flush().unwrap();
    let (before, log) = (medium.counters(), shelf.volume().log_bytes());
    shelf.touch(1, 8).unwrap();
    assert_eq!(medium.counters().since(&before).fences, 1, "an old one does");
    assert_eq!(shelf.volume().log_bytes() - log, 128);
}

#[test]
fn batch_without_space_changes_nothing() {
    let shelf = new_shelf(64);
    let mut filled = 0;
    let error = loop {
        match shelf.put(filled, 2048, 5) {
            Ok(()) => filled += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ShelfError::NoSpace), "{error:?}");
    let before = shelf.contents().unwrap();
    let two = shelf.change(|batch| {
        shelf.plan_remove(batch, 0);
        shelf.plan_put(batch, 400, 1024, 1)?;
        shelf.plan_put(batch, 401, 1 << 14, 1)
    });
    assert!(matches!(two, Err(ShelfError::NoSpace)));
    assert_eq!(shelf.contents().unwrap(), before);
    shelf.remove(0).unwrap();
    shelf.put(0, 2048, 6).unwrap();
    assert!(shelf.pool.check().unwrap().is_clean());
}
