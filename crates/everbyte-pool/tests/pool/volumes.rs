//! Volumes in creation, opening, deletion and rejection, and the limits of these operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use everbyte_crash::{Closures, Crash, Explorer, Log, Omission, SimMedium};
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{
    CHECKPOINT_LINES_AT, COMPLETED_A_AT, COMPLETED_B_AT, DESCRIPTOR_AT, Descriptor, Entry,
    STATE_AT, VolumeKind, decode_word, encode_word,
};
use everbyte_pool::{NewRoot, Pool, PoolError, Users, VolumeSpec, WriteError};
use zerocopy::FromBytes;

use crate::runs::few;
use crate::shelf::{SHELF, Shelf, open_pool};
use crate::superblock::superblock;
use crate::{TABLE_BLOCKS, TOY, pool_with_volume, set};

const BLOCKS: u64 = 96;

fn new_pool(volumes_max: u64) -> (Arc<SimMedium>, Arc<Pool<SimMedium>>) {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    Pool::format(&*medium, volumes_max, [1; 16]).unwrap();
    let pool = open_pool(&medium).unwrap();
    (medium, pool)
}

/// The smallest possible shelf: a log of eight blocks, and a table of one.
fn small(name: &str) -> VolumeSpec {
    let mut spec = VolumeSpec::new(name, SHELF, 4096);
    (spec.lanes, spec.log_bytes) = (1, Some(32 << 10));
    spec
}
const SMALL_BLOCKS: u64 = 9;

fn create(pool: &Pool<SimMedium>, spec: &VolumeSpec) -> Result<(), PoolError> {
    pool.create_volume(spec, NewRoot::Zeroes { blocks: 1 }).map(drop)
}

fn names(pool: &Pool<SimMedium>) -> Vec<String> {
    pool.volumes().iter().map(|volume| volume.name().to_owned()).collect()
}

#[test]
fn volume_names_are_checked() {
    let (_, pool) = new_pool(16);
    let longest = "n".repeat(64);
    for name in ["a", "_", "0", "A.b-c_9", "x..", longest.as_str()] {
        create(&pool, &small(name)).unwrap();
        assert_eq!(pool.volume(name).unwrap().name(), name);
    }
    let too_long = "n".repeat(65);
    for name in ["", ".", ".a", "-a", "a b", "a/b", "ä", "a\0", "a\n", too_long.as_str()] {
        let error = create(&pool, &small(name)).unwrap_err();
        assert!(error.to_string().contains("is no volume name"), "{name:?}: {error}");
    }
    let error = create(&pool, &small("A.b-c_9")).unwrap_err();
    assert!(matches!(&error, PoolError::VolumeExists { name } if name == "A.b-c_9"), "{error}");
    assert_eq!(pool.volumes().len(), 6);
    let error = pool.volume("b").err().unwrap();
    assert!(matches!(&error, PoolError::NoSuchVolume { name } if name == "b"), "{error}");
}

