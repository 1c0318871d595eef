//! Repair: the repairs of each structure, the parts left unchanged and their reports, and no further damage
//! from any interruption.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_crash::{Closures, Explorer, SimMedium};
use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_pool::format::{
    CHECKSUM_ROOT_AT, COMPLETED_A_AT, COMPLETED_B_AT, DESCRIPTOR_AT, Entry, ROOT_AT, SIZE_AT,
    STATE_AT, SUPERBLOCK_COPIES, Superblock,
};
use everbyte_pool::{OpenOptions, Pool, PoolError, repair};
use zerocopy::{FromBytes, IntoBytes};

use crate::pattern;

const POOL_BLOCKS: u64 = 128;
const BLOCKS: u64 = 16;
/// The header of `v`; the header of `other` follows, then two unused ones.
const HEADER: u64 = 2 * 4096;
const NAMES: [&str; 2] = ["v", "other"];

fn open<M: Medium>(medium: &Arc<M>) -> Result<Arc<Pool<M>>, PoolError> {
    let options = OpenOptions { capacity_blocks: POOL_BLOCKS };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new)
}

fn content(block: u64) -> Vec<u8> {
    pattern(block + 1, 4096)
}

/// A pool with `v`, with checksums, and `other`, without. Cleanly shut down if `closed`, otherwise with
/// records of two epochs.
fn image(closed: bool) -> Vec<u8> {
    let medium = Arc::new(mapped(&vec![0; index(POOL_BLOCKS) * 4096]));
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let pool = open(&medium).unwrap();
    for (name, checksum) in [("v", Checksum::Crc32c), ("other", Checksum::None)] {
        let log_bytes = Some(2 * 16384);
        let options = BlockOptions {
            delta: Delta::On,
            checksum,
            threshold_percent: 50,
            log_bytes,
            lanes: 1,
            checkpoint_lines: 0,
        };
        let volume = BlockVolume::create(&pool, name, BLOCKS * 4096, &options).unwrap();
        for block in 0..BLOCKS {
            volume.write(block * 4096, &content(block), Fua::No).unwrap();
        }
        volume.flush().unwrap();
        if !closed {
            volume.write(100, &[1; 100], Fua::No).unwrap();
        }
    }
    if closed {
        pool.close().unwrap();
    }
    bytes_of(&*medium)
}

fn mapped(image: &[u8]) -> Mapped {
    let medium = Mapped::anonymous(image.len() as u64, &MediaOptions::new()).unwrap();
    medium.store(PoolOffset(0), image);
    medium
}

fn bytes_of<M: Medium>(medium: &M) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(medium.len()).unwrap()];
    medium.read(PoolOffset(0), &mut bytes);
    bytes
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

/// Offsets of the structures of an image.
struct Places {
    leaf: u64,
    other_leaf: u64,
    slots: u64,
    data: Vec<u64>,
    saved: std::ops::Range<u64>,
}

fn places(image: &[u8]) -> Places {
    let word = |at: u64| u64::from_le_bytes(image[index(at)..][..8].try_into().unwrap());
    let named = |at| Entry::decode(word(at)).unwrap().unwrap().block.offset().0;
    let leaf = named(HEADER + ROOT_AT);
    let (sb, _) = Superblock::read_from_prefix(image).unwrap();
    Places {
        leaf,
        other_leaf: named(HEADER + 4096 + ROOT_AT),
        slots: named(HEADER + CHECKSUM_ROOT_AT),
        data: (0..BLOCKS).map(|block| named(leaf + 8 * block)).collect(),
        saved: sb.saved_start * 4096..sb.saved_start * 4096 + sb.saved_bytes,
    }
}

