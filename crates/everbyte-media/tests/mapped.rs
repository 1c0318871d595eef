//! The mapped medium on every kind of memory of an ordinary machine.

#![allow(unsafe_code, reason = "installing a foreign SIGBUS handler and faulting on purpose")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use everbyte_media::{
    BLOCK, BLOCK_U64, BlockNo, LineMask, Mapped, MediaError, MediaKind, MediaOptions, Medium,
    OpenError, PersistenceDomain, Piece, PoisonedRange, PoolOffset, Technology, allocate_file,
    create_file, writeback_and_invalidate,
};
use everbyte_testkit::medium;

const LEN: u64 = 32 * BLOCK_U64;

fn tmpfs_file(len: u64) -> File {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    allocate_file(&file, len).unwrap();
    file
}

fn disk_file(len: u64) -> File {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    allocate_file(&file, len).unwrap();
    file
}

fn plain() -> MediaOptions {
    MediaOptions::new()
}

#[test]
fn anonymous_memory_passes_the_suite() {
    let medium = Mapped::anonymous(LEN, &plain()).unwrap();
    assert_eq!(medium.persistence_domain(), PersistenceDomain::Nothing);
    assert_eq!(medium.describe().kind, MediaKind::Anonymous);
    assert_eq!(medium.describe().flush, "none");
    medium::check_medium(&medium);
    assert_eq!(medium.counters().modelled_ns, 0);
}

#[test]
fn tmpfs_file_passes_suite() {
    let medium = Mapped::from_file(&tmpfs_file(LEN), &plain()).unwrap();
    assert_eq!(medium.persistence_domain(), PersistenceDomain::Process);
    assert_eq!(medium.describe().kind, MediaKind::Tmpfs);
    medium::check_medium(&medium);
}

#[test]
fn forced_flushes_pass_the_suite() {
    let medium = Mapped::from_file(&tmpfs_file(LEN), &plain().force_flush(true)).unwrap();
    assert!(medium.describe().flush.starts_with("cl"), "{medium:?}");
    medium::check_medium(&medium);
}

#[test]
fn disk_file_passes_suite() {
    let medium = Mapped::from_file(&disk_file(LEN), &plain()).unwrap();
    medium::check_medium(&medium);
    // The build directory may itself lie on tmpfs.
    if medium.describe().kind == MediaKind::File {
        assert_eq!(medium.persistence_domain(), PersistenceDomain::Power);
        assert_eq!(medium.describe().sync, Some("msync"));
    }
}