#[test]
fn refused_volume_changes_nothing() {
    type Change = fn(&mut VolumeSpec);
    let (medium, pool) = new_pool(3);
    create(&pool, &small("s")).unwrap();
    let refused: [(Change, &str); 14] = [
        (|spec| spec.name = "s".into(), "exists already"),
        (|spec| spec.kind = VolumeKind(5), "kind 5"),
        (|spec| spec.size_bytes = 0, "positive multiple of 512"),
        (|spec| spec.size_bytes = 511, "positive multiple of 512"),
        (|spec| spec.size_bytes = 513, "positive multiple of 512"),
        (|spec| spec.size_bytes = 512 << 48, "positive multiple of 512"),
        (|spec| spec.lanes = 0, "0 lanes"),
        (|spec| spec.lanes = 1025, "1025 lanes"),
        (|spec| spec.threshold_lines = 66, "threshold of 66"),
        (|spec| spec.log_bytes = Some(24 << 10), "half a lane would have 12288 bytes"),
        (|spec| spec.log_bytes = Some(0), "half a lane would have 0 bytes"),
        (|spec| spec.log_bytes = Some((8 << 30) + 2), "half a lane would have 4294971392 bytes"),
        (|spec| spec.log_bytes = Some(BLOCKS * BLOCK_U64), "no room for the volume's log"),
        (|spec| spec.log_bytes = None, "no room for the volume's log"),
    ];
    let (free, ops) = (pool.info().free_bytes, medium.ops());
    for (change, expected) in refused {
        let mut spec = small("new");
        change(&mut spec);
        let error = create(&pool, &spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!((pool.info().free_bytes, names(&pool)), (free, vec!["s".to_owned()]), "{error}");
    }
    let error =
        pool.create_volume(&small("new"), NewRoot::Zeroes { blocks: BLOCKS }).err().unwrap();
    assert!(matches!(error, PoolError::NoSpace { needed_blocks: BLOCKS, .. }), "{error}");
    assert_eq!(pool.info().free_bytes, free, "the log that was taken first is given back");
    assert_eq!(medium.ops(), ops, "nothing of them was stored");
    create(&pool, &small("new")).unwrap();
    assert!(pool.check().unwrap().is_clean());
}

/// A header is rejected when the medium cannot hold it: its log and map are freed.
#[test]
fn failed_header_store_frees_runs() {
    let (medium, pool) = new_pool(3);
    let free = pool.info().free_bytes;
    medium.fail(everbyte_media::MediaError::StoreLost { at: PoolOffset(0) });
    let error = create(&pool, &small("new")).unwrap_err();
    assert!(matches!(error, PoolError::Media(_)), "{error}");
    assert_eq!((pool.info().free_bytes, pool.volumes().len()), (free, 0));
}

#[test]
fn slots_are_reused_uids_are_not() {
    let (medium, pool) = new_pool(3);
    let mut uids = Vec::new();
    for round in 0..3 {
        for name in ["a", "b", "c"] {
            create(&pool, &small(name)).unwrap();
            uids.push(pool.volume(name).unwrap().descriptor().uid);
        }
        let error = create(&pool, &small("d")).unwrap_err().to_string();
        assert!(error.contains("has its 3 volumes already"), "{error}");
        for name in ["b", "a", "c"] {
            pool.delete_volume(name).unwrap();
            assert!(matches!(pool.delete_volume(name), Err(PoolError::NoSuchVolume { .. })));
        }
        let used = BLOCKS - 5 - pool.info().free_bytes / BLOCK_U64;
        assert_eq!((pool.volumes().len(), used), (0, 0), "round {round}");
    }
    assert_eq!(uids, (1..=9).collect::<Vec<_>>());
    assert_eq!(superblock(&*medium, 0).next_volume_uid, 10);
    drop(pool);
    let pool = open_pool(&medium).unwrap();
    assert!(pool.check().unwrap().is_clean() && pool.volumes().is_empty());
    // A poisoned slot is not allocated.
    medium.inject_poison(PoolOffset(2 * BLOCK_U64 + 512), 64);
    medium.probe(PoolOffset(0), medium.len());
    create(&pool, &small("a")).unwrap();
    let words: Vec<_> = (2..5u64)
        .map(|block| decode_word(medium.load_word(BlockNo(block).offset().plus(STATE_AT))))
        .collect();
    assert_eq!(words, [Some(0), Some(1), Some(0)]);
}

#[test]
fn both_descriptor_copies_have_settings() {
    let (medium, pool) = new_pool(3);
    let mut spec = small("settings");
    (spec.map, spec.delta, spec.checksum) = (5, 6, 1);
    (spec.threshold_lines, spec.checkpoint_lines, spec.size_bytes) = (65, 4000, 3 * 512);
    let root: [u8; BLOCK] = std::array::from_fn(|at| u8::try_from(at % 251).unwrap());
    let volume = pool.create_volume(&spec, NewRoot::Blocks(&root)).unwrap();
    let header = 2 * BLOCK_U64;
    for copy in DESCRIPTOR_AT {
        let mut bytes = [0; size_of::<Descriptor>()];
        medium.read(PoolOffset(header + copy), &mut bytes);
        let stored = Descriptor::read_from_bytes(&bytes).unwrap();
        assert_eq!((&stored, stored), (volume.descriptor(), stored.sealed()));
        assert_eq!((stored.map, stored.delta, stored.checksum), (5, 6, 1));
        assert_eq!((stored.threshold_lines, stored.lanes, stored.half_blocks), (65, 1, 4));
        assert_eq!((stored.name(), stored.uid), ("settings", 1));
    }
    assert_eq!(volume.size_bytes().unwrap(), 3 * 512);
    let lines = medium.load_word(PoolOffset(header + CHECKPOINT_LINES_AT));
    assert_eq!((decode_word(lines), volume.checkpoint_lines()), (Some(4000), 4000));
    let named = Entry::decode(medium.load_word(volume.root_at())).unwrap().unwrap();
    let mut stored = [0; BLOCK];
    medium.read(named.block.offset(), &mut stored);
    assert!(stored == root);
    assert_eq!(superblock(&*medium, 1).ro_compat & 1, 1, "checksums are a feature of the pool");
}

#[test]
fn volume_has_one_handle_of_its_kind() {
    let (_, pool) = new_pool(2);
    create(&pool, &small("s")).unwrap();
    let wrong = pool.open_volume("s", VolumeKind::BLOCK).err().unwrap().to_string();
    assert!(wrong.contains("volume s is a shelf volume, not a kind 1 one"), "{wrong}");
    let handle = pool.open_volume("s", SHELF).unwrap();
    let second = pool.open_volume("s", SHELF).err().unwrap();
    assert!(matches!(&second, PoolError::InUse { name } if name == "s"), "{second}");
    // A rejected opening leaves the present user's rights unchanged.
    assert!(matches!(pool.open_volume("s", SHELF), Err(PoolError::InUse { .. })));
    drop(handle);
    let handle = pool.open_volume("s", SHELF).unwrap();
    pool.delete_volume("s").unwrap();
    assert!(matches!(pool.open_volume("s", SHELF), Err(PoolError::NoSuchVolume { .. })));
    // A new volume of the name is another one; the handle of the old one leads nowhere.
    create(&pool, &small("s")).unwrap();
    let _new = pool.open_volume("s", SHELF).unwrap();
    assert!(matches!(handle.join(), Err(WriteError::Gone)));
    assert!(handle.is_gone());
}

#[test]
fn deleted_volume_spares_reused_header() {
    let (pool, old, table) = pool_with_volume(1);
    for value in 1..=3 {
        set(&old, table, value);
        old.flush().unwrap();
    }
    pool.delete_volume("v").unwrap();
    let mut spec = VolumeSpec::new("w", TOY, 4096);
    (spec.lanes, spec.log_bytes) = (1, Some(64 * 1024));
    let new = pool.create_volume(&spec, NewRoot::Zeroes { blocks: TABLE_BLOCKS }).unwrap();
    assert_eq!(new.root_at(), old.root_at());
    let medium = pool.medium();
    let root = Entry::decode(medium.load_word(new.root_at())).unwrap().unwrap();
    set(&new, root.block.offset(), 1);
    new.flush().unwrap();
    assert!(new.completed_epoch() < old.completed_epoch(), "one can be told from the other");
    assert!(matches!(old.begin_group().map(drop), Err(WriteError::Gone)));
    let guard = old.lock_checkpoint();
    assert!(matches!(old.begin_checkpoint(&guard).map(drop), Err(WriteError::Gone)));
    drop(guard);
    old.flush().unwrap();
    for at in [COMPLETED_A_AT, COMPLETED_B_AT] {
        let stored = decode_word(medium.load_word(PoolOffset(2 * BLOCK_U64 + at)));
        assert_eq!(stored, Some(new.completed_epoch()));
    }
}

/// Users with one of them inside until it is released.
#[derive(Default)]
struct OneInside {
    asked: AtomicBool,
    left: AtomicBool,
}

impl Users for OneInside {
    fn wait_idle(&self) {
        self.asked.store(true, Ordering::SeqCst);
        while !self.left.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }
}

#[test]
fn deletion_waits_for_users_then_frees() {
    let (medium, pool) = new_pool(2);
    create(&pool, &small("s")).unwrap();
    let free = pool.info().free_bytes;
    let handle = pool.open_volume("s", SHELF).unwrap();
    let users = Arc::new(OneInside::default());
    handle.set_users(Arc::clone(&users) as Arc<dyn Users>);
    let state = || decode_word(medium.load_word(PoolOffset(2 * BLOCK_U64 + STATE_AT)));
    thread::scope(|scope| {
        let deletion = scope.spawn(|| pool.delete_volume("s"));
        while !users.asked.load(Ordering::SeqCst) {
            assert!(!deletion.is_finished(), "nobody was waited for");
            thread::yield_now();
        }
        assert!(matches!(handle.join(), Err(WriteError::Gone)));
        assert_eq!((state(), pool.info().free_bytes), (Some(1), free), "somebody is inside");
        users.left.store(true, Ordering::SeqCst);
        deletion.join().unwrap().unwrap();
    });
    assert_eq!((state(), pool.info().free_bytes), (Some(0), free + SMALL_BLOCKS * BLOCK_U64));
    assert!(pool.check().unwrap().is_clean());
}

/// No thread may wait for users of a dropped handle.
#[test]
fn deletion_ignores_users_of_dropped_handle() {
    let (_, pool) = new_pool(2);
    create(&pool, &small("s")).unwrap();
    let handle = pool.open_volume("s", SHELF).unwrap();
    let users = Arc::new(OneInside::default());
    handle.set_users(Arc::clone(&users) as Arc<dyn Users>);
    users.left.store(true, Ordering::SeqCst);
    drop(handle);
    pool.delete_volume("s").unwrap();
    assert!(!users.asked.load(Ordering::SeqCst));
}

#[test]
fn closed_pool_refuses_changes() {
    let (medium, pool) = new_pool(2);
    create(&pool, &small("s")).unwrap();
    pool.close().unwrap();
    let ops = medium.ops();
    pool.close().unwrap();
    for refused in [create(&pool, &small("t")), pool.delete_volume("s"), pool.extend().map(drop)] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("it has been closed"), "{refused}");
    }
    assert!(matches!(pool.volume("s").unwrap().join(), Err(WriteError::Gone)));
    assert_eq!(medium.ops(), ops);
    assert!(open_pool(&medium).unwrap().recovery().was_clean);
}