/// Reports of a repair and of the check and the scrub after it.
struct Found {
    mended: Vec<String>,
    /// Problems of a check and a scrub of the repaired pool, remarks included.
    told: Vec<String>,
    /// True if check and scrub find nothing wrong.
    clean: bool,
    /// Unreadable blocks, by volume; all blocks of an unopenable volume.
    lost: BTreeSet<(&'static str, u64)>,
    /// Unopenable volumes.
    closed: Vec<&'static str>,
}

/// Repairs `image`, twice, and inspects all of it. Bytes that read wrong are a failure.
fn repaired(image: &[u8]) -> Result<Found, PoolError> {
    let medium = Arc::new(mapped(image));
    let mended = repair(&*medium, &kinds())?;
    let after = bytes_of(&*medium);
    assert_eq!(after == image, mended.is_empty(), "{mended:?}");
    assert_eq!(repair(&*medium, &kinds())?, Vec::<String>::new(), "there was more to mend");
    assert!(bytes_of(&*medium) == after, "a second repair changed something");
    let pool = open(&medium)?;
    let report = pool.check()?;
    let mut clean = report.is_clean();
    let mut told = report.problems;
    told.extend(report.remarks);
    let mut findings = pool.scrub().findings;
    let (mut lost, mut closed) = (BTreeSet::new(), Vec::new());
    for name in NAMES {
        let Ok(volume) = BlockVolume::open(&pool, name) else {
            closed.push(name);
            lost.extend((0..BLOCKS).map(|block| (name, block)));
            continue;
        };
        findings.extend(volume.scrub(0).unwrap().0.findings);
        for block in 0..BLOCKS {
            let mut bytes = vec![0; 4096];
            match volume.read(block * 4096, &mut bytes) {
                Ok(()) => assert!(bytes == content(block), "{name}, block {block} reads wrong"),
                Err(_) => _ = lost.insert((name, block)),
            }
        }
    }
    clean &= findings.is_empty();
    told.extend(findings.iter().map(|found| format!("{found:?} at {}", found.at)));
    Ok(Found { mended, told, clean, lost, closed })
}

fn flip(image: &mut [u8], at: u64, bit: u32) {
    image[index(at) + bit as usize / 8] ^= 1 << (bit % 8);
}

#[test]
fn repair_of_sound_volume_changes_nothing() {
    for closed in [true, false] {
        let image = image(closed);
        let medium = mapped(&image);
        assert_eq!(repair(&medium, &kinds()).unwrap(), Vec::<String>::new());
        assert!(bytes_of(&medium) == image, "closed: {closed}");
    }
}

#[test]
fn repair_restores_redundant_structures() {
    let sound = image(true);
    let saved = places(&sound).saved.start;
    let copies = [
        ("superblock at 0x0", SUPERBLOCK_COPIES[0].0 + 56),
        ("superblock at 0x1000", SUPERBLOCK_COPIES[1].0),
        ("checkpoint record at 0x2040", HEADER + COMPLETED_A_AT),
        ("checkpoint record at 0x2080", HEADER + COMPLETED_B_AT),
        ("volume descriptor at 0x2400", HEADER + DESCRIPTOR_AT[0] + 16),
        ("volume descriptor at 0x2800", HEADER + DESCRIPTOR_AT[1] + 120),
        ("volume state at 0x4000", HEADER + 2 * 4096 + STATE_AT),
        ("saved allocator state at", saved + 8),
    ];
    for (name, at) in copies {
        let mut damaged = sound.clone();
        flip(&mut damaged, at, 6);
        let found = repaired(&damaged).unwrap();
        assert_eq!(found.mended.len(), 1, "{name}: {:?}", found.mended);
        assert!(found.mended[0].starts_with(name), "{name}: {:?}", found.mended);
        assert!(found.clean && found.lost.is_empty(), "{name}: {:?}", found.told);
    }
}

#[test]
fn repair_reports_lost_structures() {
    let sound = image(true);
    let places = places(&sound);
    let (v, other) = (HEADER, HEADER + 4096);
    let all = |name| (0..BLOCKS).map(|block| (name, block)).collect::<Vec<_>>();
    let slot = places.slots + places.data[5] / 4096 * 8;
    // Text that names it, bytes to flip, blocks that are lost.
    type Case = (&'static str, Vec<u64>, Vec<(&'static str, u64)>);
    let cases: Vec<Case> = vec![
        ("volume state at 0x2000", vec![v + STATE_AT], all("v")),
        ("checkpoint record at 0x2040", vec![v + COMPLETED_A_AT, v + COMPLETED_B_AT], vec![]),
        ("volume descriptor at", vec![v + DESCRIPTOR_AT[0], v + DESCRIPTOR_AT[1]], all("v")),
        ("map entry at 0x20c0", vec![v + ROOT_AT], all("v")),
        ("map entry at 0x30c0", vec![other + ROOT_AT], all("other")),
        ("volume size at 0x20c8", vec![v + SIZE_AT], all("v")),
        ("map entry at 0x20d0", vec![v + CHECKSUM_ROOT_AT], all("v")),
        ("offset: Some(12288)", vec![places.leaf + 3 * 8], vec![("v", 3)]),
        ("offset: Some(12288)", vec![places.other_leaf + 3 * 8], vec![("other", 3)]),
        ("offset: Some(20480)", vec![slot], vec![("v", 5)]),
        ("offset: Some(28672)", vec![places.data[7] + 99], vec![("v", 7)]),
    ];
    for (name, flips, lost) in cases {
        let mut damaged = sound.clone();
        flips.iter().for_each(|&at| flip(&mut damaged, at, 5));
        let found = repaired(&damaged).unwrap();
        assert_eq!(found.mended, Vec::<String>::new(), "{name}");
        assert!(!found.clean, "{name}");
        assert!(found.told.iter().any(|told| told.contains(name)), "{name}: {:?}", found.told);
        assert_eq!(found.lost, lost.into_iter().collect(), "{name}: {:?}", found.told);
    }
    let mut damaged = sound;
    SUPERBLOCK_COPIES.iter().for_each(|at| flip(&mut damaged, at.0 + 60, 0));
    let medium = mapped(&damaged);
    let error = repair(&medium, &kinds()).unwrap_err().to_string();
    assert!(error.contains("superblock at 0x0 is corrupt"), "{error}");
    assert!(bytes_of(&medium) == damaged);
}