#[test]
fn private_copy_passes_suite_keeps_file() {
    for file in [disk_file(LEN), tmpfs_file(LEN)] {
        file.write_all_at(&[9; BLOCK], BLOCK_U64).unwrap();
        let medium = Mapped::from_file(&file, &plain().private(true).read_only(true)).unwrap();
        assert_eq!(medium.persistence_domain(), PersistenceDomain::Nothing);
        assert_eq!(medium.changed_lines(BlockNo(1), 0, &[9; BLOCK]), LineMask::EMPTY);
        medium::check_medium(&medium);
        assert!(matches!(medium.grow(2 * LEN), Err(OpenError::CannotGrow { .. })));
        let mut bytes = vec![0; LEN.try_into().unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[BLOCK..2 * BLOCK] == [9; BLOCK]);
        assert!(bytes[2 * BLOCK..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn emulated_medium_passes_suite() {
    for technology in Technology::ALL {
        let medium = Mapped::anonymous(LEN, &plain().emulate(Some(technology))).unwrap();
        let cost = technology.cost();
        let mut out = [0; 130];
        medium.read(PoolOffset(63), &mut out);
        medium.load_word(PoolOffset(8));
        medium.changed_lines(BlockNo(1), 60, &[0; 5]);
        let reads = 4 + 1 + 2;
        assert_eq!(medium.counters().modelled_ns, reads * cost.read_ns);
        medium.store(PoolOffset(0), &out);
        medium.store_word(PoolOffset(0), 1);
        assert_eq!(medium.counters().modelled_ns, reads * cost.read_ns, "stores are cached");
        medium.fence().unwrap();
        medium.flush(PoolOffset(0), 130);
        medium.stream(PoolOffset(60), &[1; 5]);
        medium.fence().unwrap();
        let writes = if technology.banks() > 1 { 1 } else { 3 + 2 };
        let before_send = reads * cost.read_ns + writes * cost.write_ns;
        assert_eq!(medium.counters().modelled_ns, before_send);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let pieces = [Piece::Bytes(&out), Piece::Stored { at: PoolOffset(1), len: 64 }];
        medium.send(ours.as_fd(), &pieces).unwrap();
        assert_eq!(medium.counters().modelled_ns, before_send + 2 * cost.read_ns);
        assert_ne!(medium.describe().flush, "none");
    }
    let emulated = plain().emulate(Some(Technology::SttMram));
    medium::check_medium(&Mapped::anonymous(LEN, &emulated).unwrap());
}

#[test]
fn fenced_stores_are_in_file() {
    for file in [disk_file(LEN), tmpfs_file(LEN)] {
        let medium = Mapped::from_file(&file, &plain()).unwrap();
        medium.store(PoolOffset(5), b"stored");
        medium.flush(PoolOffset(5), 6);
        medium.stream(PoolOffset(BLOCK_U64 + 1), &[7; BLOCK]);
        medium.fence().unwrap();
        drop(medium);
        let again = Mapped::from_file(&file, &plain().read_only(true)).unwrap();
        let mut bytes = [0; 6];
        again.read(PoolOffset(5), &mut bytes);
        assert_eq!(&bytes, b"stored");
        file.read_exact_at(&mut bytes, BLOCK_U64).unwrap();
        assert_eq!(bytes, [0, 7, 7, 7, 7, 7]);
    }
}

#[test]
#[should_panic(expected = "reading only")]
fn store_to_read_only_medium_panics() {
    let medium = Mapped::from_file(&tmpfs_file(LEN), &plain().read_only(true)).unwrap();
    medium.store_word(PoolOffset(0), 1);
}

#[test]
fn accesses_beyond_the_end_panic() {
    let medium = Mapped::anonymous(BLOCK_U64, &plain()).unwrap();
    let panics = |access: &dyn Fn()| {
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err());
    };
    panics(&|| medium.read(PoolOffset(BLOCK_U64 - 1), &mut [0; 2]));
    panics(&|| medium.store(PoolOffset(u64::MAX), &[0; 2]));
    panics(&|| medium.stream(PoolOffset(BLOCK_U64 - 1), &[0; 2]));
    panics(&|| medium.flush(PoolOffset(1), BLOCK_U64));
    panics(&|| {
        medium.changed_lines(BlockNo(1), 0, &[]);
    });
    panics(&|| {
        medium.changed_lines(BlockNo(1 << 52), 0, &[]);
    });
    panics(&|| {
        medium.changed_lines(BlockNo(0), 1, &[0; BLOCK]);
    });
    panics(&|| {
        medium.load_word(PoolOffset(4));
    });
    panics(&|| medium.store_word(PoolOffset(BLOCK_U64), 0));
}

/// The pages of `medium` kept by the kernel.
fn kept_pages(medium: &Mapped) -> usize {
    let len = usize::try_from(medium.len()).unwrap();
    let mut pages = vec![0; len / BLOCK];
    let start = medium.address(PoolOffset(0), medium.len());
    // SAFETY: the range is mapped, and there is a byte for each of its pages.
    let code = unsafe { libc::mincore(start.cast_mut().cast(), len, pages.as_mut_ptr()) };
    assert_eq!(code, 0);
    pages.into_iter().filter(|page| page & 1 == 1).count()
}

#[test]
fn invalidated_file_is_read_from_device() {
    let file = disk_file(LEN);
    file.write_all_at(&[7; BLOCK], BLOCK_U64).unwrap();
    writeback_and_invalidate(&file).unwrap();
    let medium = Mapped::from_file(&file, &plain()).unwrap();
    if medium.describe().kind == MediaKind::File {
        assert_eq!(kept_pages(&medium), 0);
    }
    assert_eq!(medium.changed_lines(BlockNo(1), 0, &[7; BLOCK]), LineMask::EMPTY);
    assert!(kept_pages(&medium) > 0, "they are counted");
}

#[test]
fn growth_keeps_contents_under_load() {
    let file = tmpfs_file(LEN);
    for medium in
        [Mapped::from_file(&file, &plain()).unwrap(), Mapped::anonymous(LEN, &plain()).unwrap()]
    {
        medium.store_word(PoolOffset(LEN - 8), 77);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..20_000 {
                    medium.store_word(PoolOffset(0), i);
                    assert_eq!(medium.load_word(PoolOffset(0)), i);
                }
            });
            for step in 2..=20 {
                medium.grow(step * LEN).unwrap();
                assert_eq!(medium.len(), step * LEN);
                assert_eq!(medium.load_word(PoolOffset(step * LEN - 8)), 0);
                medium.store_word(PoolOffset(step * LEN - 8), step);
            }
        });
        assert_eq!(medium.load_word(PoolOffset(LEN - 8)), 77);
        assert_eq!(medium.load_word(PoolOffset(2 * LEN - 8)), 2);
        medium.check().unwrap();
        medium::check_medium(&medium);
        assert!(matches!(medium.grow(LEN), Err(OpenError::CannotGrow { .. })), "shrinks");
        assert!(matches!(medium.grow(20 * LEN + 1), Err(OpenError::BadLength { .. })));
    }
    assert_eq!(file.metadata().unwrap().len(), 20 * LEN);
}

