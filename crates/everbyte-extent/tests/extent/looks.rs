//! Looking at an extent without changing it: status, pieces for a socket, scrubbing.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_extent::{ByteRange, DeviceOffset, LogicalBlock, Stored};
use everbyte_media::{BLOCK, BLOCK_U64, Medium, Piece, PoolOffset};
use everbyte_pool::format::Entry;

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// A pair on the simulated medium with four initial blocks of data per extent.
fn simulated(settings: &Settings) -> Pair<SimMedium> {
    let pair = Pair::make(&Arc::new(SimMedium::new(256 * BLOCK_U64)), settings);
    for which in BOTH {
        pair.write(which, 0, &pattern(which as u64, 4 * BLOCK)).unwrap();
    }
    pair.volume().flush().unwrap();
    pair
}

fn flip<M: Medium>(medium: &M, at: PoolOffset) {
    let mut byte = [0];
    medium.read(at, &mut byte);
    medium.store(at, &[byte[0] ^ 4]);
}

fn place_of<M: Medium>(pair: &Pair<M>, which: usize, block: u64) -> PoolOffset {
    pair.entry(which, block).unwrap().block.offset()
}

#[test]
fn missing_branch_is_one_run_of_holes() {
    let settings = Settings { sizes: [3 << 30, 9000], ..Settings::default() };
    let pair = new_pair(512, &settings);
    let run = |block: u64| {
        let at = DeviceOffset(block * BLOCK_U64 + 17);
        let (stored, next) = pair.extents[0].stored_run(at).unwrap();
        (stored == Stored::Hole, next.0)
    };
    let beyond = pair.extents[0].size_blocks();
    assert!(run(0).0 && run(0).1 >= beyond, "nothing is mapped at all");
    // In the third leaf, and below another inner node.
    let (near, far) = (2 * 512 + 7, 600 * 512 + 9);
    for block in [near, far] {
        pair.write(0, block * BLOCK_U64, &[1]).unwrap();
    }
    assert_eq!(run(0), (true, 2 * 512));
    assert_eq!(run(511), (true, 2 * 512));
    assert_eq!(run(2 * 512), (true, 2 * 512 + 1), "within a leaf, entry by entry");
    assert_eq!(run(near), (false, near + 1));
    assert_eq!(run(3 * 512), (true, 600 * 512));
    assert_eq!(run(far), (false, far + 1));
    assert!(run(601 * 512).1 >= beyond);
}

#[test]
fn pieces_join_adjacent_blocks() {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        // Two blocks side by side in the pool, a hole, zeroes that are kept, and the first again.
        pair.write(which, 0, &pattern(4, 2 * BLOCK)).unwrap();
        pair.zero(which, 3 * BLOCK_U64, BLOCK_U64, true).unwrap();
        pair.write(which, 5 * BLOCK_U64, &[7; BLOCK]).unwrap();
        let adjacent = place_of(&pair, which, 0).plus(BLOCK_U64) == place_of(&pair, which, 1);
        let range = ByteRange { offset: DeviceOffset(100), len: 5 * BLOCK };
        let pieces = pair.extents[which].pieces(range, b"head").unwrap();
        let zeroes = |piece: &&Piece<'_>| matches!(piece, Piece::Zeroes { .. });
        assert_eq!(pieces.iter().filter(zeroes).count(), 1, "a hole and zeroes are all the same");
        assert_eq!(pieces.len(), if adjacent { 4 } else { 5 });
        let mut bytes = Vec::new();
        for piece in &pieces {
            match *piece {
                Piece::Bytes(head) => bytes.extend(head),
                Piece::Zeroes { len } => bytes.resize(bytes.len() + len, 0),
                Piece::Stored { at, len } => {
                    let from = bytes.len();
                    bytes.resize(from + len, 0);
                    pair.medium().read(at, &mut bytes[from..]);
                }
            }
        }
        assert_eq!(bytes[..4], *b"head");
        assert!(bytes[4..] == pair.read(which, 100, 5 * BLOCK).unwrap());
        pair.extents[which].check_pieces(&pieces, 4, range.offset).unwrap();
    }
}

#[test]
fn corrupt_block_is_never_read() {
    let pair = simulated(&Settings { checksums: true, ..Settings::default() });
    for which in BOTH {
        let at = place_of(&pair, which, 2);
        flip(pair.medium(), at.plus(3000));
        for (start, len) in [(0, 4 * BLOCK), (2 * BLOCK_U64, 1), (3 * BLOCK_U64 - 1, 2)] {
            let error = pair.read(which, start, len).unwrap_err().to_string();
            assert!(error.contains(&format!("checksum of the block at {at}")), "{error}");
            let range = ByteRange { offset: DeviceOffset(start), len };
            let pieces = pair.extents[which].pieces(range, b"").unwrap();
            assert!(pair.extents[which].check_pieces(&pieces, 0, range.offset).is_err());
        }
        assert!(pair.read(which, 0, 2 * BLOCK).is_ok() && pair.read(which, 12288, BLOCK).is_ok());
        let kept = pair.write(which, 2 * BLOCK_U64 + 5, &[1]).unwrap_err().to_string();
        assert!(kept.contains("checksum"), "what is around the byte would be made right: {kept}");
        pair.write(which, 2 * BLOCK_U64, &[8; BLOCK]).unwrap();
        assert_eq!(pair.read(which, 2 * BLOCK_U64, 3).unwrap(), [8, 8, 8]);
    }
    pair.judge().unwrap();
}

