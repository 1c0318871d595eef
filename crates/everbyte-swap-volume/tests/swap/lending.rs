//! Lent runs: never lent twice and never lost, for every end of a process and every caller.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_plant::plant;
use everbyte_pool::file::{self, CreateOptions, FileError};
use everbyte_pool::{OpenOptions, Pool, lock_range};
use everbyte_swap_volume::plant::Bug;
use everbyte_swap_volume::{
    Lease, Lender, RUN_BYTES, ScratchDevice, SwapError, SwapOptions, SwapVolume, kinds,
};

use crate::test_pool::{POOL_BYTES, RUNS, TestPool, block_forks, end, runs_of};

/// An idle process with a lease.
struct Program {
    child: Child,
    bytes: Vec<std::ops::Range<u64>>,
}

impl Program {
    fn with(lease: Lease) -> Self {
        let Lease { file, ranges } = lease;
        let _only_this = block_forks();
        let mut command = Command::new("sh");
        command.args(["-c", "echo; exec sleep 600"]).stdin(file).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // `spawn` returns before the kernel has closed the child's copies of other descriptors.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        Self { child, bytes: ranges }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn killed_program_frees_its_runs() {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let first = Program::with(lender.lend(1, 10).unwrap());
    let second = Program::with(lender.lend(2, 20).unwrap());
    let (one, two) = (runs_of(&first.bytes), runs_of(&second.bytes));
    assert_eq!((one.len(), two.len()), (1, 2));
    assert!(one.is_disjoint(&two) && one.iter().chain(&two).all(|at| at % RUN_BYTES == 0));
    let status = lender.status().unwrap();
    assert_eq!((status.runs, status.lent, &*status.pids), (RUNS, 3, &[10, 20][..]));
    let rest = lender.lend(9, 30).unwrap();
    assert_eq!(runs_of(&rest.ranges).len(), 1, "there are no more");
    let full = lender.lend(1, 40).expect_err("nothing is free");
    assert!(full.to_string().contains("to process 10, 20, 30"), "{full}");
    second.kill();
    let again = lender.lend(2, 50).unwrap();
    assert_eq!(runs_of(&again.ranges), two);
    end((rest, again));
    assert_eq!(lender.status().unwrap().lent, 1);
}

#[test]
fn mapping_keeps_lease_after_close() {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let (first, second) = (lender.lend(1, 1).unwrap(), lender.lend(2, 1).unwrap());
    let media = MediaOptions::new();
    let medium = Mapped::of_ranges(&first.file, &first.ranges, RUNS * RUN_BYTES, &media).unwrap();
    assert_eq!(medium.len(), RUN_BYTES);
    medium.append(&second.file, &second.ranges).unwrap();
    assert_eq!(medium.len(), 3 * RUN_BYTES);
    let too_much = std::slice::from_ref(&(0..4 << 30));
    assert!(medium.append(&second.file, too_much).is_err(), "so much was not reserved");
    end((first, second));
    assert_eq!(lender.status().unwrap().lent, 3);
    medium.store(PoolOffset(RUN_BYTES - 2), &[1, 2, 3, 4]);
    let mut found = [0; 4];
    medium.read(PoolOffset(RUN_BYTES - 2), &mut found);
    assert_eq!(found, [1, 2, 3, 4], "runs follow each other");
    end(medium);
    assert_eq!(lender.status().unwrap().lent, 0);
}

/// Kills a server with two borrowers, starts another server, and lends all free runs.
/// Returns true if a run was lent twice.
fn lends_twice_after_a_restart() -> bool {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let programs = [1, 2].map(|pid| Program::with(lender.lend(1, pid).unwrap()));
    end(lender);
    let lender = test_pool.lender();
    let rest = lender.lend(RUNS, 3).unwrap();
    let taken: BTreeSet<u64> = programs.iter().flat_map(|p| runs_of(&p.bytes)).collect();
    !taken.is_disjoint(&runs_of(&rest.ranges))
}

#[test]
fn restarted_server_leases_only_free_runs() {
    assert!(!lends_twice_after_a_restart());
}

#[test]
fn unqueried_run_is_leased_once() {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let all = Program::with(lender.lend(RUNS, 1).unwrap());
    let _bug = plant(Bug::LentWithoutAsking);
    assert!(matches!(lender.lend(1, 2), Err(SwapError::Full { .. })), "its lock is not to be had");
    drop(all);
}

/// Shrinks the volume under a program with only the second halves of its runs.
fn shrinks_under_a_program_with_halves() -> bool {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let runs = lender.volume().runs();
    end(lender);
    let file = File::options().read(true).write(true).open(test_pool.file.path()).unwrap();
    for run in runs {
        let start = run.0 * 4096;
        assert!(lock_range(&file, &(start + RUN_BYTES / 2..start + RUN_BYTES)).unwrap());
    }
    test_pool.lender().resize(RUN_BYTES).is_ok()
}

#[test]
fn run_is_free_only_in_whole() {
    assert!(!shrinks_under_a_program_with_halves());
}

#[test]
fn shrink_takes_free_runs_names_borrowers() {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let lease = Program::with(lender.lend(2, 77).unwrap());
    let refused = lender.resize(RUN_BYTES).expect_err("two runs are lent");
    assert!(refused.to_string().contains("2 runs of 2 MiB of volume s are lent, to process 77"));
    assert_eq!(lender.status().unwrap().runs, RUNS);
    lender.resize(2 * RUN_BYTES).unwrap();
    assert_eq!(lender.volume().runs().len(), 2);
    let kept: BTreeSet<u64> = lender.volume().runs().iter().map(|run| run.0 * 4096).collect();
    assert_eq!(kept, runs_of(&lease.bytes), "those that are lent stay");
    lender.resize(3 * RUN_BYTES).unwrap();
    let fresh = lender.lend(5, 1).unwrap();
    assert_eq!(runs_of(&fresh.ranges).len(), 1, "the new one");
    end(fresh);
    assert!(matches!(lender.close(), Err(SwapError::Lent { lent: 2, .. })));
    lease.kill();
    lender.close().unwrap();
    assert!(lender.lend(1, 1).is_err(), "it is being deleted");
    assert!(lender.volume().volume().size_bytes().unwrap() == 3 * RUN_BYTES);
}

#[test]
fn leased_pool_is_not_overwritten_or_repaired() {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let program = Program::with(lender.lend(1, 1).unwrap());
    end(lender);
    let path = test_pool.file.path();
    let over =
        CreateOptions { len_bytes: Some(POOL_BYTES), force: true, ..CreateOptions::default() };
    let refused = file::create(path, &over).expect_err("a program has memory of it");
    assert!(matches!(refused, FileError::Lent { .. }), "{refused}");
    assert!(matches!(file::repair(path, false, kinds), Err(FileError::Lent { .. })));
    let pool = test_pool.pool();
    assert!(pool.check().unwrap().is_clean());
    end(pool);
    program.kill();
    assert!(file::repair(path, false, kinds).unwrap().mended.is_empty());
    // A process that another test starts has the pool's lock for a moment.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        match file::create(path, &over) {
            Err(FileError::InUse(_)) if std::time::Instant::now() < deadline => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            created => {
                created.unwrap();
                break;
            }
        }
    }
}

