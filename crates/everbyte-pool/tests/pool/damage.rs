//! Damage made by hand: the report of a check, a scrub and a repair for each sort, by structure and address,
//! and the parts they leave unchanged.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{
    COMPLETED_A_AT, COMPLETED_B_AT, DESCRIPTOR_AT, Entry, ROOT_AT, SIZE_AT, STATE_AT,
    SUPERBLOCK_COPIES, Superblock, VolumeKind, encode_word,
};
use everbyte_pool::{
    Claim, Corrupt, Kind, Kinds, NewRoot, OpenOptions, Pool, PoolError, VolumeSpec, VolumeView,
    WriteError, repair,
};

use crate::shelf::{Contents, SHELF, Shelf, kinds, open_pool};
use crate::superblock::{change_superblock, superblock};

const BLOCKS: u64 = 96;
/// The headers of the shelf "s", of the volume "t", and of none.
const HEADERS: [u64; 3] = [2 * BLOCK_U64, 3 * BLOCK_U64, 4 * BLOCK_U64];

/// A pool with the shelf "s", with two blocks and a run, and the empty shelf "t", shut down or killed.
fn image(is_closed: bool) -> Vec<u8> {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    Pool::format(&*medium, 3, [1; 16]).unwrap();
    let pool = open_pool(&medium).unwrap();
    for name in ["s", "t"] {
        let mut spec = VolumeSpec::new(name, SHELF, 4096);
        (spec.lanes, spec.log_bytes) = (1, Some(32 << 10));
        pool.create_volume(&spec, NewRoot::Blocks(&[0; 4096])).unwrap();
    }
    let shelf = Shelf::open(pool);
    for (place, bytes) in [(0, 64), (1, 256), (2, 1 << 14)] {
        shelf.put(place, bytes, 1).unwrap();
    }
    shelf.volume().flush().unwrap();
    if is_closed {
        shelf.pool.close().unwrap();
    }
    drop(shelf);
    medium.image()
}

fn contents() -> Contents {
    [(0, 64), (1, 256), (2, 1 << 14)].map(|(place, bytes)| (place, (bytes, 1, 1))).into()
}

fn medium(is_closed: bool) -> Arc<SimMedium> {
    Arc::new(SimMedium::from_image(image(is_closed)))
}

/// Returns the offset of the table of the volume with this header.
fn table(medium: &SimMedium, header: u64) -> PoolOffset {
    let root = Entry::decode(medium.load_word(PoolOffset(header + ROOT_AT)));
    root.unwrap().unwrap().block.offset()
}

fn flip(medium: &SimMedium, at: u64) {
    let word = PoolOffset(at / 8 * 8);
    medium.store_word(word, medium.load_word(word) ^ 1 << (at % 8 * 8));
}

fn problems(medium: &Arc<SimMedium>) -> Vec<String> {
    open_pool(medium).unwrap().check().unwrap().problems
}

#[test]
fn repair_of_sound_pool_changes_nothing() {
    for is_closed in [true, false] {
        let whole = medium(is_closed);
        let before = whole.image();
        assert_eq!(repair(&*whole, &kinds()).unwrap(), Vec::<String>::new());
        assert!(whole.image() == before, "closed: {is_closed}");
        let shelf = Shelf::open(open_pool(&whole).unwrap());
        let report = shelf.pool.check().unwrap();
        assert!(report.is_clean() && report.remarks.is_empty(), "{report:?}");
        // Two logs, two tables, two blocks, and a run.
        let used = 2 * 8 + 2 + 2 + 4;
        assert_eq!((report.volumes, report.used_blocks), (2, used));
        assert_eq!(report.free_blocks, BLOCKS - 5 - used);
        let scrub = shelf.pool.scrub();
        // Superblocks, the whole table of volumes, and the logs.
        assert_eq!((scrub.read_bytes, scrub.findings), ((2 + 3 + 16) * BLOCK_U64, vec![]));
    }
}

