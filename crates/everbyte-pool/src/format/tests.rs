//! Tests of the layout types against `docs/format.md`, with the tests' own numbers, and of each validity
//! rule.

use everbyte_media::{BLOCK_U64, BlockNo, LINE, LINE_U64, PoolOffset};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;

const POOL_BLOCKS: u64 = 1000;
const DATA_START: u64 = 66;

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// CRC-32C bit by bit, as its definition has it.
fn crc_by_definition(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes
        .iter()
        .fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

#[test]
fn superblock_layout_matches_format() {
    let sb = Superblock {
        compat: 0x11,
        ro_compat: 0x12,
        incompat: 0x13,
        generation: 0x14,
        next_volume_uid: 0x15,
        clean: 1,
        saved_start: 0x16,
        saved_bytes: 0x17,
        saved_crc: 0x18,
        ..Superblock::new(POOL_BLOCKS, 64, [0xab; 16])
    };
    let sealed = sb.sealed();
    let bytes = sealed.as_bytes();
    assert_eq!((&bytes[..8], le32(bytes, 8), le32(bytes, 12)), (&b"EVERBYTE"[..], 1, 4096));
    assert_eq!([16, 24, 32].map(|at| le64(bytes, at)), [0x11, 0x12, 0x13]);
    assert_eq!(bytes[40..56], [0xab; 16]);
    let counts = [56, 64, 72, 80, 88, 96, 104, 112, 120].map(|at| le64(bytes, at));
    assert_eq!(counts, [0x14, POOL_BLOCKS, 2, 64, DATA_START, 0x15, 1, 0x16, 0x17]);
    assert_eq!((le32(bytes, 128), le32(bytes, 132)), (0x18, crc_by_definition(&bytes[..132])));
    assert_eq!(bytes.len(), 136);
}

/// A sealed superblock that differs from a right one by one change, parsed.
fn parsed_superblock(change: impl FnOnce(&mut Superblock)) -> Result<Superblock, String> {
    let mut sb = Superblock::new(POOL_BLOCKS, 64, [7; 16]);
    change(&mut sb);
    let at = PoolOffset(BLOCK_U64);
    let parsed = Superblock::parse(sb.sealed().as_bytes(), at, POOL_BLOCKS * BLOCK_U64);
    parsed.map_err(|corrupt| {
        assert_eq!((corrupt.structure.as_str(), corrupt.at), ("superblock", at));
        corrupt.what
    })
}

#[test]
fn superblock_with_bad_field_is_refused() {
    type Change = fn(&mut Superblock);
    let refused: [(Change, &str); 20] = [
        (|sb| sb.magic[7] = b'e', "this is no pool"),
        (|sb| sb.version = 2, "version 2"),
        (|sb| sb.version = 0, "version 0"),
        (|sb| sb.incompat = 1 << 63, "features 0x8000000000000000"),
        (|sb| sb.block_bytes = 512, "512 bytes, not 4096"),
        (|sb| sb.generation = 1 << 63, "counters"),
        (|sb| sb.next_volume_uid = 1 << 63, "counters"),
        (|sb| sb.size_blocks = POOL_BLOCKS + 1, "truncated"),
        (|sb| sb.size_blocks = u64::MAX, "truncated"),
        (|sb| sb.size_blocks = DATA_START, "volume table"),
        (|sb| sb.table_start = 3, "volume table"),
        (|sb| (sb.table_start, sb.data_start) = (1, 65), "volume table"),
        (|sb| (sb.table_slots, sb.data_start) = (0, 2), "volume table"),
        (|sb| sb.data_start = 67, "volume table"),
        (|sb| (sb.table_slots, sb.data_start) = (u64::MAX, 1), "volume table"),
        (|sb| (sb.saved_start, sb.saved_bytes) = (65, 8), "saved allocator"),
        (|sb| (sb.saved_start, sb.saved_bytes) = (999, 4097), "saved allocator"),
        (|sb| (sb.saved_start, sb.saved_bytes) = (1001, 0), "saved allocator"),
        (|sb| (sb.saved_start, sb.saved_bytes) = (u64::MAX, 8), "saved allocator"),
        (|sb| (sb.saved_start, sb.saved_bytes) = (66, u64::MAX), "saved allocator"),
    ];
    for (case, (change, expected)) in refused.into_iter().enumerate() {
        let what = parsed_superblock(change).unwrap_err();
        assert!(what.contains(expected), "case {case}: {what}");
    }
}

#[test]
fn superblock_at_limits_is_valid() {
    type Change = fn(&mut Superblock);
    let believed: [Change; 7] = [
        |sb| sb.compat = u64::MAX,
        |sb| sb.ro_compat = u64::MAX,
        |sb| sb.generation = u64::MAX / 2,
        |sb| sb.size_blocks = DATA_START + 1,
        |sb| (sb.saved_start, sb.saved_bytes) = (999, 4096),
        |sb| (sb.saved_start, sb.saved_bytes) = (66, 8),
        // Without a place its length means nothing.
        |sb| (sb.saved_start, sb.saved_bytes) = (0, u64::MAX),
    ];
    for (case, change) in believed.into_iter().enumerate() {
        assert!(parsed_superblock(change).is_ok(), "case {case}");
    }
    let cut = Superblock::parse(&[0; 135], PoolOffset(0), u64::MAX).unwrap_err();
    assert!(cut.what.contains("cut short"), "{cut}");
}

#[test]
fn unknown_ro_compat_feature_forbids_writes() {
    let with = |ro_compat| Superblock { ro_compat, ..Superblock::new(POOL_BLOCKS, 64, [7; 16]) };
    for (ro_compat, known, forbidden) in
        [(0, 0, false), (1, 1, false), (1, 3, false), (3, 1, true), (1 << 62, !(1 << 62), true)]
    {
        assert_eq!(with(ro_compat).forbids_writing(known), forbidden, "{ro_compat:#x}, {known:#x}");
    }
}

fn named(name: &[u8]) -> [u8; 64] {
    let mut padded = [0; 64];
    padded[..name.len()].copy_from_slice(name);
    padded
}

fn a_descriptor() -> Descriptor {
    let mut descriptor = Descriptor::new_zeroed();
    (descriptor.uid, descriptor.kind, descriptor.map) = (0x21, 0x22, 0x23);
    descriptor.name = named(b"volume");
    (descriptor.log_start, descriptor.lanes, descriptor.half_blocks) = (100, 2, 5);
    (descriptor.threshold_lines, descriptor.delta) = (32, 0x24);
    (descriptor.created_s, descriptor.log_key, descriptor.checksum) = (0x25, 0x26, 1);
    descriptor
}

#[test]
fn descriptor_layout_matches_format() {
    let sealed = a_descriptor().sealed();
    let bytes = sealed.as_bytes();
    assert_eq!((le64(bytes, 0), le32(bytes, 8), le32(bytes, 12)), (0x21, 0x22, 0x23));
    assert_eq!(&bytes[16..23], b"volume\0");
    assert_eq!(le64(bytes, 80), 100);
    assert_eq!([88, 92, 96, 100].map(|at| le32(bytes, at)), [2, 5, 32, 0x24]);
    assert_eq!((le64(bytes, 104), le64(bytes, 112)), (0x25, 0x26));
    assert_eq!((le32(bytes, 120), le32(bytes, 124)), (1, crc_by_definition(&bytes[..124])));
    assert_eq!((bytes.len(), sealed.log_blocks()), (128, 20));
    let places = [STATE_AT, COMPLETED_A_AT, COMPLETED_B_AT, ROOT_AT, SIZE_AT, CHECKSUM_ROOT_AT];
    assert_eq!(places, [0, 64, 128, 192, 200, 208]);
    assert_eq!([CHECKPOINT_LINES_AT, USED_AT, USED_EPOCH_AT], [216, 224, 232]);
    assert_eq!(DESCRIPTOR_AT, [1024, 2048]);
    let states = [0, 1, 2, 3].map(VolumeState::from_code);
    use VolumeState::{Active, Deleting, Free};
    assert_eq!(states, [Some(Free), Some(Active), Some(Deleting), None]);
}

#[test]
fn descriptor_with_bad_field_or_flip_is_refused() {
    type Change = fn(&mut Descriptor);
    let parse = |bytes: &[u8]| {
        let parsed = Descriptor::parse(bytes, PoolOffset(9216), DATA_START, POOL_BLOCKS);
        parsed.map_err(|corrupt| corrupt.to_string())
    };
    let refused: [(Change, &str); 9] = [
        (|d| d.lanes = 1025, "lanes"),
        (|d| d.half_blocks = 3, "lanes"),
        (|d| (d.lanes, d.half_blocks) = (0, 0), "lanes"),
        (|d| d.log_start = 65, "does not fit"),
        (|d| d.log_start = 981, "does not fit"),
        (|d| d.threshold_lines = 66, "threshold"),
        (|d| d.checksum = 2, "checksums"),
        (|d| d.name = [0; 64], "no name"),
        (|d| d.name[2] = 0xff, "no name"),
    ];
    for (change, expected) in refused {
        let mut descriptor = a_descriptor();
        change(&mut descriptor);
        let error = parse(descriptor.sealed().as_bytes()).unwrap_err();
        assert!(error.contains(expected) && error.contains("0x2400"), "{error}");
    }
    let believed: [Change; 5] = [
        |d| d.log_start = 980,
        |d| d.threshold_lines = 65,
        |d| d.name = [b'n'; 64],
        |d| (d.log_start, d.lanes, d.half_blocks) = (0, 0, 0),
        |d| d.kind = u32::MAX,
    ];
    for change in believed {
        let mut descriptor = a_descriptor();
        change(&mut descriptor);
        assert_eq!(parse(descriptor.sealed().as_bytes()), Ok(descriptor.sealed()));
    }
    let sealed = a_descriptor().sealed();
    for bit in 0..128 * 8 {
        let mut bytes = sealed.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bytes).is_err(), "bit {bit}");
    }
    assert!(parse(&sealed.as_bytes()[..127]).unwrap_err().contains("cut short"));
}