#[test]
fn too_small_pool_is_refused() {
    for (blocks, volumes_max, can_be) in
        [(4, 1, true), (3, 1, false), (8, 5, true), (8, 6, false), (8, 0, false)]
    {
        let medium = Arc::new(SimMedium::new(blocks * BLOCK_U64));
        let made = Pool::format(&*medium, volumes_max, [1; 16]);
        assert_eq!(made.is_ok(), can_be, "{blocks} blocks for {volumes_max} volumes");
        if can_be {
            let info = open_pool(&medium).unwrap().info();
            assert_eq!((info.data_bytes, info.free_bytes), (BLOCK_U64, BLOCK_U64));
            assert_eq!(
                (info.volumes_max, info.uid.as_str()),
                (volumes_max, "01".repeat(16).as_str())
            );
        } else {
            assert!(matches!(made, Err(PoolError::Invalid(_))));
            assert_eq!(medium.ops(), 0);
        }
    }
}

#[test]
fn pool_growth_is_bounded_by_capacity() {
    let larger = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let smaller = SimMedium::new((BLOCKS / 2) * BLOCK_U64);
    Pool::format(&smaller, 2, [1; 16]).unwrap();
    larger.store(PoolOffset(0), &smaller.image());
    let pool = open_pool(&larger).unwrap();
    let before = pool.info();
    assert_eq!(before.size_bytes, BLOCKS / 2 * BLOCK_U64);
    assert_eq!(pool.extend().unwrap(), BLOCKS * BLOCK_U64);
    let info = pool.info();
    assert_eq!(info.free_bytes - before.free_bytes, BLOCKS / 2 * BLOCK_U64);
    let ops = larger.ops();
    let error = pool.extend().unwrap_err().to_string();
    assert!(error.contains("it can only grow"), "{error}");
    assert_eq!((larger.ops(), pool.info()), (ops, info));
    assert!(pool.take_run("a test", BLOCKS - 4).is_ok(), "all of it is one run");
}