/// Damage of a doubled structure, by its address, and the start of its finding.
const TWICE: [(&str, u64); 8] = [
    ("superblock at 0x0 is corrupt: its checksum is wrong", 56),
    ("superblock at 0x1000 is corrupt: it does not begin with EVERBYTE", 4096),
    ("checkpoint record at 0x2040 is corrupt: its check bits", HEADERS[0] + COMPLETED_A_AT),
    ("checkpoint record at 0x3080 is corrupt: its check bits", HEADERS[1] + COMPLETED_B_AT),
    ("volume descriptor at 0x2400 is corrupt: its checksum", HEADERS[0] + DESCRIPTOR_AT[0] + 90),
    ("volume descriptor at 0x3800 is corrupt: its checksum", HEADERS[1] + DESCRIPTOR_AT[1] + 127),
    ("volume state at 0x4000 is corrupt: its check bits", HEADERS[2] + STATE_AT + 3),
    ("saved allocator state at 0x", u64::MAX),
];

/// The saved allocator state has no fixed place.
fn address(medium: &SimMedium, at: u64) -> u64 {
    let saved = superblock(medium, 0).saved_start * BLOCK_U64;
    if at == u64::MAX { saved + 8 } else { at }
}

#[test]
fn repair_rewrites_damaged_copy() {
    for (finding, at) in TWICE {
        let damaged = medium(true);
        flip(&damaged, address(&damaged, at));
        let mended = repair(&*damaged, &kinds()).unwrap();
        assert_eq!(mended.len(), 1, "{finding}: {mended:?}");
        assert!(mended[0].starts_with(finding), "{finding}: {mended:?}");
        let after = damaged.image();
        assert_eq!(repair(&*damaged, &kinds()).unwrap(), Vec::<String>::new(), "{finding}");
        assert!(damaged.image() == after);
        let shelf = Shelf::open(open_pool(&damaged).unwrap());
        assert!(shelf.pool.recovery().remarks.is_empty(), "{finding}");
        assert_eq!(shelf.contents().unwrap(), contents(), "{finding}");
        let report = shelf.pool.check().unwrap();
        assert!(report.is_clean() && report.used_blocks == 24, "{finding}: {report:?}");
        assert!(shelf.pool.scrub().findings.is_empty(), "{finding}");
    }
}

/// Without a repair: a scrub finds damage that an opening does not rewrite.
#[test]
fn scrub_names_each_damaged_copy() {
    let cases = [
        (HEADERS[0] + COMPLETED_A_AT, Some("s"), "checkpoint record"),
        (HEADERS[1] + COMPLETED_B_AT, Some("t"), "checkpoint record"),
        (HEADERS[0] + DESCRIPTOR_AT[0], Some("s"), "volume descriptor"),
        (HEADERS[1] + DESCRIPTOR_AT[1], Some("t"), "volume descriptor"),
        (HEADERS[0] + STATE_AT, Some("s"), "volume state"),
        (HEADERS[1] + ROOT_AT, Some("t"), "volume root"),
        (HEADERS[0] + SIZE_AT, Some("s"), "volume size"),
        (HEADERS[0] + 208, Some("s"), "checksum root"),
        (SUPERBLOCK_COPIES[0].0, None, "superblock"),
        (SUPERBLOCK_COPIES[1].0, None, "superblock"),
    ];
    for (at, volume, structure) in cases {
        let medium = medium(true);
        // Beneath an open pool, which has read them.
        let pool = open_pool(&medium).unwrap();
        assert_eq!(pool.scrub().findings, vec![]);
        flip(&medium, at);
        let findings = pool.scrub().findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        let found = &findings[0];
        assert_eq!((found.volume.as_deref(), found.structure.as_str()), (volume, structure));
        assert_eq!((found.at, found.offset), (PoolOffset(at), None));
    }
    let medium = medium(true);
    let pool = open_pool(&medium).unwrap();
    change_superblock(&*medium, 1, |sb| sb.generation -= 1);
    let findings = pool.scrub().findings;
    assert_eq!((findings.len(), findings[0].what.as_str()), (1, "it is not the newest"));
}