/// Writes to a lent run, ends the lease, and returns true if the next lease sees the bytes.
fn sees_what_another_left(wipes: bool) -> bool {
    use std::os::unix::fs::FileExt;
    let test_pool = TestPool::new(wipes);
    let lender = test_pool.lender();
    let secret = |file: &File, at: u64| file.write_all_at(b"secret", at).unwrap();
    let lease = lender.lend(RUNS, 1).unwrap();
    lease.ranges.iter().for_each(|bytes| secret(&lease.file, bytes.end - 4096));
    end(lease);
    let lease = lender.lend(RUNS, 2).unwrap();
    lease.ranges.iter().any(|bytes| {
        let mut found = [0; 6];
        lease.file.read_exact_at(&mut found, bytes.end - 4096).unwrap();
        found == *b"secret"
    })
}

#[test]
fn wiped_lease_shows_no_old_bytes() {
    assert!(!sees_what_another_left(true));
    assert!(sees_what_another_left(false), "nobody asked for that");
}

/// A device hides earlier contents without a wipe. A wipe of a large volume would delay its client.
#[test]
fn wipe_runs_after_export() {
    use std::os::unix::fs::FileExt;
    let test_pool = TestPool::new(true);
    let lender = test_pool.lender();
    let read = |at: u64| {
        let mut found = [0; 6];
        File::open(test_pool.file.path()).unwrap().read_exact_at(&mut found, at).unwrap();
        found
    };
    let lease = lender.lend(RUNS, 1).unwrap();
    let at = lease.ranges[0].start;
    lease.file.write_all_at(b"secret", at).unwrap();
    end(lease);
    let device = lender.scratch().unwrap();
    assert_eq!(read(at), *b"secret");
    let mut all = vec![1; usize::try_from(RUNS * RUN_BYTES).unwrap()];
    device.read(0, &mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 0));
    drop(device);
    let lease = lender.lend(RUNS, 1).unwrap();
    assert!(lease.ranges.iter().any(|range| range.contains(&at)));
    assert_eq!(read(at), [0; 6]);
}

