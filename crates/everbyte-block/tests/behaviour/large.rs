//! Large requests are one change: a volatile one is undone as a whole, for any size of its records.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Delta};
use everbyte_device::{AtomicWrites, BlockDevice, Fua, WriteRequest};
use everbyte_media::Mapped;

use crate::{new_pool, new_volume, open_pool, pattern};

/// The largest request of an NBD client.
const LARGEST: usize = 32 << 20;

/// `data` with one byte changed in each of the first 20 lines of every block.
fn with_twenty_lines_changed(data: &[u8]) -> Vec<u8> {
    let mut changed = data.to_vec();
    for block in changed.chunks_exact_mut(4096) {
        block.iter_mut().step_by(64).take(20).for_each(|byte| *byte ^= 0x5a);
    }
    changed
}

/// Writes `new` over `old` at `offset`, then opens the pool without a close: the contents must be all of one
/// of them. Returns true if they are the new ones.
fn whole_after_the_end(volume: BlockVolume<Mapped>, offset: u64, old: &[u8], new: &[u8]) -> bool {
    volume.write(offset, new, Fua::No).unwrap();
    let mut back = vec![0; new.len()];
    volume.read(offset, &mut back).unwrap();
    assert!(back == new, "it does not read back");
    let medium = Arc::clone(volume.pool().medium());
    drop(volume);
    let pool = open_pool(medium);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.read(offset, &mut back).unwrap();
    assert!(back == old || back == new, "the request is half there");
    assert!(pool.check().unwrap().is_clean());
    back == new
}

#[test]
fn largest_write_is_atomic_with_default_log() {
    for (what, offset, lanes) in [("aligned", 0, 8), ("not aligned", 100, 8), ("32 lanes", 0, 32)] {
        let pool = new_pool(80 << 8);
        let options = BlockOptions { lanes, ..BlockOptions::default() };
        let volume = new_volume(&pool, "v", 34 << 20, &options);
        let old = pattern(1, LARGEST);
        volume.write(offset, &old, Fua::No).unwrap();
        volume.flush().unwrap();
        let checkpoints = volume.volume().checkpoints();
        let shared = Arc::clone(volume.volume());
        assert!(!whole_after_the_end(volume, offset, &old, &pattern(2, LARGEST)), "{what}");
        assert_eq!(shared.checkpoints(), checkpoints, "{what}: nothing had to be made durable");
    }
}

#[test]
fn write_over_log_size_replaces_blocks() {
    for delta in [Delta::On, Delta::Auto] {
        for threshold_percent in [50, 101] {
            let pool = new_pool(2048);
            let options = BlockOptions { delta, threshold_percent, ..BlockOptions::default() };
            let volume = new_volume(&pool, "v", 2 << 20, &options);
            let old = pattern(1, 1 << 20);
            volume.write(4096, &old, Fua::No).unwrap();
            volume.flush().unwrap();
            let new = with_twenty_lines_changed(&old);
            assert!(!whole_after_the_end(volume, 4096, &old, &new));
        }
    }
}

#[test]
fn atomic_writes_over_log_size_replace_blocks() {
    let pool = new_pool(2048);
    let options = BlockOptions { delta: Delta::On, ..BlockOptions::default() };
    let volume = new_volume(&pool, "v", 2 << 20, &options);
    let old = pattern(1, 1 << 20);
    volume.write(0, &old, Fua::Yes).unwrap();
    let new = with_twenty_lines_changed(&old);
    let (first, second) = new.split_at(new.len() / 2);
    let request = |offset: usize, data| WriteRequest { offset: offset as u64, data, fua: Fua::Yes };
    volume.write_atomic(&[request(0, first), request(first.len(), second)]).unwrap();
    let mut back = vec![0; new.len()];
    volume.read(0, &mut back).unwrap();
    assert!(back == new);
    let group = volume.begin_group().unwrap();
    group.write(0, &old).unwrap();
    group.roll_back().unwrap();
    volume.read(0, &mut back).unwrap();
    assert!(back == new);
    assert!(pool.check().unwrap().is_clean());
}