#[test]
fn record_layout_matches_format() {
    let header = RecordHeader {
        crc: 0,
        payload_crc: 1,
        log_key: 2,
        epoch: 3,
        seq: 4,
        commit_start: 5,
        position: 6,
        lane: 7,
        kind: RecordKind::Redo as u16,
        count: 8,
        order: 9,
        target: 10,
        old: 11,
    };
    let sealed = header.sealed();
    let bytes = sealed.as_bytes();
    assert_eq!((le32(bytes, 0), le32(bytes, 4)), (crc_by_definition(&bytes[4..]), 1));
    let mut line = [0xff; LINE];
    header.seal_into(&mut line);
    assert_eq!(line[..], *bytes);
    assert_eq!([8, 16].map(|at| le64(bytes, at)), [2, 3]);
    assert_eq!([24, 28, 32].map(|at| le32(bytes, at)), [4, 5, 6]);
    assert_eq!(bytes[36..40], [7, 0, 3, 0]);
    assert_eq!([40, 44].map(|at| le32(bytes, at)), [8, 9]);
    assert_eq!([48, 56].map(|at| le64(bytes, at)), [10, 11]);
    assert_eq!([RecordKind::Words as u16, RecordKind::Lines as u16], [1, 2]);
    assert_eq!([RecordKind::Redo as u16, RecordKind::RedoWords as u16], [3, 4]);
    for bit in 0..512 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let flipped = RecordHeader::read_from_bytes(&flipped).unwrap();
        assert_ne!(flipped.crc, flipped.expected_crc(), "bit {bit}");
    }
}