#[test]
fn private_memory_is_not_leased() {
    let medium = Arc::new(Mapped::anonymous(POOL_BYTES, &MediaOptions::new()).unwrap());
    Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = Arc::new(Pool::open(medium, kinds(), &OpenOptions::default()).unwrap());
    let volume = SwapVolume::create(&pool, "s", RUN_BYTES, SwapOptions::default()).unwrap();
    let lender = Lender::new(volume).unwrap();
    assert!(matches!(lender.lend(1, 1), Err(SwapError::NotShared)));
    assert_eq!(lender.status().unwrap().lent, 0);
}

/// A device over all runs of a volume of `size_bytes`, rounded up. Its pool ends with the device.
fn scratch(size_bytes: u64) -> Arc<dyn BlockDevice> {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(POOL_BYTES + 16 * RUN_BYTES).unwrap();
    let medium = Arc::new(Mapped::from_file(&file, &MediaOptions::new()).unwrap());
    Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = Pool::open(Arc::clone(&medium), kinds(), &OpenOptions::default()).unwrap();
    let whole = size_bytes.next_multiple_of(RUN_BYTES);
    let volume = SwapVolume::create(&Arc::new(pool), "s", whole, SwapOptions::default());
    let lease = Lender::new(volume.unwrap()).unwrap().lend(u64::MAX, 1).unwrap();
    Arc::new(ScratchDevice::new(medium, lease, size_bytes))
}

#[test]
fn scratch_device_passes_conformance() {
    everbyte_device::conformance(&|size_bytes| scratch(size_bytes));
}

#[test]
fn scratch_device_shows_no_old_bytes() {
    let test_pool = TestPool::new(false);
    let lender = test_pool.lender();
    let mut found = vec![1; 8192];
    let program = lender.lend(1, 5).unwrap();
    assert!(matches!(lender.scratch(), Err(SwapError::Lent { lent: 1, .. })));
    end(program);
    for _ in 0..2 {
        let device = lender.scratch().unwrap();
        assert_eq!(device.geometry().size_bytes, RUNS * RUN_BYTES);
        assert!(
            matches!(lender.lend(1, 2), Err(SwapError::Full { .. })),
            "the device has them all"
        );
        device.read(RUN_BYTES - 4096, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0));
        device.write(RUN_BYTES - 100, &[7; 200], Fua::No).unwrap();
        device.read(RUN_BYTES - 4096, &mut found).unwrap();
        assert_eq!(found.iter().filter(|&&byte| byte == 7).count(), 200);
        end(device);
    }
}