#[test]
fn growth_is_bounded_by_reservation() {
    let reserved = 1 << 30;
    let medium = Mapped::anonymous(LEN, &plain().reserve_bytes(reserved)).unwrap();
    medium.grow(reserved).unwrap();
    medium.store_word(PoolOffset(reserved - 8), 1);
    let error = medium.grow(reserved + BLOCK_U64).unwrap_err().to_string();
    assert!(error.contains("address space"), "{error}");
    assert_eq!(medium.len(), reserved);
}

#[test]
fn bad_files_are_refused_by_name() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("medium");
    let opened = |path: &std::path::Path| Mapped::open(path, &plain()).unwrap_err();
    assert!(matches!(opened(&path), OpenError::Io { action: "open", .. }));
    let null = opened("/dev/null".as_ref());
    assert!(matches!(null, OpenError::NotMappable { .. }), "{null}");
    let file = File::create(&path).unwrap();
    assert!(matches!(opened(&path), OpenError::BadLength { len: 0, .. }));
    file.set_len(4097).unwrap();
    let error = opened(&path);
    assert!(matches!(error, OpenError::BadLength { len: 4097, unit: 4096, .. }));
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    let write_only = Mapped::from_file(&file, &plain()).map(drop);
    assert!(matches!(write_only, Err(OpenError::BadLength { .. })));
    assert!(Mapped::anonymous(0, &plain()).is_err());
    assert!(Mapped::anonymous(100, &plain()).is_err());
}

#[test]
fn files_are_created_fully_allocated() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("medium");
    assert!(matches!(create_file(&path, 100), Err(OpenError::BadLength { .. })));
    assert!(!path.exists());
    let file = create_file(&path, LEN).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), LEN);
    assert!(metadata.blocks() * 512 >= LEN, "sparse");
    assert_eq!(metadata.mode() & 0o777, 0o600, "others can open it");
    assert!(matches!(create_file(&path, LEN), Err(OpenError::Io { action: "create", .. })));
    assert!(path.exists(), "a file that existed is not removed");
    allocate_file(&file, BLOCK_U64).unwrap();
    assert_eq!(file.metadata().unwrap().len(), LEN, "never shortened");
    Mapped::open(&path, &plain()).unwrap().fence().unwrap();
}

