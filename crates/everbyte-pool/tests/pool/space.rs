//! Space: the owners of blocks and runs, the times of their frees, and the errors of a full pool.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_media::{BLOCK_U64, BlockNo, Mapped, MediaOptions, Medium};
use everbyte_pool::{BlockRun, NewRoot, PlanConstraints, Pool, PoolError, VolumeSpec};

use crate::batches::new_shelf;
use crate::shelf::{RUN_BLOCKS, SHELF, Shelf, ShelfError, open_pool};

const RUN: u64 = RUN_BLOCKS * BLOCK_U64;
/// Blocks of a pool needed by a shelf on two lanes: superblocks, headers, log, table.
const FIXED: u64 = 2 + 2 + 16 + 1;

fn free_blocks(pool: &Pool<Mapped>) -> u64 {
    pool.info().free_bytes / BLOCK_U64
}

/// Puts things of `bytes` bytes until there is no room. Returns their number.
fn fill(shelf: &Shelf<Mapped>, bytes: u64) -> u64 {
    for place in 0.. {
        match shelf.put(place, bytes, 5) {
            Ok(()) => {}
            Err(ShelfError::NoSpace) => return place,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn blocks_use_whole_pool() {
    let free = 7;
    for bytes in [64, 2048] {
        let shelf = new_shelf(FIXED + free);
        assert_eq!(free_blocks(&shelf.pool), free);
        assert_eq!(fill(&shelf, bytes), free, "{bytes} bytes");
        assert_eq!((free_blocks(&shelf.pool), shelf.pool.info().low_on_space), (0, true));
        assert_eq!(shelf.contents().unwrap().len() as u64, free);
        // Another shelf gets the freed blocks of one, and no more.
        shelf.remove(3).unwrap();
        shelf.put(500, bytes, 6).unwrap();
        assert!(matches!(shelf.put(501, bytes, 6), Err(ShelfError::NoSpace)));
        assert!(matches!(shelf.pool.take_run("a test", 1), Err(PoolError::NoSpace { .. })));
        assert!(shelf.pool.check().unwrap().is_clean());
    }
}

/// A pool of 8 MiB with a shelf on one lane.
fn large_shelf() -> Shelf<Mapped> {
    let medium = Mapped::anonymous(2048 * BLOCK_U64, &MediaOptions::new()).unwrap();
    Shelf::make(&Arc::new(medium), 1)
}

#[test]
fn batch_allocates_aligned_runs() {
    let shelf = large_shelf();
    let free = free_blocks(&shelf.pool);
    let mut taken: Vec<BlockRun> = Vec::new();
    let mut batch = shelf.volume().begin_batch().unwrap();
    for log in 0..10 {
        let run = batch.alloc_run(1 << log).unwrap();
        assert_eq!((run.len, run.start.0 % run.len), (1 << log, 0));
        assert!(run.blocks().all(|block| !taken.iter().any(|other| other.contains(block))));
        taken.push(run);
    }
    for wrong in [0, 3, 1023, 1024, u64::MAX] {
        assert_eq!(batch.alloc_run(wrong), None, "{wrong} blocks");
    }
    assert_eq!(shelf.pool.allocator().free_blocks(), free - 1023);
    drop(batch);
    shelf.volume().flush().unwrap();
    assert_eq!(free_blocks(&shelf.pool), free, "a batch that is given up has taken nothing");
    assert!(shelf.pool.check().unwrap().is_clean());
}

#[test]
fn run_is_found_anywhere() {
    let shelf = large_shelf();
    for len in [1, 4, 64] {
        let mut batch = shelf.volume().begin_batch().unwrap();
        // Every region has lost something, so none is whole.
        let runs: Vec<_> = std::iter::from_fn(|| batch.alloc_run(len)).collect();
        let free = shelf.pool.allocator().free_blocks();
        assert!(free < 2 * len, "{free} blocks are left, but no run of {len}");
        assert!(runs.iter().all(|run| run.start.0 % len == 0));
        drop(batch);
        shelf.volume().flush().unwrap();
    }
}

/// Undo could bring back its name, so it keeps its bytes until the epoch is durable.
#[test]
fn freed_blocks_wait_for_durable_epoch() {
    for bytes in [64, 2048, RUN] {
        let shelf = new_shelf(FIXED + 7);
        let things = fill(&shelf, bytes);
        shelf.volume().flush().unwrap();
        let given_up: BTreeSet<u64> = (0..things).map(|place| shelf.thing_at(place).0).collect();
        shelf
            .change(|batch| {
                (0..things).for_each(|place| shelf.plan_remove(batch, place));
                Ok(())
            })
            .unwrap();
        let put_at_once = |place| {
            let put: Result<_, ShelfError> =
                shelf.volume().attempt(PlanConstraints::default(), |batch, _| {
                    shelf.plan_put(batch, place, bytes, 6)
                });
            put.map(|_| shelf.thing_at(place).0)
        };
        assert!(matches!(put_at_once(0), Err(ShelfError::NoSpace)), "{bytes} bytes");
        let guard = shelf.volume().lock_checkpoint();
        let sealed = shelf.volume().begin_checkpoint(&guard).unwrap();
        assert!(matches!(put_at_once(0), Err(ShelfError::NoSpace)), "it is sealed, no more");
        sealed.finish().unwrap();
        drop(guard);
        assert!(given_up.contains(&put_at_once(0).unwrap()));
    }
}

#[test]
fn unmarked_fresh_block_is_free_at_once() {
    let shelf = new_shelf(FIXED + 40);
    let volume = shelf.volume();
    let mut writer = volume.join().unwrap();
    let (plain, marked) = (writer.alloc().unwrap(), writer.alloc().unwrap());
    assert!(writer.is_fresh(plain) && writer.is_fresh(marked));
    let mut committed = writer.commit().unwrap();
    committed.store(marked.offset(), &[1; 8]);
    committed.defer_free(plain);
    committed.defer_free(marked);
    assert_eq!((writer.alloc(), writer.deferred_blocks()), (Some(plain), 1));
    let others: Vec<BlockNo> = std::iter::from_fn(|| writer.alloc()).collect();
    assert!(!others.contains(&marked), "the checkpoint has a line of it to flush");
    assert_eq!(others.len(), 38);
    for block in others.into_iter().chain([plain]) {
        writer.cancel_alloc(block);
    }
    drop(writer);
    volume.flush().unwrap();
    assert!(shelf.pool.check().unwrap().is_clean());
    assert_eq!(free_blocks(&shelf.pool), 40);
}

#[test]
fn reachable_fresh_block_is_logged() {
    let shelf = new_shelf(FIXED + 40);
    let mut writer = shelf.volume().join().unwrap();
    let block = writer.alloc().unwrap();
    assert!(writer.is_fresh(block) && writer.has_undo_record(block.offset()));
    assert!(!shelf.volume().is_settled(block));
    writer.commit().unwrap().mark_reachable(block);
    assert!(!writer.is_fresh(block) && !writer.has_undo_record(block.offset()));
    assert!(shelf.volume().is_settled(block));
    writer.cancel_alloc(block);
}

#[test]
fn nodes_are_allocated_together() {
    let shelf = large_shelf();
    let mut writer = shelf.volume().join().unwrap();
    let data: Vec<u64> = (0..3).map(|_| writer.alloc().unwrap().0).collect();
    let nodes: Vec<u64> = (0..3).map(|_| writer.alloc_node().unwrap().0).collect();
    let more: Vec<u64> = (0..3).map(|_| writer.alloc().unwrap().0).collect();
    let is_row = |blocks: &[u64]| blocks.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(is_row(&data) && is_row(&[&data[..], &more].concat()), "{data:?} {more:?}");
    // 2048 blocks allow for two nodes in advance.
    assert!(is_row(&nodes[..2]) && nodes[0] != more[2] + 1, "{nodes:?}");
    for block in [data, nodes, more].concat() {
        writer.cancel_alloc(BlockNo(block));
    }
    drop(writer);
    assert!(shelf.pool.check().unwrap().is_clean());
}

#[test]
fn preallocated_blocks_move_to_other_volume() {
    let shelf = new_shelf(FIXED + 49);
    let mut spec = VolumeSpec::new("t", SHELF, 4096);
    (spec.lanes, spec.log_bytes) = (1, Some(36 * BLOCK_U64));
    // The lane of the shelf has taken 32 blocks for one.
    shelf.put(0, 64, 1).unwrap();
    assert_eq!(shelf.pool.allocator().free_blocks(), 49 - 32);
    assert_eq!(free_blocks(&shelf.pool), 48, "which count as free");
    shelf.pool.create_volume(&spec, NewRoot::Zeroes { blocks: 1 }).unwrap();
    assert_eq!(free_blocks(&shelf.pool), 48 - 37);
    assert_eq!(shelf.pool.volume_info(shelf.volume()).used_bytes, Some(2 * BLOCK_U64));
    shelf.pool.delete_volume("t").unwrap();
    assert_eq!(free_blocks(&shelf.pool), 48);
    assert!(shelf.pool.check().unwrap().is_clean());
}

#[test]
fn no_run_error_has_needed_and_free_blocks() {
    let shelf = new_shelf(FIXED + 12);
    let runs: Vec<_> = (0..12).map(|_| shelf.pool.take_run("a test", 1).unwrap()).collect();
    for run in runs.iter().step_by(2) {
        shelf.pool.return_run(*run);
    }
    let error = shelf.pool.take_run("the thing", 2).unwrap_err();
    assert!(
        matches!(error, PoolError::NoSpace { what: "the thing", needed_blocks: 2, free_blocks: 6 }),
        "{error:?}"
    );
    assert_eq!(free_blocks(&shelf.pool), 6);
    shelf.pool.return_run(runs[1]);
    assert_eq!(shelf.pool.take_run("the thing", 3).unwrap().start, runs[0].start);
}

#[test]
fn freed_poisoned_block_is_withheld() {
    let medium = Arc::new(everbyte_crash::SimMedium::new((FIXED + 8) * BLOCK_U64));
    let shelf = Shelf::make(&medium, 2);
    shelf.put(0, RUN, 1).unwrap();
    shelf.volume().flush().unwrap();
    let run = shelf.thing_at(0).block();
    medium.inject_poison(BlockNo(run.0 + 2).offset().plus(128), 1);
    medium.probe(run.offset(), RUN);
    shelf.remove(0).unwrap();
    shelf.volume().flush().unwrap();
    let free: Vec<bool> =
        (run.0..run.0 + 4).map(|block| shelf.pool.allocator().is_free(BlockNo(block))).collect();
    assert_eq!(free, [true, true, false, true]);
    let problems = shelf.pool.check().unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("nothing that any map leads to"), "{problems:?}");
    // Nor after the pool was closed and opened: the medium is the same, and knows.
    shelf.pool.close().unwrap();
    assert!(medium.check().is_ok(), "nothing was stored there");
    let pool = open_pool(&medium).unwrap();
    let taken = std::iter::from_fn(|| pool.take_run("the thing", 1).ok());
    let taken: Vec<u64> = taken.map(|run| run.start.0).collect();
    assert!(taken.contains(&(run.0 + 1)) && !taken.contains(&(run.0 + 2)), "{taken:?}");
}