/// The image with the saved free map changed by `change`, and every checksum right.
fn with_saved(image: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut image = image.to_vec();
    let at = places(&image).saved;
    let saved = &mut image[index(at.start)..index(at.end)];
    change(saved);
    let crc = crc32c::crc32c(saved);
    let (mut sb, _) = Superblock::read_from_prefix(&image).unwrap();
    sb.saved_crc = crc;
    for at in SUPERBLOCK_COPIES {
        let bytes = &mut image[index(at.0)..][..size_of::<Superblock>()];
        bytes.copy_from_slice(sb.sealed().as_bytes());
    }
    image
}

#[test]
fn repair_frees_leaked_blocks() {
    let sound = image(true);
    let last = index(POOL_BLOCKS) / 8 - 1;
    let data = index(places(&sound).data[0]) / 4096;
    let leak = with_saved(&sound, |saved| saved[last] &= 0x7F);
    let twice = with_saved(&sound, |saved| saved[data / 8] |= 1 << (data % 8));
    for (image, what) in [(leak, "which nobody owns"), (twice, "which has an owner")] {
        assert!(!open(&Arc::new(mapped(&image))).unwrap().check().unwrap().is_clean());
        let found = repaired(&image).unwrap();
        assert!(found.mended[0].contains(what), "{:?}", found.mended);
        assert!(found.clean && found.lost.is_empty(), "{:?}", found.told);
    }
}

#[test]
fn repair_keeps_block_with_two_owners() {
    let mut image = image(true);
    let Places { leaf, other_leaf, .. } = places(&image);
    let entry = image[index(leaf)..][..8].to_vec();
    image[index(other_leaf) + 8..][..8].copy_from_slice(&entry);
    let medium = Arc::new(mapped(&image));
    let named = |p: &String| p.contains("belong to someone else already");
    // It follows that the saved state is invalid: no program may use it.
    let mended = repair(&*medium, &kinds()).unwrap();
    assert!(mended.len() == 1 && named(&mended[0]), "{mended:?}");
    assert!(mended[0].starts_with("saved allocator state"), "{mended:?}");
    assert_eq!(repair(&*medium, &kinds()).unwrap(), Vec::<String>::new());
    let entry = u64::from_le_bytes(entry.try_into().unwrap());
    let words = [leaf, other_leaf + 8].map(|at| medium.load_word(PoolOffset(at)));
    assert_eq!(words, [entry; 2], "both have it still");
    let pool = open(&medium).unwrap();
    assert!(named(&pool.read_only_reason().unwrap().to_owned()));
    let report = pool.check().unwrap();
    assert!(report.problems.iter().any(named), "{report:?}");
}

/// Every word with only one valid value in a cleanly closed pool.
fn metadata_words(image: &[u8]) -> Vec<u64> {
    let places = places(image);
    let range = |at: u64, len: u64| (at..at + len).step_by(8);
    let mut words: Vec<u64> = SUPERBLOCK_COPIES.iter().flat_map(|at| range(at.0, 128)).collect();
    for header in [HEADER, HEADER + 4096] {
        let single = [STATE_AT, COMPLETED_A_AT, COMPLETED_B_AT, ROOT_AT, SIZE_AT];
        words.extend(single.map(|at| header + at));
        words.extend(DESCRIPTOR_AT.iter().flat_map(|at| range(header + at, 128)));
    }
    words.push(HEADER + CHECKSUM_ROOT_AT);
    words.extend([HEADER + 2 * 4096, HEADER + 3 * 4096]);
    words.extend(range(places.leaf, 8 * BLOCKS).chain(range(places.other_leaf, 8 * BLOCKS)));
    words.extend(places.data.iter().map(|at| places.slots + at / 4096 * 8));
    words.extend(places.saved.step_by(8));
    words
}

/// Returns the name of the structure at `at` in messages.
fn name_of(at: u64, saved: &std::ops::Range<u64>) -> String {
    let in_header = at % 4096;
    let start = match at {
        0..8192 => at / 4096 * 4096,
        _ if saved.contains(&at) => saved.start,
        _ if at < HEADER + 4 * 4096 && in_header >= DESCRIPTOR_AT[1] => {
            at - in_header + DESCRIPTOR_AT[1]
        }
        _ if at < HEADER + 4 * 4096 && in_header >= DESCRIPTOR_AT[0] => {
            at - in_header + DESCRIPTOR_AT[0]
        }
        _ => at,
    };
    format!("{}", PoolOffset(start))
}