#[test]
fn scrub_reads_all_metadata_lines() {
    let whole = medium(true);
    let logs: Vec<u64> = {
        let pool = open_pool(&Arc::new(SimMedium::from_image(whole.image()))).unwrap();
        pool.volumes().iter().map(|volume| volume.descriptor().log_start * BLOCK_U64).collect()
    };
    let cases = [
        (4032, None, "superblock", 0),
        (4096 + 2048, None, "superblock", 4096),
        (HEADERS[0] + 4032, None, "volume header", HEADERS[0]),
        (HEADERS[2] + 64, None, "volume header", HEADERS[2]),
        (logs[0] + 8 * BLOCK_U64 - 64, Some("s"), "log", logs[0] + 7 * BLOCK_U64),
        (logs[1], Some("t"), "log", logs[1]),
    ];
    for (line, volume, structure, block) in cases {
        let medium = Arc::new(SimMedium::from_image(whole.image()));
        let pool = open_pool(&medium).unwrap();
        medium.inject_poison(PoolOffset(line), 1);
        assert!(!medium.has_poison(), "nobody has looked yet");
        let findings = pool.scrub().findings;
        assert_eq!(findings.len(), 1, "{line:#x}: {findings:?}");
        let found = &findings[0];
        assert_eq!((found.volume.as_deref(), found.structure.as_str()), (volume, structure));
        assert_eq!(found.at, PoolOffset(block));
        assert!(found.what.contains(&format!("{line:#x}")), "{found:?}");
        // And the check names the structure there.
        let named = pool.check().unwrap().problems.join("; ");
        let holds = match structure {
            "log" => format!("the log of volume {}", volume.unwrap()),
            "superblock" => format!("superblock copy {}", block / BLOCK_U64),
            _ if block == HEADERS[0] => "the header of volume s".to_owned(),
            _ => "volume header 2".to_owned(),
        };
        assert!(named.contains(&format!("{line:#x}")) && named.contains(&holds), "{named}");
    }
}

/// Damage of a single structure, the parts usable after a kill and an opening, and the report of the check.
struct Once {
    damage: fn(&SimMedium),
    finding: &'static str,
    /// True if "s" can be opened.
    opens: bool,
}

#[test]
fn repair_reports_unrepairable_damage() {
    let cases = [
        Once {
            damage: |medium| flip(medium, HEADERS[0] + STATE_AT),
            finding: "volume state at 0x2000 is corrupt: its check bits are wrong",
            opens: false,
        },
        Once {
            damage: |medium| medium.store_word(PoolOffset(HEADERS[0]), encode_word(3)),
            finding: "volume state at 0x2000",
            opens: false,
        },
        Once {
            damage: |medium| DESCRIPTOR_AT.iter().for_each(|copy| flip(medium, HEADERS[0] + copy)),
            finding: "volume descriptor at 0x2400 is corrupt: its checksum is wrong",
            opens: false,
        },
        Once {
            damage: |medium| flip(medium, HEADERS[0] + ROOT_AT),
            finding: "shelf at 0x20c0 is corrupt: it has no table",
            opens: false,
        },
        Once {
            damage: |medium| flip(medium, HEADERS[0] + SIZE_AT),
            finding: "volume size at 0x20c8 is corrupt: its check bits are wrong",
            opens: true,
        },
        Once {
            damage: |medium| {
                flip(medium, HEADERS[0] + COMPLETED_A_AT);
                flip(medium, HEADERS[0] + COMPLETED_B_AT);
            },
            finding: "checkpoint record at 0x2040 is corrupt",
            opens: true,
        },
    ];
    for Once { damage, finding, opens } in cases {
        let medium = medium(false);
        damage(&medium);
        let before = medium.image();
        assert_eq!(repair(&*medium, &kinds()).unwrap(), Vec::<String>::new(), "{finding}");
        assert!(medium.image() == before);
        let pool = open_pool(&medium).unwrap();
        let found = pool.check().unwrap().problems.join("; ");
        assert!(found.contains(finding), "{found}");
        assert!(found.contains("which blocks are free is unknown"), "{found}");
        assert!(pool.recovery().remarks.join("; ").contains(finding));
        assert_eq!(pool.volume("t").unwrap().read_only_reason(), None, "{finding}");
        assert_eq!(pool.info().free_bytes, 0);
        if opens {
            let shelf = Shelf::open(pool);
            assert_eq!(shelf.contents().unwrap(), contents(), "{finding}");
            assert!(matches!(shelf.volume().join(), Err(WriteError::ReadOnly { .. })));
        }
    }
}