#[test]
fn scrub_names_exactly_lost_ranges() {
    let pair = simulated(&Settings { checksums: true, ..Settings::default() });
    assert_eq!(pair.scrub(), []);
    let (flipped, poisoned) = (place_of(&pair, 0, 1), place_of(&pair, 1, 3));
    flip(pair.medium(), flipped.plus(9));
    pair.medium().inject_poison(poisoned.plus(640), 1);
    let found = pair.scrub();
    let named: Vec<_> = found.iter().map(|f| (f.offset, f.at, f.structure.as_str())).collect();
    assert_eq!(named[..1], [(Some(BLOCK_U64), flipped, "data")]);
    assert_eq!(named[1..], [(Some(3 * BLOCK_U64), poisoned, "data")], "{found:?}");
    assert!(found.iter().all(|finding| finding.volume.as_deref() == Some("p")));
    assert!(found[0].what.contains("checksum") && !found[1].what.contains("checksum of"));
    // A scrub from further on sees the later part.
    let (report, next) = pair.extents[1].scrub(1 << 20).unwrap();
    assert!(next.is_none() && report.findings.is_empty());
}

#[test]
fn scrub_names_map_damage_and_continues() {
    let pair = simulated(&Settings { checksums: true, ..Settings::default() });
    for which in BOTH {
        let at = pair.entry_at(which, 2);
        flip(pair.medium(), at);
        let found: Vec<_> = pair.scrub().into_iter().filter(|found| found.at == at).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].offset, &*found[0].structure), (Some(2 * BLOCK_U64), "map entry"));
        let (report, _) = pair.extents[which].scrub(0).unwrap();
        assert_eq!(report.verified_blocks, 3, "the other blocks were looked at");
        flip(pair.medium(), at);
    }
    assert_eq!(pair.scrub(), []);
}

#[test]
fn scrub_of_sparse_extent_reads_nodes_only() {
    let settings = Settings { sizes: [1 << 40, 9000], ..Settings::default() };
    let pair = new_pair(512, &settings);
    let far = 1 << 39;
    pair.write(0, far, &[1; 100]).unwrap();
    let (report, next) = pair.extents[0].scrub(0).unwrap();
    assert_eq!(next, None, "in one part");
    assert!(report.findings.is_empty());
    assert!((2 * BLOCK_U64..10 * BLOCK_U64).contains(&report.read_bytes), "{report:?}");
}

/// Words of one extent's map with blocks outside the range for maps.
fn craft(pair: &Pair<SimMedium>, which: usize, block: u64, named: u64) -> PoolOffset {
    let at = pair.entry_at(which, block);
    let entry = Entry::data(everbyte_media::BlockNo(named));
    pair.medium().store_word(at, entry.encode());
    at
}

#[test]
fn crafted_entry_fails_its_block_only() {
    for which in BOTH {
        // A superblock, the volume's header, and beyond the end.
        for named in [1, 2, 256, 1 << 30] {
            let pair = simulated(&Settings::default());
            let at = craft(&pair, which, 2, named);
            let corrupt = format!("map entry at {at} is corrupt: block {named} is outside");
            let range = ByteRange { offset: DeviceOffset(0), len: 4 * BLOCK };
            let extent = &pair.extents[which];
            let place = DeviceOffset(2 * BLOCK_U64);
            let said = [
                pair.read(which, 0, 4 * BLOCK).err().map(|e| e.to_string()),
                pair.write(which, 0, &[5; 4 * BLOCK]).err().map(|e| e.to_string()),
                pair.write(which, place.0 + 9, &[5]).err().map(|e| e.to_string()),
                pair.write_fast(which, place.0, &[5; BLOCK]).err().map(|e| e.to_string()),
                pair.zero(which, 0, 4 * BLOCK_U64, false).err().map(|e| e.to_string()),
                pair.zero(which, place.0, BLOCK_U64, true).err().map(|e| e.to_string()),
                pair.zero(which, place.0 + 1, 5, false).err().map(|e| e.to_string()),
                extent.pieces(range, b"").err().map(|e| e.to_string()),
                extent.stored_run(place).err().map(|e| e.to_string()),
            ];
            for (index, said) in said.iter().enumerate() {
                let said = said.as_ref().unwrap_or_else(|| panic!("request {index} saw nothing"));
                assert!(said.contains(&corrupt), "request {index}: {said}");
            }
            let resized = pair.resize(which, 5000).unwrap_err().to_string();
            assert!(resized.contains(&corrupt), "{resized}");
            assert!(pair.scrub().iter().all(|found| found.at == at));
            assert!(pair.read(which, 0, 5000).unwrap() == pattern(which as u64, 5000));
            let other = pattern(1 - which as u64, 4 * BLOCK);
            assert!(pair.read(1 - which, 0, 4 * BLOCK).unwrap() == other);
            pair.write(1 - which, 0, &[1; 5000]).unwrap();
            let (_, next) = extent.stored_run(DeviceOffset(0)).unwrap();
            assert_eq!(next, LogicalBlock(1));
        }
    }
}