/// Kind, count and mask of a record, and the lines of its payload if it is possible.
#[test]
fn record_count_gives_payload_size() {
    let cases = [
        (0, 1, 1, None),
        (1, 0, 0, None),
        (1, 1, u64::MAX, Some(0)),
        (1, 2, 0, Some(1)),
        (1, 5, 0, Some(1)),
        (1, 6, 0, Some(2)),
        (2, 0, 0, None),
        (2, 1, 0b11, None),
        (2, 2, 0b101, Some(2)),
        (2, 64, u64::MAX, Some(64)),
        (2, 65, u64::MAX, None),
        (3, 3, 0b111 << 61, Some(3)),
        (3, 0, 0, None),
        (4, 0, 1, None),
        (4, 1, u64::MAX, Some(0)),
        (4, 6, 0, Some(2)),
        (5, 1, 1, None),
    ];
    for (kind, count, old, lines) in cases {
        let header = RecordHeader { kind, count, old, ..RecordHeader::new_zeroed() };
        assert_eq!(header.known_kind().is_some(), lines.is_some(), "kind {kind}, count {count}");
        assert_eq!(header.payload_bytes(), lines.unwrap_or(0) * LINE_U64, "{kind}, {count}");
    }
    // A record takes exactly its reservation in the log.
    for count in 1..40u32 {
        let words = RecordHeader { kind: 1, count, ..RecordHeader::new_zeroed() };
        assert_eq!(words_record_bytes(count as usize), LINE_U64 + words.payload_bytes());
        let old = u64::MAX >> (64 - count);
        let lines = RecordHeader { kind: 2, count, old, ..RecordHeader::new_zeroed() };
        assert_eq!(lines_record_bytes(count), LINE_U64 + lines.payload_bytes());
    }
}

