//! Exact costs of requests.

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta};
use everbyte_device::{BlockDevice, Fua, Hole, WriteRequest};
use everbyte_media::{Counters, Mapped, Medium};

use crate::{new_pool, new_volume, pattern};

const ON: BlockOptions = BlockOptions {
    delta: Delta::On,
    checksum: Checksum::None,
    threshold_percent: 50,
    log_bytes: None,
    lanes: 8,
    checkpoint_lines: 0,
};

fn cost(volume: &BlockVolume<Mapped>, action: impl FnOnce()) -> (Counters, u64) {
    let before = (volume.pool().medium().counters(), volume.volume().log_bytes());
    action();
    let after = (volume.pool().medium().counters(), volume.volume().log_bytes());
    (after.0.since(&before.0), after.1 - before.1)
}

#[test]
fn first_write_costs_one_fence() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    let data = pattern(1, 4096);
    let (first, log) = cost(&volume, || volume.write(0, &data, Fua::No).unwrap());
    assert_eq!(first.fences, 1, "even with the nodes that lead to it");
    assert_eq!(log, 64, "one record, of the root word");
    let (second, log) = cost(&volume, || volume.write(4096, &data, Fua::No).unwrap());
    assert_eq!(second.fences, 1);
    assert_eq!(log, 0, "the leaf is fresh, so its words need no record");
    assert_eq!(second.bytes_stored, 4096 + 8, "the block and its entry");
    assert_eq!(second.lines_flushed, 0, "streamed, or left to the checkpoint");
}

#[test]
fn first_write_in_old_leaf_logs_one_word() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, 4096), Fua::No).unwrap();
    volume.flush().unwrap();
    let (cost, log) = cost(&volume, || volume.write(0, &pattern(2, 4096), Fua::No).unwrap());
    assert_eq!(cost.fences, 1);
    assert_eq!(log, 64);
    assert_eq!(cost.bytes_stored, 4096 + 64 + 8, "the new block, the record, the entry");
    assert_eq!(cost.lines_flushed, 0, "block and record are streamed");
}

#[test]
fn rewrite_of_logged_lines_costs_no_fence() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    let mut data = pattern(1, 4096);
    volume.write(0, &data, Fua::No).unwrap();
    volume.flush().unwrap();
    data[640..704].copy_from_slice(&pattern(2, 64));
    let (first, log) = cost(&volume, || volume.write(0, &data, Fua::No).unwrap());
    assert_eq!((first.fences, log), (1, 128), "one line and its header are logged");
    assert_eq!(first.bytes_stored, 128 + 64);
    data[640..704].copy_from_slice(&pattern(3, 64));
    let (again, log) = cost(&volume, || volume.write(0, &data, Fua::No).unwrap());
    assert_eq!((again.fences, log), (0, 0));
    assert_eq!(again.bytes_stored, 64, "the changed line and nothing else");
    assert_eq!(again.lines_flushed, 0);
}

#[test]
fn rewriting_the_same_bytes_stores_nothing() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    let data = pattern(1, 3 * 4096 + 100);
    volume.write(50, &data, Fua::No).unwrap();
    for _ in 0..2 {
        let (cost, log) = cost(&volume, || volume.write(50, &data, Fua::No).unwrap());
        assert_eq!((cost.bytes_stored, cost.fences, cost.lines_flushed, log), (0, 0, 0, 0));
        volume.flush().unwrap();
    }
    let (idle, _) = cost(&volume, || volume.flush().unwrap());
    assert_eq!((idle.bytes_stored, idle.fences), (0, 0), "nothing to make durable");
}

#[test]
fn sixteen_first_writes_share_one_fence() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    let data: Vec<Vec<u8>> = (0..16).map(|i| pattern(i, 4096)).collect();
    let requests: Vec<WriteRequest<'_>> = data
        .iter()
        .zip(0u64..)
        .map(|(data, i)| WriteRequest { offset: i * 3 * 4096, data, fua: Fua::No })
        .collect();
    let (cost, _) = cost(&volume, || {
        assert!(volume.write_batch(&requests).iter().all(Result::is_ok));
    });
    assert_eq!(cost.fences, 1);
    for request in &requests {
        let mut back = vec![0; 4096];
        volume.read(request.offset, &mut back).unwrap();
        assert_eq!(back, request.data);
    }
}