#[test]
fn double_ownership_makes_pool_read_only() {
    let medium = medium(false);
    let (of_s, of_t) = (table(&medium, HEADERS[0]), table(&medium, HEADERS[1]));
    let run = medium.load_word(of_s.plus(16));
    medium.store_word(of_t.plus(40), run);
    let pool = open_pool(&medium).unwrap();
    let reason = pool.read_only_reason().unwrap();
    assert!(reason.contains("map of volume t") && reason.contains("of volume s"), "{reason}");
    let named = [of_s.plus(16), of_t.plus(40)].map(|at| at.to_string());
    assert!(named.iter().all(|at| reason.contains(at)), "{reason}");
    assert!(
        matches!(pool.take_run("a test", 1), Err(PoolError::NoSpace { .. }))
            || pool.read_only_reason().is_some()
    );
    let found = pool.check().unwrap().problems.join("; ");
    assert!(named.iter().all(|at| found.contains(at)), "{found}");
}

#[test]
fn leaked_and_doubly_free_blocks_are_found() {
    let whole = medium(true);
    let shelf = Shelf::open(open_pool(&whole).unwrap());
    let table = shelf.word_at(0).block();
    let leaked = shelf.pool.take_run("a test", 25).unwrap();
    shelf.pool.return_run(everbyte_pool::BlockRun { start: table, len: 1 });
    let problems = shelf.pool.check().unwrap().problems;
    let expected =
        format!("{table} at {:#x} has an owner, yet is free for others", table.offset().0);
    assert!(problems.contains(&expected), "{problems:?}");
    let leaks = problems.iter().filter(|problem| problem.ends_with("not free: it leaked")).count();
    // The first twenty are listed, the others counted.
    assert_eq!((leaks, problems.len()), (if leaked.start < table { 20 } else { 19 }, 21));
    assert!(problems[20].starts_with("6 more blocks"), "{problems:?}");
}

/// The saved state is checked against the maps by a repair alone, and dropped if it lies.
#[test]
fn repair_drops_wrong_saved_free_map() {
    type Change = fn(u64) -> u64;
    let owned = |medium: &SimMedium| table(medium, HEADERS[0]).block();
    let cases: [(Change, &str); 2] = [(|word| word, "free"), (|_| 0, "used")];
    for (_, says) in cases {
        let medium = medium(true);
        let sb = superblock(&*medium, 0);
        let saved = BlockNo(sb.saved_start).offset();
        let block = if says == "free" { owned(&medium) } else { BlockNo(BLOCKS - 1) };
        let at = saved.plus(block.0 / 64 * 8);
        medium.store_word(at, medium.load_word(at) ^ 1 << (block.0 % 64));
        let mut bytes = vec![0; usize::try_from(sb.saved_bytes).unwrap()];
        medium.read(saved, &mut bytes);
        for copy in [0, 1] {
            change_superblock(&*medium, copy, |sb| sb.saved_crc = crc32c::crc32c(&bytes));
        }
        let mended = repair(&*medium, &kinds()).unwrap();
        assert_eq!(mended.len(), 1);
        assert!(mended[0].contains(&format!("it calls {block} {says}")), "{mended:?}");
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        assert_eq!(shelf.contents().unwrap(), contents());
        assert!(shelf.pool.check().unwrap().is_clean());
    }
}

#[test]
fn corrupt_saved_free_map_is_rebuilt() {
    type Change = fn(&SimMedium, &mut Superblock);
    let cases: [(Change, &str); 3] = [
        (|_, sb| sb.saved_bytes += 8, "its size does not fit"),
        (|medium, sb| flip(medium, sb.saved_start * BLOCK_U64 + 3), "its checksum is wrong"),
        (
            |medium, sb| {
                let at = BlockNo(sb.saved_start).offset();
                medium.store_word(at, medium.load_word(at) | 1 << 3);
                let mut bytes = vec![0; usize::try_from(sb.saved_bytes).unwrap()];
                medium.read(at, &mut bytes);
                sb.saved_crc = crc32c::crc32c(&bytes);
            },
            "blocks free that are not the allocator's",
        ),
    ];
    for (change, expected) in cases {
        let medium = medium(true);
        let mut sb = superblock(&*medium, 0);
        change(&medium, &mut sb);
        for copy in [0, 1] {
            change_superblock(&*medium, copy, |now| *now = sb);
        }
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        let remarks = shelf.pool.recovery().remarks.join("; ");
        assert!(
            remarks.contains(expected) && remarks.contains("rebuilt from the maps"),
            "{remarks}"
        );
        assert!(shelf.pool.check().unwrap().is_clean());
        shelf.put(7, 1 << 14, 7).unwrap();
        assert_eq!(shelf.contents().unwrap().len(), 4);
    }
}

/// A kind of volumes without a log.
struct Plain;