#[test]
fn word_encoding_matches_format() {
    // By hand: the high 16 bits of the value's product with 0x9e3779b97f4a7c15, and the value.
    let by_hand = [
        (0, 0),
        (1, 0x9e37_0000_0000_0001),
        (2, 0x3c6e_0000_0000_0002),
        (0x1_0000, 0x79b9_0000_0001_0000),
        (0x1_0000_0000, 0x7f4a_0001_0000_0000),
    ];
    for (value, word) in by_hand {
        assert_eq!(encode_word(value), word, "{value:#x}");
    }
    assert!(std::panic::catch_unwind(|| encode_word(1 << 48)).is_err(), "49 bits are no value");
}

#[test]
fn entry_with_bad_bits_is_refused() {
    for value in [1 << 41 | 5, 1 << 45 | 5, 1 << 47 | 5] {
        assert_eq!(Entry::decode(encode_word(value)), Err("it has unknown flags"));
    }
    for value in [1 << 40, 5 << 42] {
        assert_eq!(Entry::decode(encode_word(value)), Err("it names block 0"));
    }
    assert_eq!(Entry::decode(5), Err("its check bits are wrong"));
    let zero = Entry::decode(encode_word(1 << 40 | 2 << 42 | 7)).unwrap().unwrap();
    assert_eq!((zero.block, zero.flags.zero, zero.flags.height), (BlockNo(7), true, 2));
    assert_eq!(Entry::zero(BlockNo(7)).encode(), encode_word(1 << 40 | 7));
    for block in [0, 1 << 40] {
        let entry = Entry::data(BlockNo(block));
        assert!(std::panic::catch_unwind(|| entry.encode()).is_err(), "{block} is not mappable");
    }
}

proptest! {
    #[test]
    fn decoded_word_encodes_to_same_word(word: u64, value in 0u64..1 << 48) {
        prop_assert_eq!(decode_word(encode_word(value)), Some(value));
        if let Some(value) = decode_word(word) {
            prop_assert_eq!(encode_word(value), word);
        }
        let sealed = encode_word(word >> 16);
        if let Ok(Some(entry)) = Entry::decode(sealed) {
            prop_assert_eq!(entry.encode(), sealed);
        }
    }

    #[test]
    fn value_has_one_checksum(
        value in 0u64..1 << 48,
        flips in 1u64..1 << 16,
    ) {
        prop_assert_eq!(decode_word(encode_word(value) ^ flips << 48), None);
    }
}