#[test]
fn random_flips_are_repaired_or_reported() {
    let sound = image(true);
    let words = metadata_words(&sound);
    let saved = places(&sound).saved;
    let (mut clean, mut refused, mut exact) = (0, 0, 0);
    for case in 0..1500 {
        let dice = pattern(case + 1000, 16);
        let pick = |i: usize| usize::from(dice[i]) << 8 | usize::from(dice[i + 1]);
        let mut damaged = sound.clone();
        let flips: BTreeSet<u64> =
            (0..1 + dice[0] % 3).map(|i| words[pick(1 + 3 * i as usize) % words.len()]).collect();
        for (i, &at) in flips.iter().enumerate() {
            flip(&mut damaged, at, u32::from(dice[12 + i]) % 64);
        }
        let hit = |copy: u64| flips.iter().any(|at| at / 4096 == copy);
        let found = match repaired(&damaged) {
            Ok(found) => found,
            Err(error) => {
                assert!(hit(0) && hit(1), "{flips:x?}: {error}");
                refused += 1;
                continue;
            }
        };
        clean += u32::from(found.clean);
        assert!(!found.clean || found.lost.is_empty(), "{flips:x?}: {:?}", found.lost);
        let all: Vec<&String> = found.mended.iter().chain(&found.told).collect();
        let named = |text: &str| {
            let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_hexdigit());
            all.iter().any(|t| t.match_indices(text).any(|(i, _)| is_end(&t[i + text.len()..])))
        };
        // Behind a root lies all of its volume, and nothing of it is looked at.
        let roots = [HEADER, HEADER + 4096].map(|at| [at + ROOT_AT, at + CHECKSUM_ROOT_AT]);
        let rootless = flips.iter().any(|at| roots.as_flattened().contains(at));
        if rootless || !found.closed.is_empty() {
            let names = flips.iter().filter(|&&at| named(&name_of(at, &saved)));
            assert!(names.count() > 0, "{flips:x?}: {all:?}");
            continue;
        }
        for &at in &flips {
            assert!(named(&name_of(at, &saved)), "{flips:x?}: {at:#x} is not named: {all:?}");
        }
        for &(name, block) in &found.lost {
            let offset = format!("offset: Some({})", block * 4096);
            let told = all.iter().any(|t| t.contains(&offset) && t.contains(name));
            assert!(told, "{flips:x?}: {name}, block {block} is not named: {all:?}");
        }
        exact += 1;
    }
    let enough = clean > 100 && refused > 10 && exact > 1000;
    assert!(enough, "{clean} clean, {refused} refused, {exact} named to the word");
}

#[test]
fn crashed_repair_is_repairable() {
    let mut damaged = image(true);
    let saved = places(&damaged).saved.start;
    let flips = [
        SUPERBLOCK_COPIES[0].0 + 56,
        HEADER + COMPLETED_A_AT,
        HEADER + DESCRIPTOR_AT[1],
        HEADER + 2 * 4096,
        saved,
    ];
    flips.iter().for_each(|&at| flip(&mut damaged, at, 3));
    let scenario = Closures::new(
        |medium: &Arc<SimMedium>, _: &everbyte_crash::Log<()>| {
            assert_eq!(repair(&**medium, &kinds()).unwrap().len(), flips.len());
        },
        |medium| {
            repair(&**medium, &kinds()).map_err(|error| error.to_string())?;
            Ok(Arc::clone(medium))
        },
        |medium: Arc<SimMedium>, _| {
            let again = repair(&*medium, &kinds()).map_err(|error| error.to_string())?;
            if !again.is_empty() {
                return Err(format!("more to mend: {again:?}"));
            }
            let pool = open(&medium).map_err(|error| error.to_string())?;
            let report = pool.check().map_err(|error| error.to_string())?;
            let scrubbed = pool.scrub();
            let remarks = pool.recovery().remarks.clone();
            (report.is_clean() && scrubbed.findings.is_empty() && remarks.is_empty())
                .then_some(())
                .ok_or_else(|| format!("{report:?} {scrubbed:?}"))
        },
    )
    .medium_len(POOL_BLOCKS * 4096)
    .prepared(|medium| medium.store(PoolOffset(0), &damaged));
    let explorer = Explorer { runs_max: 200, ..Explorer::default() };
    let summary = explorer.explore(&scenario).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary}");
    assert!(summary.points > 20, "{summary}");
}