#[test]
fn rewritten_fresh_blocks_cost_one_fence() {
    let options = BlockOptions { delta: Delta::Off, ..ON };
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &options);
    let data = [1, 2].map(|seed| pattern(seed, 4096));
    let write = |order: [usize; 2]| {
        let request = |(place, which): (u64, usize)| WriteRequest {
            offset: place * 8 * 4096,
            data: &data[which],
            fua: Fua::No,
        };
        let requests: Vec<WriteRequest<'_>> = (0..).zip(order).map(request).collect();
        cost(&volume, || assert!(volume.write_batch(&requests).iter().all(Result::is_ok)))
    };
    write([0, 1]);
    volume.flush().unwrap();
    let (first, log) = write([1, 0]);
    assert_eq!((first.fences, log), (1, 128), "two words in a record");
    assert_eq!(first.bytes_stored, 2 * (4096 + 8) + 128, "new blocks, entries, the record");
    let (again, log) = write([0, 1]);
    assert_eq!((again.fences, again.lines_flushed, log), (1, 0, 0));
    assert_eq!(again.bytes_stored, 2 * 4096, "over the new blocks, whose entries stay");
}

/// The direct path takes these writes, since they are not compared.
#[test]
fn direct_write_costs_one_fence_one_record() {
    let options = BlockOptions { delta: Delta::Off, ..ON };
    for blocks in [2, 4, 25, 256, 512_u64] {
        let volume = new_volume(&new_pool(4096), "v", 8 << 20, &options);
        let len = usize::try_from(blocks * 4096).unwrap();
        volume.write(0, &pattern(1, 2 << 20), Fua::No).unwrap();
        volume.flush().unwrap();
        let (first, log) = cost(&volume, || volume.write(0, &pattern(2, len), Fua::No).unwrap());
        let record = 64 + ((blocks - 1) * 16).next_multiple_of(64);
        assert_eq!((first.fences, first.lines_flushed, log), (1, 0, record), "{blocks} blocks");
        assert_eq!(first.bytes_stored, blocks * (4096 + 8) + record);
        assert_eq!(first.lines_stored, blocks * (64 + 1) + record / 64);
        let (again, log) = cost(&volume, || volume.write(0, &pattern(3, len), Fua::No).unwrap());
        assert_eq!((again.fences, again.lines_flushed, log), (1, 0, 0), "over fresh blocks");
        assert_eq!((again.bytes_stored, again.lines_stored), (blocks * 4096, blocks * 64));
    }
}

/// Also in a batch, where each of these requests has its own two fences.
#[test]
fn fua_blocks_write_costs_two_fences_one_record() {
    let options = BlockOptions { delta: Delta::Off, ..ON };
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &options);
    volume.write(0, &pattern(1, 2 << 20), Fua::No).unwrap();
    volume.flush().unwrap();
    for blocks in [2, 4, 25, 256, 512_u64] {
        let data = pattern(blocks, usize::try_from(blocks * 4096).unwrap());
        let record = 64 + ((blocks - 1) * 16).next_multiple_of(64);
        let checkpoints = volume.volume().checkpoints();
        let (short, log) = cost(&volume, || volume.write(0, &data, Fua::Yes).unwrap());
        assert_eq!((short.fences, short.lines_flushed, log), (2, 0, record), "{blocks} blocks");
        assert_eq!(short.bytes_stored, blocks * (4096 + 8) + record);
        assert_eq!(short.lines_stored, blocks * (64 + 1) + record / 64);
        assert_eq!(volume.volume().checkpoints(), checkpoints);
        let mut back = vec![0; data.len()];
        volume.read(0, &mut back).unwrap();
        assert!(back == data);
    }
    let data = pattern(3, 8192);
    let request = |at: u64| WriteRequest { offset: at * 4096, data: &data, fua: Fua::Yes };
    let (both, log) = cost(&volume, || {
        assert!(volume.write_batch(&[request(0), request(9)]).iter().all(Result::is_ok));
    });
    assert_eq!((both.fences, both.lines_flushed, log), (4, 0, 2 * 128));
}

#[test]
fn threshold_chooses_log_or_replacement() {
    for (percent, lines, replaced) in
        [(50, 31, false), (50, 32, true), (0, 1, true), (101, 64, false), (25, 16, true)]
    {
        let options = BlockOptions { threshold_percent: percent, ..ON };
        let volume = new_volume(&new_pool(4096), "v", 8 << 20, &options);
        volume.write(0, &pattern(1, 4096), Fua::No).unwrap();
        volume.flush().unwrap();
        let (cost, log) =
            cost(&volume, || volume.write(0, &pattern(2, lines * 64), Fua::No).unwrap());
        let expected_log = if replaced { 64 } else { 64 * (1 + lines as u64) };
        assert_eq!(log, expected_log, "{lines} lines at {percent}%");
        let data_bytes = if replaced { 4096 + 8 } else { 64 * lines as u64 };
        assert_eq!(cost.bytes_stored, expected_log + data_bytes, "{lines} lines at {percent}%");
    }
}

#[test]
fn logged_lines_count_towards_threshold() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, 4096), Fua::No).unwrap();
    volume.flush().unwrap();
    volume.write(0, &pattern(2, 20 * 64), Fua::No).unwrap();
    let (_, log) = cost(&volume, || {
        volume.write(20 * 64, &pattern(3, 12 * 64), Fua::No).unwrap();
    });
    assert_eq!(log, 64, "20 + 12 lines reach the threshold: a pointer is logged");
}