/// Volumes by name that a crash may leave, each set with its blocks.
type Allowed = Vec<Vec<&'static str>>;

fn check(pool: &Pool<SimMedium>, crash: &Crash<'_, Allowed>) -> Result<(), String> {
    let found = names(pool);
    let allowed = &crash.events.last().expect("noted before the opening").event;
    if !allowed.iter().any(|names| *names == found) {
        return Err(format!("found {found:?}, not one of {allowed:?}"));
    }
    let report = pool.check().map_err(|error| error.to_string())?;
    // A torn copy of the superblock, repaired by opening, is a remark.
    if !report.is_clean() {
        return Err(report.problems.join("; "));
    }
    if report.used_blocks != found.len() as u64 * SMALL_BLOCKS {
        return Err(format!("{} blocks are used by {found:?}", report.used_blocks));
    }
    // The maximum of volumes fits, irrespective of half made or half deleted ones.
    for name in ["x", "y", "z"].into_iter().skip(found.len()) {
        create(pool, &small(name)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn crash_leaves_volume_whole_or_absent() {
    let run = |pool: &Pool<SimMedium>, log: &Log<Allowed>| {
        log.note(vec![vec!["s"], vec!["s", "t"]]);
        create(pool, &small("t")).unwrap();
        log.note(vec![vec!["s", "t"], vec!["t"]]);
        pool.delete_volume("s").unwrap();
        // In the blocks and the slot of the one that is gone.
        log.note(vec![vec!["t"], vec!["t", "u"]]);
        create(pool, &small("u")).unwrap();
        log.note(vec![vec!["t", "u"]]);
    };
    let scenario = Closures::new(
        |medium, log: &Log<Allowed>| {
            log.note(vec![vec!["s"]]);
            run(&open_pool(medium).unwrap(), log);
        },
        |medium| open_pool(medium).map_err(|error| error.to_string()),
        |pool, crash| check(&pool, crash),
    )
    .medium_len((5 + 3 * SMALL_BLOCKS) * BLOCK_U64)
    .prepared(|medium| {
        Pool::format(&**medium, 3, [1; 16]).unwrap();
        create(&open_pool(medium).unwrap(), &small("s")).unwrap();
    });
    let explored = few().explore(&scenario).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{explored}");
}

/// Renames "s", then makes another of its old name, and deletes the renamed one.
fn renaming() -> Closures<'static, Allowed, Arc<Pool<SimMedium>>> {
    let run = |pool: &Pool<SimMedium>, log: &Log<Allowed>| {
        log.note(vec![vec!["s"], vec!["t"]]);
        pool.rename_volume("s", "t").unwrap();
        log.note(vec![vec!["t"], vec!["s", "t"]]);
        create(pool, &small("s")).unwrap();
        log.note(vec![vec!["s", "t"], vec!["s", "u"]]);
        pool.rename_volume("t", "u").unwrap();
        log.note(vec![vec!["s", "u"]]);
    };
    Closures::new(
        move |medium, log: &Log<Allowed>| {
            log.note(vec![vec!["s"]]);
            run(&open_pool(medium).unwrap(), log);
        },
        |medium| open_pool(medium).map_err(|error| error.to_string()),
        |pool, crash| {
            check(&pool, crash)?;
            match pool.scrub().findings.is_empty() {
                true => Ok(()),
                false => Err("a crash left copies of a descriptor that differ".to_owned()),
            }
        },
    )
    .medium_len((5 + 3 * SMALL_BLOCKS) * BLOCK_U64)
    .prepared(|medium| {
        Pool::format(&**medium, 3, [1; 16]).unwrap();
        create(&open_pool(medium).unwrap(), &small("s")).unwrap();
    })
    .label(2 * BLOCK_U64 + DESCRIPTOR_AT[0]..2 * BLOCK_U64 + DESCRIPTOR_AT[0] + 128, "first")
    .label(2 * BLOCK_U64 + DESCRIPTOR_AT[1]..2 * BLOCK_U64 + DESCRIPTOR_AT[1] + 128, "second")
}

#[test]
fn crash_leaves_old_or_new_volume_name() {
    let explored = few().explore(&renaming()).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{explored}");
    let omissions = [
        Omission::flush("first"),
        Omission::flush("second"),
        Omission::fence_after_flush("first"),
        Omission::fence_after_flush("second"),
    ];
    for omission in omissions {
        let omitted = omission.clone().in_workload();
        // The same exploration every night.
        let explorer = Explorer { seed: 0, ..few() };
        let missed = explorer.explore(&renaming().omit(omitted)).is_ok();
        assert!(!missed, "{omission:?} is not noticed");
    }
}

#[test]
fn rename_under_users_needs_free_name() {
    let (medium, pool) = new_pool(3);
    create(&pool, &small("s")).unwrap();
    create(&pool, &small("other")).unwrap();
    let (open, ops) = (pool.volume("s").unwrap(), medium.ops());
    let old = open.name();
    for (from, to, expected) in [
        ("s", "other", "exists already"),
        ("s", "s", "exists already"),
        ("s", ".t", "is no volume name"),
        ("nothing", "t", "\"nothing\""),
    ] {
        let error = pool.rename_volume(from, to).unwrap_err().to_string();
        assert!(error.contains(expected), "{from} to {to}: {error}");
    }
    assert_eq!(medium.ops(), ops, "nothing of them was stored");
    pool.rename_volume("s", "t").unwrap();
    assert_eq!((old, open.name(), open.descriptor().name()), ("s", "t", "t"));
    assert!(Arc::ptr_eq(&pool.volume("t").unwrap(), &open) && pool.volume("s").is_err());
    for round in 0..1000 {
        let names = [format!("n{round}"), format!("n{}", round + 1)];
        pool.rename_volume(if round == 0 { "t" } else { &names[0] }, &names[1]).unwrap();
    }
    assert_eq!(names(&pool), ["n1000", "other"]);
    pool.close().unwrap();
    assert_eq!(names(&open_pool(&medium).unwrap()), ["n1000", "other"]);
}

/// A volume with one damaged copy of its descriptor is whole at every moment of a renaming.
#[test]
fn damaged_descriptor_copy_is_replaced_first() {
    for damaged in DESCRIPTOR_AT {
        let (medium, pool) = new_pool(3);
        create(&pool, &small("s")).unwrap();
        let header_at = PoolOffset(2 * BLOCK_U64);
        medium.store(header_at.plus(damaged), &[0; 64]);
        let scenario = Closures::new(
            |medium, _: &Log<()>| {
                let pool = open_pool(medium).unwrap();
                medium.store(header_at.plus(damaged), &[0; 64]);
                pool.rename_volume("s", "t").unwrap();
            },
            |medium| open_pool(medium).map_err(|error| error.to_string()),
            |pool, _| match names(&pool)[..] {
                [ref name] if name == "s" || name == "t" => Ok(()),
                ref names => Err(format!("found {names:?}")),
            },
        )
        .medium_len(BLOCKS * BLOCK_U64)
        .prepared(|fresh| fresh.store(PoolOffset(0), &medium.image()));
        few().explore(&scenario).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// A header in the state DELETING has lost its volume: opening ends the deletion, and its blocks are free.
#[test]
fn open_finishes_interrupted_deletion() {
    let (medium, pool) = new_pool(3);
    create(&pool, &small("s")).unwrap();
    create(&pool, &small("t")).unwrap();
    drop(pool);
    let state_at = PoolOffset(2 * BLOCK_U64 + STATE_AT);
    medium.store_word(state_at, encode_word(2));
    let pool = open_pool(&medium).unwrap();
    assert_eq!((names(&pool), medium.load_word(state_at)), (vec!["t".to_owned()], 0));
    let report = pool.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.used_blocks, SMALL_BLOCKS);
    // A volume that is left of an unfinished creation says that there is none.
    let shelf = Shelf::make(&Arc::new(SimMedium::new(BLOCKS * BLOCK_U64)), 1);
    let medium = Arc::clone(shelf.pool.medium());
    drop(shelf);
    medium.store_word(state_at, 0);
    let pool = open_pool(&medium).unwrap();
    assert_eq!((names(&pool).len(), pool.check().unwrap().used_blocks), (0, 0));
}
