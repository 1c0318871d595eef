//! The valid superblock, the repair of the other one, and the accesses of a read-only pool to its medium.

use std::sync::Arc;

use everbyte_crash::{Plan, SimMedium};
use everbyte_media::{BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::format::{STATE_AT, SUPERBLOCK_COPIES, Superblock, encode_word};
use everbyte_pool::{NewRoot, Pool, PoolError, VolumeSpec, WriteError, repair};
use zerocopy::{FromBytes, IntoBytes};

use crate::shelf::{Contents, SHELF, SHELF_FEATURE, Shelf, kinds, open_pool};

const BLOCKS: u64 = 96;

/// A pool with a shelf with one block, cleanly shut down.
pub(crate) fn closed_shelf() -> Vec<u8> {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let shelf = Shelf::make(&medium, 1);
    shelf.put(3, 64, 8).unwrap();
    shelf.pool.close().unwrap();
    medium.image()
}

pub(crate) fn superblock(medium: &impl Medium, copy: usize) -> Superblock {
    let mut bytes = [0; size_of::<Superblock>()];
    medium.read(SUPERBLOCK_COPIES[copy], &mut bytes);
    Superblock::read_from_bytes(&bytes).unwrap()
}

pub(crate) fn change_superblock(
    medium: &impl Medium,
    copy: usize,
    change: impl FnOnce(&mut Superblock),
) {
    let mut sb = superblock(medium, copy);
    change(&mut sb);
    medium.store(SUPERBLOCK_COPIES[copy], sb.sealed().as_bytes());
}

/// One damage to the copies of the superblock of a pool after a shutdown, and the report of an opening.
struct Case {
    name: &'static str,
    damage: fn(&SimMedium),
    /// True if the saved state of the shutdown is still valid.
    is_clean: bool,
    remark: Option<&'static str>,
}

const CASES: [Case; 8] = [
    Case { name: "whole", damage: |_| {}, is_clean: true, remark: None },
    Case {
        name: "the second copy is of the time when the pool was open",
        damage: |medium| {
            change_superblock(medium, 1, |sb| (sb.generation, sb.clean) = (sb.generation - 1, 0));
        },
        is_clean: true,
        remark: None,
    },
    Case {
        name: "the first copy is newer, and says that the pool was opened",
        damage: |medium| {
            change_superblock(medium, 0, |sb| (sb.generation, sb.clean) = (sb.generation + 1, 0));
        },
        is_clean: false,
        remark: None,
    },
    Case {
        name: "the second copy is newer, and says that the pool was opened",
        damage: |medium| {
            change_superblock(medium, 1, |sb| (sb.generation, sb.clean) = (sb.generation + 1, 0));
        },
        is_clean: false,
        remark: None,
    },
    Case {
        name: "the first copy is torn",
        damage: |medium| medium.store_word(SUPERBLOCK_COPIES[0].plus(64), 7),
        is_clean: true,
        remark: Some("superblock at 0x0 is corrupt: its checksum is wrong"),
    },
    Case {
        name: "the second copy is torn",
        damage: |medium| medium.store_word(SUPERBLOCK_COPIES[1].plus(96), 7),
        is_clean: true,
        remark: Some("superblock at 0x1000 is corrupt: its checksum is wrong"),
    },
    Case {
        name: "the newer copy is torn",
        damage: |medium| {
            change_superblock(medium, 1, |sb| (sb.generation, sb.clean) = (sb.generation + 1, 0));
            medium.store_word(SUPERBLOCK_COPIES[1].plus(112), 1);
        },
        is_clean: true,
        remark: Some("superblock at 0x1000"),
    },
    Case {
        name: "the newer copy needs what nobody knows",
        damage: |medium| {
            change_superblock(medium, 0, |sb| (sb.generation, sb.incompat) = (99, 1 << 9));
        },
        is_clean: true,
        remark: Some("features 0x200"),
    },
];

#[test]
fn newer_superblock_wins_other_is_rewritten() {
    let image = closed_shelf();
    for Case { name, damage, is_clean, remark } in CASES {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        damage(&medium);
        let newest = [0, 1]
            .map(|copy| superblock(&*medium, copy))
            .into_iter()
            .filter(|sb| *sb == sb.sealed() && sb.incompat == 0)
            .map(|sb| sb.generation)
            .max();
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        assert_eq!(shelf.contents().unwrap(), Contents::from([(3, (64, 8, 8))]), "{name}");
        let summary = shelf.pool.recovery();
        assert_eq!(summary.was_clean, is_clean, "{name}");
        let remarks = summary.remarks.join("; ");
        assert_eq!(remarks.is_empty(), remark.is_none(), "{name}: {remarks}");
        assert!(remarks.contains(remark.unwrap_or_default()), "{name}: {remarks}");
        let now = superblock(&*medium, 0);
        assert_eq!(now, superblock(&*medium, 1), "{name}");
        assert_eq!(
            (Some(now.generation), now.clean),
            (newest.map(|newest| newest + 1), 0),
            "{name}"
        );
        assert!(shelf.pool.scrub().findings.is_empty(), "{name}");
    }
}

#[test]
fn bad_superblocks_are_refused_without_store() {
    let image = closed_shelf();
    for (word, expected) in [(0, "this is no pool"), (64, "its checksum is wrong")] {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        for at in SUPERBLOCK_COPIES {
            medium.store_word(at.plus(word), 7);
        }
        let before = medium.ops();
        for error in [open_pool(&medium).err(), repair(&*medium, &kinds()).err()] {
            let error = error.unwrap();
            assert!(matches!(error, PoolError::Corrupt(_)), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(medium.ops(), before);
    }
    // A medium that ends before the second copy, or before the pool does.
    for (blocks, expected) in [(1, "truncated"), (BLOCKS - 1, "truncated")] {
        let cut = image[..usize::try_from(blocks * BLOCK_U64).unwrap()].to_vec();
        let error = open_pool(&Arc::new(SimMedium::from_image(cut))).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // One that is longer is none the worse.
    let mut longer = image;
    longer.resize(longer.len() + 8192, 0xee);
    let pool = open_pool(&Arc::new(SimMedium::from_image(longer))).unwrap();
    assert_eq!(pool.info().size_bytes, BLOCKS * BLOCK_U64);
    assert!(pool.check().unwrap().is_clean());
}

/// A pool with a feature that this program cannot write.
fn with_unknown_feature(is_clean: bool) -> Arc<SimMedium> {
    let medium = Arc::new(SimMedium::from_image(closed_shelf()));
    for copy in [0, 1] {
        change_superblock(&*medium, copy, |sb| {
            sb.ro_compat |= 1 << 40;
            sb.clean = u64::from(is_clean);
        });
    }
    medium
}

#[test]
fn read_only_open_stores_nothing() {
    let medium = with_unknown_feature(true);
    // Half deleted: no program may finish that either.
    let second = PoolOffset(3 * BLOCK_U64 + STATE_AT);
    medium.store_word(second, encode_word(2));
    let before = medium.ops();
    let shelf = Shelf::open(open_pool(&medium).unwrap());
    assert_eq!(shelf.contents().unwrap(), Contents::from([(3, (64, 8, 8))]));
    let reason = shelf.pool.read_only_reason().unwrap();
    assert!(reason.contains(&format!("{:#x}", SHELF_FEATURE | 1 << 40)), "{reason}");
    let refused = shelf.volume().join().err().unwrap();
    assert!(matches!(&refused, WriteError::ReadOnly { reason } if reason.contains("features")));
    assert!(shelf.volume().begin_group().is_ok(), "a group of nothing");
    assert!(shelf.volume().flush().is_ok(), "there is nothing to flush");
    let spec = VolumeSpec::new("new", SHELF, 4096);
    let refusals: [Result<(), PoolError>; 3] = [
        shelf.pool.create_volume(&spec, NewRoot::Empty).map(drop),
        shelf.pool.delete_volume("s"),
        shelf.pool.extend().map(drop),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, PoolError::ReadOnly(_)), "{refused}");
    }
    let report = shelf.pool.check().unwrap();
    assert!(report.problems[0].starts_with("the pool is read-only"), "{report:?}");
    assert_eq!((report.problems.len(), report.volumes), (1, 1), "{report:?}");
    assert!(shelf.pool.info().read_only.is_some());
    assert!(shelf.pool.scrub().findings.is_empty());
    shelf.pool.close().unwrap();
    assert!(matches!(repair(&*medium, &kinds()), Err(PoolError::ReadOnly(_))));
    assert_eq!(medium.ops(), before);
}

#[test]
fn read_only_open_needing_recovery_is_refused() {
    let medium = with_unknown_feature(false);
    // Nor is an older copy put right.
    change_superblock(&*medium, 1, |sb| sb.generation -= 1);
    let before = medium.ops();
    let error = open_pool(&medium).err().unwrap();
    assert!(matches!(error, PoolError::ReadOnly(_)), "{error:?}");
    assert!(error.to_string().contains("needs recovery"), "{error}");
    assert_eq!(medium.ops(), before);
}

#[test]
fn pool_accepts_features_of_its_kinds() {
    let medium = Arc::new(SimMedium::from_image(closed_shelf()));
    assert_eq!(superblock(&*medium, 0).ro_compat, SHELF_FEATURE);
    let without = everbyte_pool::Kinds::new([]);
    let pool = Pool::open(
        Arc::clone(&medium),
        without,
        &everbyte_pool::OpenOptions { capacity_blocks: BLOCKS },
    );
    let pool = pool.unwrap();
    assert!(pool.read_only_reason().is_some(), "without the kind its feature is unknown");
    let volume = pool.volume("s").unwrap();
    assert!(volume.read_only_reason().unwrap().contains("kind 77"), "and so is its volume");
}

/// A crash immediately after the opening must not find the free map of the shutdown: it would call since
/// allocated blocks free.
#[test]
fn clean_mark_is_cleared_before_allocation() {
    let medium = Arc::new(SimMedium::from_image(closed_shelf()));
    let saved = superblock(&*medium, 0);
    assert_eq!((saved.clean, saved.saved_bytes), (1, BLOCKS.div_ceil(64) * 8));
    let shelf = Shelf::open(open_pool(&medium).unwrap());
    for plan in [Plan::nothing(), Plan::everything()] {
        let left = medium.crash_state().boot(plan);
        for copy in [0, 1] {
            let sb = superblock(&left, copy);
            let saved_state = (sb.saved_start, sb.saved_bytes, sb.saved_crc);
            assert_eq!((sb.clean, saved_state), (0, (0, 0, 0)), "copy {copy}");
        }
    }
    // And so it is: the map is found without the mark.
    shelf.put(4, 1 << 14, 9).unwrap();
    shelf.volume().flush().unwrap();
    let left = Arc::new(medium.crash_state().boot(Plan::nothing()));
    let again = Shelf::open(open_pool(&left).unwrap());
    assert!(!again.pool.recovery().was_clean);
    assert_eq!(again.contents().unwrap(), shelf.contents().unwrap());
    assert!(again.pool.check().unwrap().is_clean());
}

/// Poisoned memory cannot be rewritten: a pool that would have one superblock during a write stays as it is.
#[test]
fn poisoned_superblock_makes_pool_read_only() {
    let image = closed_shelf();
    for at in SUPERBLOCK_COPIES {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        medium.inject_poison(at, 1);
        let shelf = Shelf::open(open_pool(&medium).unwrap());
        let reason = shelf.pool.read_only_reason().unwrap();
        assert!(reason.contains("only one superblock is left"), "{reason}");
        assert_eq!(shelf.contents().unwrap(), Contents::from([(3, (64, 8, 8))]));
        shelf.pool.close().unwrap();
        assert!(medium.check().is_ok(), "nothing was stored there");
    }
}