const PLAIN: VolumeKind = VolumeKind(79);

impl Kind<SimMedium> for Plain {
    fn kind(&self) -> VolumeKind {
        PLAIN
    }

    fn name(&self) -> &'static str {
        "plain"
    }

    fn has_log(&self) -> bool {
        false
    }

    fn visit(&self, _: &SimMedium, _: &VolumeView<'_>, _: &mut Claim<'_>) -> Result<(), Corrupt> {
        Ok(())
    }
}

#[test]
fn volume_has_log_as_its_kind_requires() {
    let open = |medium: &Arc<SimMedium>, kinds| {
        let options = OpenOptions { capacity_blocks: BLOCKS };
        Pool::open(Arc::clone(medium), kinds, &options).unwrap()
    };
    let plain = || kinds().and(Kinds::new([Arc::new(Plain) as _]));
    let medium = medium(true);
    let pool = open(&medium, plain());
    let mut spec = VolumeSpec::new("plain", PLAIN, 512);
    // The specification of a log is ignored.
    (spec.lanes, spec.log_bytes) = (4000, Some(1));
    let free = pool.info().free_bytes;
    let volume = pool.create_volume(&spec, NewRoot::Empty).unwrap();
    assert!(!volume.descriptor().has_log());
    assert_eq!((pool.info().free_bytes, pool.volume_info(&volume).log_bytes), (free, 0));
    assert!(matches!(volume.join(), Err(WriteError::NoLog)));
    volume.flush().unwrap();
    assert!(pool.check().unwrap().is_clean());
    pool.close().unwrap();
    let pool = open(&medium, plain());
    assert_eq!(pool.volumes().len(), 3);
    assert!(pool.recovery().was_clean && pool.recovery().remarks.is_empty());
    pool.close().unwrap();
    // Descriptors that contradict their kinds: the shelf of which a kind without log is said.
    let at = PoolOffset(HEADERS[0]);
    for copy in DESCRIPTOR_AT {
        let mut bytes = [0; 128];
        medium.read(at.plus(copy), &mut bytes);
        bytes[8..12].copy_from_slice(&PLAIN.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        medium.store(at.plus(copy), &bytes);
    }
    let pool = open(&medium, plain());
    let found = pool.check().unwrap().problems.join("; ");
    assert!(found.contains("whether it has a log is not as its kind says"), "{found}");
    assert!(pool.volume("s").is_err() && pool.volume("t").is_ok());
}

#[test]
fn crashed_repair_can_be_repeated() {
    use everbyte_crash::{Closures, Explorer};
    let scenario = Closures::new(
        |medium, _log: &everbyte_crash::Log<()>| {
            assert_eq!(repair(&**medium, &kinds()).unwrap().len(), 4);
        },
        |medium| {
            repair(&**medium, &kinds()).map_err(|error| error.to_string())?;
            let pool = open_pool(medium).map_err(|error| error.to_string())?;
            Ok(Shelf::open(pool))
        },
        |shelf, _| {
            let problems = shelf.pool.check().map_err(|error| error.to_string())?.problems;
            let findings = shelf.pool.scrub().findings;
            if problems.is_empty() && findings.is_empty() && shelf.contents()? == contents() {
                return Ok(());
            }
            Err(format!("{problems:?}, {findings:?}"))
        },
    )
    .medium_len(BLOCKS * BLOCK_U64)
    .prepared(|medium| {
        medium.store(PoolOffset(0), &image(true));
        for at in [0, 2, 4, 7].map(|case: usize| TWICE[case].1) {
            flip(medium, address(medium, at));
        }
    });
    let explorer =
        Explorer { runs_max: 6, nested_points_max: 6, nested_runs_max: 3, ..Explorer::default() };
    println!("{}", explorer.explore(&scenario).unwrap_or_else(|failure| panic!("{failure}")));
}

#[test]
fn check_of_killed_pool_reports_its_maps() {
    assert_eq!(problems(&medium(false)), Vec::<String>::new());
    let medium = medium(false);
    let at = table(&medium, HEADERS[0]).plus(8);
    // The block of place 0 once more.
    medium.store_word(at, medium.load_word(table(&medium, HEADERS[0])));
    let found = problems(&medium).join("; ");
    assert!(found.contains(&at.to_string()), "{found}");
    assert!(found.contains("belong to someone else already"), "{found}");
}
