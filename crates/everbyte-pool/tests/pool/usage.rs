//! Blocks in use by volumes, counted without a lookup in their maps.

use everbyte_media::{Mapped, Medium};
use everbyte_pool::Pool;
use everbyte_pool::format::{ROOT_AT, USED_AT, USED_EPOCH_AT, encode_word};

use crate::{TABLE_BLOCKS, VISITS, pool_with_volume, reopened, set};

/// Walks made by `action`.
fn walks<T>(action: impl FnOnce() -> T) -> (T, u64) {
    let before = VISITS.get();
    let done = action();
    (done, VISITS.get() - before)
}

fn used(pool: &Pool<Mapped>) -> Option<u64> {
    pool.volume_info(&pool.volume("v").unwrap()).used_bytes.map(|bytes| bytes / 4096)
}

#[test]
fn used_space_is_walked_once_at_most() {
    let (pool, volume, table) = pool_with_volume(2);
    assert_eq!(walks(|| used(&pool)), (Some(TABLE_BLOCKS), 0), "a new volume");
    set(&volume, table, 1);
    let mut writer = volume.join().unwrap();
    let block = writer.alloc().unwrap();
    drop(writer);
    assert_eq!(
        walks(|| used(&pool)),
        (Some(TABLE_BLOCKS + 1), 0),
        "what it took in advance is not"
    );
    let mut writer = volume.join().unwrap();
    writer.commit().unwrap().defer_free(block);
    drop(writer);
    assert_eq!(walks(|| used(&pool)), (Some(TABLE_BLOCKS), 0), "and what it gave up");
    volume.flush().unwrap();
    assert_eq!(walks(|| used(&pool)), (Some(TABLE_BLOCKS), 0));
    assert_eq!(pool.check().unwrap().remarks, Vec::<String>::new());

    let (crashed, walked) = walks(|| reopened(&pool));
    assert_eq!((walked, walks(|| used(&crashed))), (1, (Some(TABLE_BLOCKS), 0)), "a crash");
    pool.close().unwrap();
    let (clean, walked) = walks(|| reopened(&pool));
    assert_eq!((walked, walks(|| used(&clean))), (0, (Some(TABLE_BLOCKS), 0)), "a clean end");
}

#[test]
fn missing_used_count_is_walked() {
    let (pool, volume, _) = pool_with_volume(1);
    pool.close().unwrap();
    let header = volume.root_at().0 - ROOT_AT;
    let at = |offset| everbyte_media::PoolOffset(header + offset);
    // As pools of earlier versions have it; of another epoch; with wrong check bits.
    for (offset, word) in
        [(USED_AT, 0), (USED_EPOCH_AT, encode_word(100)), (USED_EPOCH_AT, 7), (USED_AT, 7)]
    {
        let right = pool.medium().load_word(at(offset));
        pool.medium().store_word(at(offset), word);
        let again = reopened(&pool);
        assert_eq!(walks(|| used(&again)), (Some(TABLE_BLOCKS), 1), "{word} at {offset}");
        // A check counts the blocks, and the next opening knows the count.
        assert_eq!(again.check().unwrap().remarks, Vec::<String>::new());
        assert_eq!(walks(|| used(&again)), (Some(TABLE_BLOCKS), 0));
        pool.medium().store_word(at(offset), right);
    }
    // A count that lies is put right by a check.
    pool.medium().store_word(at(USED_AT), encode_word(5));
    let again = reopened(&pool);
    assert_eq!(used(&again), Some(4));
    let remarks = again.check().unwrap().remarks;
    assert!(remarks[0].contains("4 blocks were counted as used, and it uses 64"), "{remarks:?}");
    assert_eq!(walks(|| used(&again)), (Some(TABLE_BLOCKS), 0));
}