#[test]
fn failed_creation_leaves_no_file() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("medium");
    let error = create_file(&path, 1 << 60).unwrap_err();
    assert!(matches!(error, OpenError::NoRoom { needed_mib: 0x100_0000_0000, .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn load_of_missing_page_poisons_range_only() {
    for file in [disk_file(LEN), tmpfs_file(LEN)] {
        let medium = Mapped::from_file(&file, &plain()).unwrap();
        let last = LEN - BLOCK_U64;
        let at = PoolOffset(last + 64);
        medium.store(at, &[5; 64]);
        medium.flush(at, 64);
        medium.fence().unwrap();
        file.set_len(last).unwrap();
        assert!(!medium.has_poison());
        medium.check_range(at, 64).unwrap();
        let mut bytes = [1; 64];
        medium.read(at, &mut bytes);
        assert_eq!(bytes, [0; 64]);
        assert_eq!(
            medium.poisoned_ranges(),
            [PoisonedRange { at: PoolOffset(last), len: BLOCK_U64 }]
        );
        let found = medium.check_range(at, 8);
        assert!(
            matches!(found, Err(MediaError::Poisoned { at: first }) if first == at),
            "{found:?}"
        );
        assert_eq!(medium.poisoned_in(PoolOffset(last - 8), 16), Some(PoolOffset(last)));
        medium.check_range(PoolOffset(0), last).unwrap();
        medium.store(PoolOffset(0), &[1; 9000]);
        medium.flush(PoolOffset(0), 9000);
        medium.fence().unwrap();
        medium.check().unwrap();
    }
}

#[test]
fn store_to_poisoned_page_fails_one_medium() {
    type Change<'a> = &'a dyn Fn(&Mapped, PoolOffset);
    let changes: [Change<'_>; 3] = [
        &|medium, at| {
            medium.store(at, &[1; 8]);
            medium.flush(at, 8);
        },
        &|medium, at| {
            medium.store_word(at, 1);
            medium.flush(at, 8);
        },
        &|medium, at| medium.stream(at, &[1; 100]),
    ];
    for change in changes {
        let (file, others) = (tmpfs_file(LEN), tmpfs_file(LEN));
        let medium = Mapped::from_file(&file, &plain()).unwrap();
        let other = Mapped::from_file(&others, &plain()).unwrap();
        file.set_len(BLOCK_U64).unwrap();
        let at = PoolOffset(2 * BLOCK_U64 + 64);
        medium.probe(PoolOffset(0), LEN);
        assert_eq!(medium.poisoned_ranges().len() as u64, LEN / BLOCK_U64 - 1);
        medium.check().unwrap();
        change(&medium, at);
        let lost =
            |result| matches!(result, Err(MediaError::StoreLost { at: found }) if found == at);
        assert!(lost(medium.check()));
        assert!(lost(medium.fence()));
        medium.stream(PoolOffset(4 * BLOCK_U64), &[1; 9000]);
        assert!(lost(medium.fence()), "the first address is kept");
        other.store_word(PoolOffset(0), 1);
        other.fence().unwrap();
        other.check().unwrap();
    }
}

#[test]
fn poisoned_page_is_not_synced_as_zeroes() {
    let file = disk_file(LEN);
    let medium = Mapped::from_file(&file, &plain()).unwrap();
    let at = PoolOffset(LEN - BLOCK_U64);
    medium.store_word(at, 7);
    medium.flush(at, 8);
    file.set_len(at.0).unwrap();
    assert_eq!(medium.load_word(at), 0);
    assert!(matches!(medium.fence(), Err(MediaError::StoreLost { at: lost }) if lost == at));
}

#[test]
fn truncation_before_fence_fails_fence() {
    let lost = |result| matches!(result, Err(MediaError::StoreLost { .. }));
    for file in [disk_file(2 * BLOCK_U64), tmpfs_file(2 * BLOCK_U64)] {
        let medium = Mapped::from_file(&file, &plain()).unwrap();
        let at = PoolOffset(BLOCK_U64 + 64);
        medium.store(at, &[7; 64]);
        file.set_len(BLOCK_U64).unwrap();
        medium.flush(at, 64);
        assert!(lost(medium.fence()), "{medium:?}");
    }
    // The fence syncs all streams of a file medium, and its flushes before the file was cut.
    let changes: [&dyn Fn(&Mapped); 2] =
        [&|medium| medium.stream(PoolOffset(BLOCK_U64), &[7; BLOCK]), &|medium| {
            medium.store_word(PoolOffset(BLOCK_U64), 7);
            medium.flush(PoolOffset(BLOCK_U64), 8);
        }];
    for change in changes {
        let file = disk_file(2 * BLOCK_U64);
        let medium = Mapped::from_file(&file, &plain()).unwrap();
        change(&medium);
        file.set_len(BLOCK_U64).unwrap();
        assert!(lost(medium.fence()) || medium.describe().kind != MediaKind::File);
    }
}

#[test]
fn many_poisoned_pages_are_known() {
    let len = 3000 * BLOCK_U64;
    let file = tmpfs_file(len);
    let medium = Mapped::from_file(&file, &plain()).unwrap();
    file.set_len(BLOCK_U64).unwrap();
    // All but one of those that are lost.
    medium.probe(PoolOffset(0), 7 * BLOCK_U64);
    medium.probe(PoolOffset(8 * BLOCK_U64), len - 8 * BLOCK_U64);
    medium.check().unwrap();
    assert_eq!(medium.poisoned_ranges().len(), 2998);
    let poisoned_in = |first, len| medium.poisoned_in(PoolOffset(first), len).map(|at| at.0);
    assert_eq!(poisoned_in(0, BLOCK_U64), None);
    assert_eq!(poisoned_in(5, BLOCK_U64), Some(BLOCK_U64));
    assert_eq!(poisoned_in(7 * BLOCK_U64, BLOCK_U64), None);
    assert_eq!(poisoned_in(7 * BLOCK_U64 + 9, BLOCK_U64), Some(8 * BLOCK_U64));
    assert_eq!(poisoned_in(len - 5, 5), Some(len - 5));
    assert_eq!(poisoned_in(7 * BLOCK_U64, 0), None);
    assert_eq!(medium.load_word(PoolOffset(0)), 0);
    medium.fence().unwrap();
}

#[test]
fn each_access_to_missing_page_is_caught() {
    type Touch<'a> = (&'a str, bool, &'a dyn Fn(&Mapped));
    let touches: [Touch<'_>; 7] = [
        ("load", true, &|medium| assert_eq!(medium.load_word(PoolOffset(BLOCK_U64)), 0)),
        ("compare", true, &|medium| {
            medium.changed_lines(BlockNo(1), 0, &[0; BLOCK]);
        }),
        ("probe", true, &|medium| medium.probe(PoolOffset(BLOCK_U64 - 1), 2)),
        ("send", true, &|medium| {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let pieces = [Piece::Stored { at: PoolOffset(BLOCK_U64), len: BLOCK }];
            medium.send(ours.as_fd(), &pieces).unwrap_err();
        }),
        ("store", false, &|medium| medium.store(PoolOffset(BLOCK_U64), &[1])),
        ("word", false, &|medium| medium.store_word(PoolOffset(BLOCK_U64), 1)),
        ("stream", false, &|medium| medium.stream(PoolOffset(BLOCK_U64), &[1; BLOCK])),
    ];
    for (name, is_load, touch) in touches {
        let file = tmpfs_file(LEN);
        let medium = Mapped::from_file(&file, &plain()).unwrap();
        file.set_len(BLOCK_U64).unwrap();
        touch(&medium);
        let ranges = medium.poisoned_ranges();
        assert_eq!(ranges, [PoisonedRange { at: PoolOffset(BLOCK_U64), len: BLOCK_U64 }], "{name}");
        let found = medium.check();
        assert_eq!(found.is_ok(), is_load, "{name}: {found:?}");
    }
}

#[test]
fn threads_share_medium_and_counters() {
    let medium = Mapped::from_file(&disk_file(LEN), &plain()).unwrap();
    std::thread::scope(|scope| {
        for block in 0..LEN / BLOCK_U64 {
            let medium = &medium;
            scope.spawn(move || {
                let at = BlockNo(block).offset();
                medium.stream(at, &[block.to_le_bytes()[0]; BLOCK]);
                medium.store(at.plus(8), b"store");
                medium.flush(at.plus(8), 5);
                medium.fence().unwrap();
            });
        }
    });
    let (counters, blocks) = (medium.counters(), LEN / BLOCK_U64);
    assert_eq!(counters.bytes_stored, blocks * (BLOCK_U64 + 5));
    assert_eq!(counters.lines_stored, blocks * 65);
    assert_eq!((counters.lines_flushed, counters.fences), (blocks, blocks));
}

#[test]
fn mapping_slot_is_reused_after_release() {
    // More often than there are slots for mappings.
    for _ in 0..1500 {
        drop(Mapped::anonymous(BLOCK_U64, &plain()).unwrap());
    }
}

/// Runs an ignored test of this binary in a separate process.
fn run_child(name: &str) -> std::process::ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--ignored", "--test-threads=1"]);
    child.output().unwrap().status
}

/// Opens a medium, and then faults in a foreign mapping.
fn fault_elsewhere() {
    let _medium = Mapped::anonymous(BLOCK_U64, &plain()).unwrap();
    let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all(&[1; BLOCK]).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: maps a file at a place that the kernel chooses.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), BLOCK, protection, flags, fd, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    file.set_len(0).unwrap();
    // SAFETY: the page is mapped; that the read faults is what is tested.
    let _byte = unsafe { place.cast::<u8>().read_volatile() };
}

#[test]
#[ignore = "ends the process; run by foreign_faults_still_kill"]
fn child_faults_elsewhere() {
    fault_elsewhere();
}

#[test]
#[ignore = "ends the process; run by foreign_faults_reach_the_previous_handler"]
fn child_faults_elsewhere_with_a_handler() {
    extern "C" fn leave(_signal: libc::c_int) {
        // SAFETY: allowed in a signal handler.
        unsafe { libc::_exit(42) }
    }
    let handler: extern "C" fn(libc::c_int) = leave;
    // SAFETY: the handler only ends the process.
    unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) };
    fault_elsewhere();
}

#[test]
#[ignore = "ends the process; run by sent_signal_still_kills"]
fn child_is_sent_the_signal() {
    // The runtime's own handler would swallow the first signal that is sent.
    // SAFETY: restores the default action.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let _medium = Mapped::anonymous(BLOCK_U64, &plain()).unwrap();
    // SAFETY: sends a signal to this very thread.
    unsafe { libc::raise(libc::SIGBUS) };
}

#[test]
fn foreign_faults_still_kill() {
    assert_eq!(run_child("child_faults_elsewhere").signal(), Some(libc::SIGBUS));
}

#[test]
fn foreign_faults_reach_the_previous_handler() {
    assert_eq!(run_child("child_faults_elsewhere_with_a_handler").code(), Some(42));
}

#[test]
fn sent_signal_still_kills() {
    assert_eq!(run_child("child_is_sent_the_signal").signal(), Some(libc::SIGBUS));
}
