//! Recovery: valid records and their effects, the costs of a damaged log, and crashes and restarts of
//! recovery.

use std::sync::Arc;

use everbyte_crash::{Closures, Explorer, Log, Plan, SimMedium};
use everbyte_media::{BLOCK_U64, BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::{
    COMPLETED_A_AT, COMPLETED_B_AT, RecordHeader, RecordKind, WordItem, decode_word,
};
use everbyte_pool::{NewRoot, Pool, PoolError, Volume, VolumeSpec, WriteError};
use everbyte_testkit::crash_seed;
use zerocopy::IntoBytes;

use crate::runs::{few, sound};
use crate::shelf::{Contents, SHELF, Shelf, ShelfError, contents_on, open_pool};

const BLOCKS: u64 = 96;
/// A block without an owner.
const NOBODYS: BlockNo = BlockNo(90);
/// Value of its words before recovery.
const NEW: u64 = 0x1111_1111_1111_1111;
/// Headers of the two volumes.
const HEADERS: [PoolOffset; 2] = [PoolOffset(2 * BLOCK_U64), PoolOffset(3 * BLOCK_U64)];

/// A pool with the shelf "s", with a durable and a volatile block, and with the shelf "t", killed.
fn killed_pool() -> Arc<SimMedium> {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let shelf = Shelf::make(&medium, 2);
    let mut spec = VolumeSpec::new("t", SHELF, 4096);
    (spec.lanes, spec.log_bytes) = (1, Some(32 << 10));
    shelf.pool.create_volume(&spec, NewRoot::Zeroes { blocks: 1 }).unwrap();
    shelf.put(3, 64, 8).unwrap();
    shelf.volume().flush().unwrap();
    medium.store(NOBODYS.offset(), &NEW.to_le_bytes().repeat(512));
    for at in [0, 1].map(|block| BlockNo(NOBODYS.0 + block).offset()) {
        medium.flush(at, BLOCK_U64);
    }
    medium.fence().unwrap();
    drop(shelf);
    Arc::new(SimMedium::from_image(medium.image()))
}

/// A record made by a test.
enum Made {
    Words(Vec<(u64, u64)>),
    Lines(BlockNo, u64),
    /// With its place in the order.
    Redo(u32, BlockNo, u64),
    /// With its place in the order.
    RedoWords(u32, Vec<(u64, u64)>),
}

/// Returns the start of an epoch's half of lane 0 in the log of this volume.
fn half_of(volume: &Volume<SimMedium>, epoch: u64) -> PoolOffset {
    let descriptor = volume.descriptor();
    let half_bytes = u64::from(descriptor.half_blocks) * BLOCK_U64;
    BlockNo(descriptor.log_start).offset().plus(epoch % 2 * half_bytes)
}

/// Puts `records` into lane 0 of the shelf as those of the epoch after the last completed one.
/// Lines are all `byte`, and those of a redo record the byte after.
fn put_records(medium: &Arc<SimMedium>, records: &[Made], byte: u8) {
    let looked_at = open_pool(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
    let volume = looked_at.volume("s").unwrap();
    let epoch = decode_word(medium.load_word(HEADERS[0].plus(COMPLETED_A_AT))).unwrap() + 1;
    let mut at = half_of(&volume, epoch);
    let start = at.0;
    for (seq, record) in (0..).zip(records) {
        let lines = |mask: u64, byte: u8| vec![byte; 64 * mask.count_ones() as usize];
        let (kind, order, target, old, count, payload) = match record {
            Made::Words(words) | Made::RedoWords(_, words) => {
                let items: Vec<WordItem> =
                    words[1..].iter().map(|&(target, old)| WordItem { target, old }).collect();
                let mut payload = items.as_bytes().to_vec();
                payload.resize(payload.len().next_multiple_of(64), 0);
                let count = u32::try_from(words.len()).unwrap();
                let (kind, order) = match record {
                    Made::RedoWords(order, _) => (RecordKind::RedoWords, *order),
                    _ => (RecordKind::Words, 0),
                };
                (kind, order, words[0].0, words[0].1, count, payload)
            }
            Made::Lines(block, mask) => {
                let payload = lines(*mask, byte);
                (RecordKind::Lines, 0, block.offset().0, *mask, mask.count_ones(), payload)
            }
            Made::Redo(order, block, mask) => {
                let payload = lines(*mask, byte + 1 + u8::try_from(*order).unwrap());
                (RecordKind::Redo, *order, block.offset().0, *mask, mask.count_ones(), payload)
            }
        };
        let header = RecordHeader {
            crc: 0,
            payload_crc: crc32c::crc32c(&payload),
            log_key: volume.descriptor().log_key,
            epoch,
            seq,
            commit_start: 0,
            position: u32::try_from((at.0 - start) / 64).unwrap(),
            lane: 0,
            kind: kind as u16,
            count,
            order,
            target,
            old,
        };
        medium.store(at, header.sealed().as_bytes());
        medium.store(at.plus(64), &payload);
        at = at.plus(64 + payload.len() as u64);
    }
}

fn word_in(block: BlockNo, word: u64) -> u64 {
    block.offset().0 + 8 * word
}

/// Logs that no run of this program leaves, with the message for each.
fn impossible() -> Vec<(Vec<Made>, &'static str)> {
    use Made::{Lines, Redo, RedoWords, Words};
    let (at, header, foreign) = (word_in(NOBODYS, 9), HEADERS[0].0, HEADERS[1].0);
    let outside = "points outside the pool's data";
    vec![
        (vec![Words(vec![(at, 1)]), Words(vec![(at, 2)])], "another record saves the same word"),
        (vec![Words(vec![(at, 1), (at + 8, 2), (at, 2)])], "another record saves the same word"),
        (vec![Lines(NOBODYS, 0b11), Lines(NOBODYS, 0b110)], "another record saves the same line"),
        (vec![Lines(NOBODYS, 0b10), Words(vec![(at, 1)])], "a word of a line of another"),
        (vec![Words(vec![(at - 64, 1), (at, 1)]), Lines(NOBODYS, 0b110)], "a word of a line"),
        (vec![Words(vec![(at + 4, 1)])], outside),
        (vec![Words(vec![(0, 1)])], outside),
        (vec![Words(vec![(at, 1), (foreign + 192, 1)])], outside),
        (vec![Words(vec![(BLOCKS * BLOCK_U64, 1)])], outside),
        (vec![Words(vec![(u64::MAX - 7, 1)])], outside),
        (vec![Lines(BlockNo(header / BLOCK_U64), 1)], outside),
        (vec![Lines(BlockNo(BLOCKS), 1)], outside),
        (vec![Redo(0, BlockNo(1), 1)], outside),
        (vec![Redo(0, BlockNo(header / BLOCK_U64), 1)], outside),
        (vec![RedoWords(0, vec![(at, 1), (header, 1)])], outside),
        (vec![RedoWords(0, vec![(at, 1), (at + 4, 1)])], outside),
        (vec![RedoWords(0, vec![(BLOCKS * BLOCK_U64, 1)])], outside),
    ]
}

#[test]
fn corrupt_log_makes_its_volume_read_only() {
    for (records, expected) in impossible() {
        let medium = killed_pool();
        put_records(&medium, &records, 0x55);
        let before = medium.image();
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        let reason = shelf.volume().read_only_reason().unwrap();
        assert!(
            reason.contains("its log cannot be undone") && reason.contains(expected),
            "{reason}"
        );
        let (data, half) = (4 * 4096, usize::try_from(NOBODYS.offset().0).unwrap());
        let after = medium.image();
        assert!(after[data..] == before[data..], "something was undone: {reason}");
        assert!(after[8192..][..4096] == before[8192..][..4096], "the header is as it was");
        assert_eq!(after[half..][..8], NEW.to_le_bytes());
        let refused = shelf.put(0, 64, 1).unwrap_err();
        assert!(matches!(refused, ShelfError::Write(WriteError::ReadOnly { .. })), "{refused:?}");
        assert_eq!(shelf.contents().unwrap(), Contents::from([(3, (64, 8, 8))]), "it can be read");
        others_go_on(&shelf.pool, expected);
    }
}

/// A damaged volume's blocks are unknown, so no volume gets any; other volumes can write their present
/// blocks.
fn others_go_on(pool: &Pool<SimMedium>, expected: &str) {
    let unknown = pool.space_unknown().unwrap();
    assert!(unknown.starts_with("volume s: ") && unknown.contains(expected), "{unknown}");
    assert_eq!(pool.info().free_bytes, 0);
    assert!(matches!(pool.take_run("a test", 1), Err(PoolError::NoSpace { .. })));
    assert!(matches!(pool.delete_volume("s"), Err(PoolError::Damaged { .. })));
    let other = pool.volume("t").unwrap();
    assert_eq!(other.read_only_reason(), None);
    let at = other.size_at();
    let changed: Result<u64, ShelfError> = other.change(|batch, _| {
        assert_eq!(batch.alloc(), None, "there are no blocks");
        batch.change_word(at, batch.word(at));
        Ok(())
    });
    other.complete(changed.unwrap()).unwrap();
    let problems = pool.check().unwrap().problems.join("; ");
    assert!(problems.contains("which blocks are free is unknown"), "{problems}");
    assert!(problems.contains("volume s is read-only"), "{problems}");
    assert!(!problems.contains("volume t"), "{problems}");
    pool.close().unwrap();
    let again = open_pool(pool.medium()).unwrap();
    assert!(again.volume("s").unwrap().read_only_reason().unwrap().contains(expected));
}

#[test]
fn recovery_undoes_then_redoes_in_order() {
    use Made::{Lines, Redo, RedoWords, Words};
    let medium = killed_pool();
    let at = |word| word_in(NOBODYS, word);
    let size_at = HEADERS[0].0 + 200;
    let size = medium.load_word(PoolOffset(size_at));
    medium.store_word(PoolOffset(size_at), 12345);
    let records = [
        Lines(NOBODYS, 0b0001),
        Words(vec![(at(8), 21), (at(15), 22), (size_at, size)]),
        Lines(NOBODYS, 0b0100),
        // The second of line 4 is the later one, though it stands first; line 2 was logged before.
        Redo(1, NOBODYS, 0b1_0000),
        Redo(0, NOBODYS, 0b1_0100),
        // Word 15 has an undo record, too; word 42 is of line 5.
        RedoWords(3, vec![(at(15), 31), (at(42), 32)]),
        RedoWords(2, vec![(at(42), 33), (at(43), 34), (at(44), 35)]),
    ];
    put_records(&medium, &records, 0x50);
    let shelf = Shelf::open(open_pool(&medium).unwrap());
    assert_eq!(shelf.pool.recovery().records_undone, 7);
    assert_eq!(shelf.volume().read_only_reason(), None);
    assert_eq!(shelf.volume().size_bytes().unwrap(), 4096);
    let line = |line: u64| medium.load_word(PoolOffset(at(8 * line)));
    let all = |byte: u8| u64::from_le_bytes([byte; 8]);
    assert_eq!([line(0), line(2), line(4)], [all(0x50), all(0x51), all(0x52)]);
    let words = |places: [u64; 6]| places.map(|word| medium.load_word(PoolOffset(at(word))));
    assert_eq!(words([8, 9, 15, 42, 43, 44]), [21, NEW, 31, 32, 34, 35]);
    assert_eq!(line(3), NEW, "what has no record is as it was");
}

#[test]
fn second_recovery_finds_nothing() {
    let medium = killed_pool();
    let completed = |medium: &SimMedium| {
        [COMPLETED_A_AT, COMPLETED_B_AT]
            .map(|at| decode_word(medium.load_word(HEADERS[0].plus(at))).unwrap())
    };
    let before = completed(&medium);
    put_records(
        &medium,
        &[Made::Lines(NOBODYS, 1), Made::Words(vec![(word_in(NOBODYS, 9), 3)])],
        1,
    );
    let mut image = Vec::new();
    for (round, undone) in [(1, 2), (2, 0), (3, 0)] {
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        assert_eq!(shelf.pool.recovery().records_undone, undone, "in round {round}");
        assert_eq!(completed(&medium), before.map(|epoch| epoch + 2 * round));
        assert_eq!(shelf.volume().current_epoch(), before[0] + 2 * round + 1);
        assert_eq!(shelf.volume().completed_epoch(), before[0] + 2 * round);
        let data = medium.image()[4 * 4096..].to_vec();
        assert!(image.is_empty() || image == data, "round {round} changed something");
        image = data;
    }
}

/// Records with a poisoned target restore nothing there: a store there would be the last one.
#[test]
fn recovery_skips_poisoned_ranges() {
    for records in [
        vec![Made::Lines(NOBODYS, 0b10)],
        vec![Made::Words(vec![(word_in(NOBODYS, 9), 3)])],
        vec![Made::Redo(0, NOBODYS, 0b10)],
        vec![Made::RedoWords(0, vec![(word_in(NOBODYS, 9), 3)])],
    ] {
        let medium = killed_pool();
        put_records(&medium, &records, 0x50);
        medium.inject_poison(NOBODYS.offset().plus(64), 64);
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        assert!(medium.check().is_ok() && shelf.volume().read_only_reason().is_none());
        shelf.put(0, 64, 1).unwrap();
        shelf.volume().flush().unwrap();
    }
}

/// Contents that a crash may leave.
type Allowed = Vec<Contents>;

/// Explores `run` on a shelf with a block at place 0; `run` notes the contents that each crash may leave.
fn explored(explorer: &Explorer, run: impl Fn(&Shelf<SimMedium>, &Log<Allowed>)) -> String {
    let scenario = Closures::new(
        |medium, log: &Log<Allowed>| {
            log.note(vec![contents_on(medium)]);
            run(&Shelf::open(open_pool(medium).unwrap()), log);
        },
        |medium| Ok(Shelf::open(open_pool(medium).map_err(|error| error.to_string())?)),
        |shelf, crash| {
            let found = shelf.contents()?;
            let allowed = &crash.events.last().expect("noted before the opening").event;
            if !allowed.contains(&found) {
                return Err(format!("found {found:?}, not one of {allowed:?}"));
            }
            sound(&shelf)?;
            shelf.put(9, 256, 0xee).map_err(|error| error.to_string())?;
            sound(&shelf)
        },
    )
    .medium_len(BLOCKS * BLOCK_U64)
    .prepared(|medium| {
        let shelf = Shelf::make(medium, 1);
        shelf.put(0, 64, 1).unwrap();
        shelf.put(1, 256, 1).unwrap();
        shelf.volume().flush().unwrap();
    });
    explorer.explore(&scenario).unwrap_or_else(|failure| panic!("{failure}")).to_string()
}

/// Writes in a sealed epoch, in the next epoch before the first is flushed, and after.
fn two_open_epochs(shelf: &Shelf<SimMedium>, log: &Log<Allowed>) {
    let before = shelf.contents().unwrap();
    shelf.touch(0, 2).unwrap();
    shelf.put(2, 64, 2).unwrap();
    let first = shelf.contents().unwrap();
    log.note(vec![before, first.clone()]);
    let guard = shelf.volume().lock_checkpoint();
    let sealed = shelf.volume().begin_checkpoint(&guard).unwrap();
    // The same line, the same words, and a block that the sealed epoch has allocated.
    shelf.touch(0, 3).unwrap();
    shelf.touch(2, 3).unwrap();
    shelf.remove(1).unwrap();
    sealed.finish().unwrap();
    drop(guard);
    log.note(vec![first.clone()]);
    let second = shelf.contents().unwrap();
    log.note(vec![first, second.clone()]);
    shelf.volume().flush().unwrap();
    log.note(vec![second]);
}

#[test]
fn recovery_undoes_two_open_epochs() {
    println!("{}", explored(&few(), two_open_epochs));
}

#[test]
fn recovery_is_idempotent_after_crashes() {
    let explorer = Explorer {
        seed: crash_seed(),
        points_max: 10,
        runs_max: 3,
        samples: 2,
        nested_depth: 2,
        nested_images_max: 2,
        nested_points_max: 12,
        nested_runs_max: 3,
        ..Explorer::default()
    };
    println!("{}", explored(&explorer, two_open_epochs));
}

/// A FUA fast-path write by the rules: the record of the new bytes, a fence, the stores.
fn write_durably(shelf: &Shelf<SimMedium>, place: u64, value: u8) {
    let (at, line) = (shelf.thing_at(place), [value; 64]);
    let _op = shelf.volume().begin_op();
    assert!(shelf.volume().fua_fast_path_allowed(shelf.word_at(place), Some(at.block())));
    let mut writer = shelf.volume().join().unwrap();
    let lines = LineMask::covering(at.in_block(), 64);
    writer.log_redo(at.block(), lines, at.in_block(), &line).unwrap();
    writer.commit().unwrap().store(at, &line);
}

#[test]
fn redo_record_survives_undo_around_it() {
    let with = |shelf: &Shelf<SimMedium>, value| {
        let mut contents = shelf.contents().unwrap();
        contents.insert(0, (64, value, value));
        contents
    };
    let run = |shelf: &Shelf<SimMedium>, log: &Log<Allowed>| {
        let (old, new) = (shelf.contents().unwrap(), with(shelf, 7));
        log.note(vec![old, new.clone()]);
        write_durably(shelf, 0, 7);
        log.note(vec![new.clone()]);
        // In the same epoch, to be undone: another thing.
        shelf.put(3, 2048, 4).unwrap();
        let newer = with(shelf, 8);
        let newest = {
            let mut contents = newer.clone();
            contents.remove(&3);
            contents
        };
        log.note(vec![new, newest.clone()]);
        write_durably(shelf, 0, 8);
        log.note(vec![newest]);
    };
    println!("{}", explored(&few(), run));
}

#[test]
fn fua_fast_path_refuses_undoable_blocks() {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let shelf = Shelf::make(&medium, 1);
    shelf.put(0, 64, 1).unwrap();
    shelf.put(1, 1 << 14, 1).unwrap();
    let allowed = |place| {
        let block = shelf.thing_at(place).block();
        shelf.volume().fua_fast_path_allowed(shelf.word_at(place), Some(block))
    };
    assert!(!allowed(1), "the run is fresh");
    shelf.volume().flush().unwrap();
    assert!(allowed(0) && allowed(1));
    shelf.touch(1, 2).unwrap();
    assert!(!allowed(1) && allowed(0), "a line of the block has a record");
    let guard = shelf.volume().lock_checkpoint();
    let sealed = shelf.volume().begin_checkpoint(&guard).unwrap();
    assert!(!allowed(1), "of the sealed epoch");
    sealed.finish().unwrap();
    drop(guard);
    assert!(allowed(1));
    shelf.remove(0).unwrap();
    assert!(!shelf.volume().fua_fast_path_allowed(shelf.word_at(0), None), "the word has a record");
    assert!(shelf.volume().word_logged_in_open(shelf.word_at(0)));
    shelf.volume().flush().unwrap();
    assert!(shelf.volume().fua_fast_path_allowed(shelf.word_at(0), None));
    let power_cut = Arc::new(medium.crash_state().boot(Plan::nothing()));
    assert_eq!(Shelf::open(open_pool(&power_cut).unwrap()).contents().unwrap().len(), 1);
}
