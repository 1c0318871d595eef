//! Lanes: appended records read back as far as they are whole, and nothing else reads back.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_crash::SimMedium;
use everbyte_media::{
    BLOCK, BLOCK_U64, BlockNo, Counters, LINE, LINE_U64, LineMask, MediaError, Medium,
    PersistenceDomain, Piece, PoisonedRange, PoolOffset,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::format::{Corrupt, RecordHeader, RecordKind, WordItem};
use crate::format::{lines_record_bytes, words_record_bytes};

const EPOCH: u64 = 7;
const LANES: u16 = 3;
/// Blocks of half a lane.
const HALF: u64 = 4;
const HALF_BYTES: u64 = HALF * BLOCK_U64;
/// First block of the log, and of the data after it.
const LOG: u64 = 2;
const DATA: u64 = LOG + 2 * LANES as u64 * HALF;

fn geometry() -> LogGeometry {
    let start = BlockNo(LOG).offset();
    LogGeometry { volume_uid: 5, log_key: 0x1234, start, half_bytes: HALF_BYTES, lanes: LANES }
}

/// A medium with distinct bytes in each data block.
fn medium() -> SimMedium {
    let medium = SimMedium::new((DATA + 4) * BLOCK_U64);
    for block in 0..4 {
        let bytes: Vec<u8> = (0..BLOCK).map(|at| old_byte(block, at)).collect();
        medium.store(BlockNo(DATA + block).offset(), &bytes);
    }
    medium
}

/// The byte at `at` of data block `block`.
fn old_byte(block: u64, at: usize) -> u8 {
    u8::try_from((at as u64 * 7 + (at / LINE) as u64 * 5 + block * 50) % 251).unwrap()
}

fn old_lines(block: u64, lines: LineMask) -> Vec<u8> {
    let all = lines.runs().flat_map(|(start, len)| start..start + len);
    all.map(|at| old_byte(block, at)).collect()
}

fn items(count: u64) -> Vec<WordItem> {
    (0..count).map(|i| WordItem { target: DATA * BLOCK_U64 + 8 * i, old: 100 + i }).collect()
}

/// The records of `lane` in the epoch.
fn scan(medium: &SimMedium, lane: u16) -> Result<Vec<Logged>, Corrupt> {
    scan_half(medium, &geometry(), lane, EPOCH)
}

fn words(count: u64) -> Logged {
    Logged::Undo(Restore::Words(items(count)))
}

#[test]
fn epochs_alternate_log_halves() {
    let geometry = geometry();
    let mut starts: Vec<u64> = (0..LANES)
        .flat_map(|lane| [EPOCH, EPOCH + 1].map(|epoch| geometry.half(lane, epoch).0))
        .collect();
    assert_eq!(
        geometry.half(0, EPOCH).0 - geometry.half(0, EPOCH + 1).0,
        HALF_BYTES,
        "odd: half 1"
    );
    assert_eq!(geometry.half(2, EPOCH), geometry.half(2, EPOCH + 2));
    starts.sort_unstable();
    let expected: Vec<u64> =
        (0..2 * u64::from(LANES)).map(|half| (LOG + half * HALF) * BLOCK_U64).collect();
    assert_eq!(starts, expected);
}

/// A record, as a test appends it.
#[derive(Clone, Debug)]
enum Record {
    Words(u64),
    Lines(u64, u64),
    /// New values of so many words.
    RedoWords(u64),
    /// New bytes for a part of a block: its first byte and how many.
    Redo(u64, usize, usize),
    Commit,
}

fn append(log: &mut LaneLog, medium: &SimMedium, record: &Record, order: u32) -> Option<Logged> {
    match *record {
        Record::Commit => {
            medium.fence().unwrap();
            log.committed();
            None
        }
        Record::Words(count) => {
            log.append_words(medium, &items(count)).map(|_in_flight| words(count))
        }
        Record::RedoWords(count) => {
            let _in_flight = log.append_redo_words(medium, order, &items(count)).unwrap();
            Some(Logged::Redo(order, Restore::Words(items(count))))
        }
        Record::Lines(block, mask) => {
            let (at, lines) = (BlockNo(DATA + block), LineMask(mask));
            let _in_flight = log.append_lines(medium, at, lines).unwrap();
            let bytes = old_lines(block, lines);
            Some(Logged::Undo(Restore::Lines(SavedLines { block: at, lines, bytes })))
        }
        Record::Redo(block, start, len) => {
            let (at, lines) = (BlockNo(DATA + block), LineMask::covering(start, len));
            let new = vec![0xee; len];
            let _in_flight = log.append_redo(medium, order, at, lines, (start, &new)).unwrap();
            let mut bytes = old_lines(block, lines);
            let skipped = start % LINE;
            bytes[skipped..skipped + len].fill(0xee);
            Some(Logged::Redo(order, Restore::Lines(SavedLines { block: at, lines, bytes })))
        }
    }
}

fn bytes_of(record: &Record) -> u64 {
    match *record {
        Record::Commit => 0,
        Record::Words(count) | Record::RedoWords(count) => {
            words_record_bytes(usize::try_from(count).unwrap())
        }
        Record::Lines(_, mask) => lines_record_bytes(mask.count_ones()),
        Record::Redo(_, start, len) => lines_record_bytes(LineMask::covering(start, len).count()),
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    prop_oneof![
        3 => (1u64..30).prop_map(Record::Words),
        2 => (1u64..30).prop_map(Record::RedoWords),
        3 => (0u64..4, 1u64..).prop_map(|(block, mask)| Record::Lines(block, mask)),
        2 => (0u64..4, 0usize..BLOCK, 1usize..300)
            .prop_map(|(block, start, len)| Record::Redo(block, start, len.min(BLOCK - start))),
        2 => Just(Record::Commit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Also the account: a record takes exactly its reservation, and nothing of another lane.
    #[test]
    fn log_records_read_back_in_order(
        records in prop::collection::vec((0..LANES, any_record()), 0..30),
    ) {
        let medium = medium();
        let mut lanes: Vec<_> = (0..LANES).map(|lane| LaneLog::new(geometry(), lane, EPOCH)).collect();
        let mut expected = vec![Vec::new(); usize::from(LANES)];
        for (order, (lane, record)) in (0..).zip(&records) {
            let (log, found) = (&mut lanes[usize::from(*lane)], &mut expected[usize::from(*lane)]);
            let (used, bytes) = (log.used_bytes(), bytes_of(record));
            if bytes > log.room_bytes() {
                continue;
            }
            found.extend(append(log, &medium, record, order));
            prop_assert_eq!(log.used_bytes(), used + bytes);
            prop_assert_eq!(log.room_bytes(), HALF_BYTES - log.used_bytes());
        }
        for lane in 0..LANES {
            prop_assert_eq!(&scan(&medium, lane).unwrap(), &expected[usize::from(lane)]);
            let before = scan_half(&medium, &geometry(), lane, EPOCH - 1).unwrap();
            prop_assert!(before.is_empty(), "the epoch before has the other half");
            let later = scan_half(&medium, &geometry(), lane, EPOCH + 2).unwrap();
            prop_assert!(later.is_empty(), "a later one has the same, and no record yet");
        }
    }
}

/// Records until not a line is left: 256 lines in all.
fn full() -> [Record; 5] {
    let all = u64::MAX;
    [
        Record::Lines(0, all),
        Record::Lines(1, all),
        Record::Lines(2, all),
        Record::Words(1 + 4 * 31),
        Record::Lines(3, all >> 36),
    ]
}

#[test]
fn records_may_fill_half_to_last_line() {
    let medium = medium();
    let mut log = LaneLog::new(geometry(), 2, EPOCH);
    let expected: Vec<_> =
        full().iter().filter_map(|record| append(&mut log, &medium, record, 0)).collect();
    assert_eq!(log.room_bytes(), 0);
    assert_eq!(scan(&medium, 2).unwrap(), expected);
    // The next bytes are another lane's: the log ends here.
    let mut after = [0; LINE];
    medium.read(BlockNo(DATA).offset(), &mut after);
    assert_eq!(after[..], old_lines(0, LineMask(1))[..]);
    log.begin_epoch(EPOCH + 1);
    assert_eq!((log.room_bytes(), log.epoch()), (HALF_BYTES, EPOCH + 1));
}

#[test]
#[should_panic(expected = "was not reserved")]
fn unreserved_record_stays_in_half() {
    let medium = medium();
    let mut log = LaneLog::new(geometry(), 0, EPOCH);
    for record in &full()[..4] {
        append(&mut log, &medium, record, 0);
    }
    append(&mut log, &medium, &Record::Lines(3, u64::MAX >> 35), 0);
}

#[test]
fn empty_word_list_makes_no_record() {
    let medium = medium();
    let mut log = LaneLog::new(geometry(), 0, EPOCH);
    assert!(log.append_words(&medium, &[]).is_none());
    assert_eq!((log.used_bytes(), medium.ops()), (0, 4));
}

/// Four records: two of one commit, then one each. Where each begins, and where the last ends.
fn four_records(medium: &SimMedium) -> Vec<PoolOffset> {
    let mut log = LaneLog::new(geometry(), 1, EPOCH);
    let start = geometry().half(1, EPOCH);
    let records = [
        Record::Words(6),
        Record::Lines(1, 0b101),
        Record::Commit,
        Record::Redo(2, 10, 100),
        Record::Commit,
        Record::Words(1),
        Record::Commit,
    ];
    let mut starts = vec![start];
    for record in &records {
        if append(&mut log, medium, record, 3).is_some() {
            starts.push(start.plus(log.used_bytes()));
        }
    }
    starts
}

/// If no later commit's record follows a damaged record, its write was in progress. Else the record had been
/// durable.
#[test]
fn damaged_record_ends_log_unless_durable() {
    let whole = medium();
    let starts = four_records(&whole);
    let expected = scan(&whole, 1).unwrap();
    assert_eq!(expected.len(), 4);
    for (number, range) in starts.windows(2).enumerate() {
        for at in (range[0].0..range[1].0).step_by(24) {
            let damaged = SimMedium::from_image(whole.image());
            let word = damaged.load_word(PoolOffset(at));
            damaged.store_word(PoolOffset(at), word ^ 1 << 33);
            // The last lines of a payload may be padding, but their checksum is the record's.
            match scan(&damaged, 1) {
                Ok(found) => {
                    assert_eq!(number, 3, "record {number} was durable, {at:#x}");
                    assert_eq!(found, expected[..number]);
                }
                Err(corrupt) => {
                    assert!(number < 3, "record {number} may be torn: {corrupt}");
                    assert_eq!(corrupt.at, starts[number], "{corrupt}");
                    let name = format!("log record {number} of lane 1, epoch 7, volume 5");
                    assert_eq!(corrupt.structure, name);
                    let next = if number < 2 { 2 } else { 3 };
                    assert!(corrupt.what.contains(&format!("before record {next} ")), "{corrupt}");
                }
            }
        }
    }
}

#[test]
fn same_commit_beyond_gap_proves_nothing() {
    let medium = medium();
    let mut log = LaneLog::new(geometry(), 0, EPOCH);
    append(&mut log, &medium, &Record::Words(1), 0);
    append(&mut log, &medium, &Record::Commit, 0);
    for _ in 0..3 {
        append(&mut log, &medium, &Record::Words(2), 0);
    }
    let second = geometry().half(0, EPOCH).plus(words_record_bytes(1));
    medium.store_word(second, 0);
    assert_eq!(scan(&medium, 0).unwrap(), [words(1)]);
}

/// A right record of one word at the start of the half, but for one change, sealed again.
fn first_record(change: impl FnOnce(&mut RecordHeader)) -> Vec<Logged> {
    let medium = medium();
    let item = items(1)[0];
    let mut header = RecordHeader {
        crc: 0,
        payload_crc: 0,
        log_key: geometry().log_key,
        epoch: EPOCH,
        seq: 0,
        commit_start: 0,
        position: 0,
        lane: 1,
        kind: RecordKind::Words as u16,
        count: 1,
        order: 0,
        target: item.target,
        old: item.old,
    };
    change(&mut header);
    medium.store(geometry().half(1, EPOCH), header.sealed().as_bytes());
    scan(&medium, 1).unwrap()
}

#[test]
fn foreign_or_old_record_is_ignored() {
    type Change = fn(&mut RecordHeader);
    assert_eq!(first_record(|_| {}), [words(1)]);
    let others: [Change; 12] = [
        |header| header.log_key ^= 1,
        |header| header.epoch += 2,
        |header| header.epoch -= 2,
        |header| header.lane = 0,
        |header| header.position = 1,
        |header| header.seq = 1,
        |header| header.kind = 0,
        |header| header.kind = 5,
        |header| header.count = 0,
        |header| header.payload_crc = 1,
        // Payloads beyond the half, one of which wraps around.
        |header| header.count = u32::try_from(HALF_BYTES / 16).unwrap(),
        |header| header.count = u32::MAX,
    ];
    for (case, change) in others.into_iter().enumerate() {
        assert_eq!(first_record(change), [], "case {case}");
    }
}

/// Memory with a count of the bytes read.
struct Counting {
    inner: SimMedium,
    bytes_read: AtomicU64,
}

impl Counting {
    fn count(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Medium for Counting {
    fn load_word(&self, at: PoolOffset) -> u64 {
        self.count(8);
        self.inner.load_word(at)
    }
    fn read(&self, at: PoolOffset, out: &mut [u8]) {
        self.count(out.len());
        self.inner.read(at, out);
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn persistence_domain(&self) -> PersistenceDomain {
        self.inner.persistence_domain()
    }
    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask {
        self.inner.changed_lines(block, start, new)
    }
    fn store_word(&self, at: PoolOffset, value: u64) {
        self.inner.store_word(at, value);
    }
    fn store(&self, at: PoolOffset, bytes: &[u8]) {
        self.inner.store(at, bytes);
    }
    fn stream(&self, at: PoolOffset, bytes: &[u8]) {
        self.inner.stream(at, bytes);
    }
    fn flush(&self, at: PoolOffset, len: u64) {
        self.inner.flush(at, len);
    }
    fn fence(&self) -> Result<(), MediaError> {
        self.inner.fence()
    }
    fn check(&self) -> Result<(), MediaError> {
        self.inner.check()
    }
    fn has_poison(&self) -> bool {
        self.inner.has_poison()
    }
    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset> {
        self.inner.poisoned_in(at, len)
    }
    fn poisoned_ranges(&self) -> Vec<PoisonedRange> {
        self.inner.poisoned_ranges()
    }
    fn probe(&self, at: PoolOffset, len: u64) {
        self.inner.probe(at, len);
    }
    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
        self.inner.send(socket, pieces)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn line_cost_ns(&self) -> (u32, u32) {
        self.inner.line_cost_ns()
    }
}

/// Every line of the half is a right header of a record with a claim to the lines after it: the search for
/// proof of a lost record must not read all those payloads.
#[test]
fn log_scan_reads_each_header_once() {
    let inner = medium();
    let (half, lines) = (geometry().half(1, EPOCH), HALF_BYTES / LINE_U64);
    // The first record is missing.
    for line in 1..lines - 1 {
        let count = (lines - line - 1).min(64);
        let header = RecordHeader {
            crc: 0,
            payload_crc: 0,
            log_key: geometry().log_key,
            epoch: EPOCH,
            seq: u32::try_from(line).unwrap(),
            commit_start: 0,
            position: u32::try_from(line).unwrap(),
            lane: 1,
            kind: RecordKind::Lines as u16,
            count: u32::try_from(count).unwrap(),
            order: 0,
            target: DATA * BLOCK_U64,
            old: u64::MAX >> (64 - count),
        };
        inner.store(half.plus(line * LINE_U64), header.sealed().as_bytes());
    }
    let medium = Counting { inner, bytes_read: AtomicU64::new(0) };
    assert_eq!(scan_half(&medium, &geometry(), 1, EPOCH).unwrap(), []);
    let bytes_read = medium.bytes_read.into_inner();
    // The line at the end of the records is read twice. Two words of a line show if it may be a header, of
    // other lines the first.
    assert_eq!(bytes_read, (lines - 2) * (LINE_U64 + 16) + 3 * 8);
}

/// The cost of an opening without anything to undo.
#[test]
fn empty_half_scan_reads_one_word_per_line() {
    let medium = Counting { inner: medium(), bytes_read: AtomicU64::new(0) };
    assert_eq!(scan_half(&medium, &geometry(), 1, EPOCH).unwrap(), []);
    assert_eq!(medium.bytes_read.into_inner(), (HALF_BYTES / LINE_U64 + 1) * 8);
}

/// Logged bytes are a client's: records among them are not found by searching.
#[test]
fn record_inside_payload_is_ignored() {
    let medium = medium();
    let mut log = LaneLog::new(geometry(), 1, EPOCH);
    let forged = RecordHeader {
        crc: 0,
        payload_crc: 0,
        log_key: geometry().log_key,
        epoch: EPOCH,
        seq: 1,
        commit_start: 0,
        position: 1,
        lane: 1,
        kind: RecordKind::Words as u16,
        count: 1,
        order: 0,
        target: 0,
        old: 0,
    };
    medium.store(BlockNo(DATA).offset(), forged.sealed().as_bytes());
    let lines = LineMask(1);
    let _in_flight = log.append_lines(&medium, BlockNo(DATA), lines).unwrap();
    let found = scan(&medium, 1).unwrap();
    let bytes = forged.sealed().as_bytes().to_vec();
    let saved = SavedLines { block: BlockNo(DATA), lines, bytes };
    assert_eq!(found, [Logged::Undo(Restore::Lines(saved))]);
}

#[test]
fn poisoned_half_is_damage() {
    let whole = medium();
    let starts = four_records(&whole);
    let half = geometry().half(1, EPOCH);
    for (at, is_damage) in [
        (half, true),
        (starts[2], true),
        (starts[4], true),
        (half.plus(HALF_BYTES - LINE_U64), true),
        (half.plus(HALF_BYTES), false),
        (PoolOffset(half.0 - LINE_U64), false),
    ] {
        let medium = SimMedium::from_image(whole.image());
        medium.inject_poison(at, 1);
        medium.probe(at, 1);
        let found = scan(&medium, 1);
        assert_eq!(found.is_err(), is_damage, "{at}");
    }
}

#[test]
fn poisoned_bytes_are_never_logged() {
    let medium = medium();
    medium.inject_poison(BlockNo(DATA + 1).offset().plus(640), 1);
    let mut log = LaneLog::new(geometry(), 0, EPOCH);
    let (bad, lines) = (BlockNo(DATA + 1), LineMask(1 << 10));
    assert!(log.append_lines(&medium, bad, lines).is_err());
    assert!(log.append_redo(&medium, 0, bad, lines, (650, &[1])).is_err());
    assert_eq!(log.used_bytes(), 0, "nothing is appended");
    append(&mut log, &medium, &Record::Words(2), 0);
    assert_eq!(scan(&medium, 0).unwrap(), [words(2)]);
}