#[test]
fn rewritten_blocks_are_replaced_in_next_epoch() {
    const BLOCKS: u64 = 64;
    const FILE: usize = 64 * 4096;
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, FILE), Fua::No).unwrap();
    volume.flush().unwrap();
    // A kibibyte of each block, and then the next one, as in writes of a file in small records.
    let write_part = |block: u64, part: u64, seed: u64| {
        volume.write(block * 4096 + part * 1024, &pattern(seed + block, 1024), Fua::No).unwrap();
    };
    for part in 0..4 {
        (0..BLOCKS).for_each(|block| write_part(block, part, 1000 * (part + 1)));
    }
    volume.flush().unwrap();
    let mut replaced = 0;
    for block in 0..BLOCKS {
        let (first, log) = cost(&volume, || write_part(block, 0, 7000));
        assert_eq!(first.fences, 1);
        if log == 64 {
            replaced += 1;
            assert_eq!(first.bytes_stored, 4096 + 64 + 8, "block {block}: block, record, entry");
            let (rest, log) = cost(&volume, || write_part(block, 1, 8000));
            assert_eq!((rest.fences, rest.bytes_stored, log), (0, 1024, 0), "block {block}");
        } else {
            assert_eq!(log, 64 + 1024, "block {block}: a sample is logged");
        }
    }
    assert_eq!(replaced, BLOCKS * 15 / 16);
    // A later epoch leaves blocks alone; that its samples stayed logged is learned from it.
    volume.write(BLOCKS * 4096, &pattern(2, 16 * FILE), Fua::No).unwrap();
    volume.flush().unwrap();
    (BLOCKS..17 * BLOCKS).for_each(|block| write_part(block, 3, 500));
    volume.flush().unwrap();
    let (_, log) = cost(&volume, || write_part(5, 2, 9000));
    assert_eq!(log, 64 + 1024);
    let mut back = vec![0; 1024];
    volume.read(5 * 4096 + 1024, &mut back).unwrap();
    assert_eq!(back, pattern(8005, 1024));
}

#[test]
fn fua_block_write_costs_two_fences_no_record() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, 8192), Fua::No).unwrap();
    volume.flush().unwrap();
    let (short, log) = cost(&volume, || volume.write(0, &pattern(2, 4096), Fua::Yes).unwrap());
    assert_eq!((short.fences, log), (2, 0));
    assert_eq!(short.bytes_stored, 4096 + 8);
    assert_eq!(short.lines_flushed, 1);
}

#[test]
fn fua_writes_in_batch_share_two_fences() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, 16 * 4096), Fua::No).unwrap();
    volume.flush().unwrap();
    let data = pattern(2, 4096);
    let requests: Vec<WriteRequest<'_>> = (0..16)
        .map(|i| WriteRequest {
            offset: i * 4096,
            data: if i < 10 { &data } else { &data[..512] },
            fua: Fua::Yes,
        })
        .collect();
    let (cost, log) = cost(&volume, || {
        assert!(volume.write_batch(&requests).iter().all(Result::is_ok));
    });
    assert_eq!((cost.fences, log), (2, 6 * (64 + 512)));
    assert_eq!(cost.bytes_stored, 10 * (4096 + 8) + 6 * (64 + 512 + 512));
    assert_eq!(cost.lines_flushed, 10, "the entries");
    for request in &requests {
        let mut back = vec![0; request.data.len()];
        volume.read(request.offset, &mut back).unwrap();
        assert_eq!(back, request.data);
    }
}

#[test]
fn fua_line_write_costs_one_fence_one_record() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, 8192), Fua::No).unwrap();
    volume.flush().unwrap();
    for round in 2..4 {
        let data = pattern(round, 512);
        let (short, log) = cost(&volume, || volume.write(0, &data, Fua::Yes).unwrap());
        assert_eq!((short.fences, log), (1, 64 + 512));
        assert_eq!(short.bytes_stored, 64 + 512 + 512);
        assert_eq!(short.lines_flushed, 0);
    }
}

#[test]
fn whole_leaf_trim_changes_one_word() {
    let volume = new_volume(&new_pool(4096), "v", 8 << 20, &ON);
    volume.write(0, &pattern(1, 4 << 20), Fua::No).unwrap();
    volume.flush().unwrap();
    let (unlinked, log) = cost(&volume, || volume.discard(0, 2 << 20, Fua::No).unwrap());
    assert_eq!((unlinked.fences, log), (1, 64));
    assert_eq!(unlinked.bytes_stored, 64 + 8);
    let (_, log) = cost(&volume, || {
        volume.write_zeroes(2 << 20, 2 << 20, Hole::Forbidden, true, Fua::No).unwrap();
    });
    assert_eq!(log, 64 + 511 * 16 + 16, "512 words in one record, rounded up to lines");
}
