//! Exact costs of operations: fences, and bytes of log.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::FsOptions;
use everbyte_media::Medium;

use crate::operations::{ACLS, AclName, Mode, Op, Subject};
use crate::posix::{create, name};
use crate::random::options;
use crate::real::Real;

/// Fences, and bytes of log, of `op`.
fn cost(real: &mut Real<SimMedium>, op: &Op) -> (u64, u64) {
    let before = (real.fs.volume().medium().counters(), real.fs.volume().log_bytes());
    real.make(op).unwrap();
    let counters = real.fs.volume().medium().counters().since(&before.0);
    (counters.fences, real.fs.volume().log_bytes() - before.1)
}

#[test]
fn operation_costs_one_fence_and_little_log() {
    let medium = Arc::new(SimMedium::new(24 << 20));
    let mut real = Real::make(&medium, &options());
    for op in [
        Op::Mkdir(vec!["d"], 0o755),
        Op::Mkdir(vec!["d", "e"], 0o755),
        Op::Create(vec!["a"], 0o644),
        Op::Create(vec!["b"], 0o644),
        Op::Create(vec!["d", "c"], 0o644),
        Op::Acl(vec!["d"], AclName::Default, ACLS[2]),
        Op::Sync,
    ] {
        real.make(&op).unwrap();
    }
    let rename = |from: &[&'static str], to: &[&'static str]| {
        Op::Rename(from.to_vec(), to.to_vec(), Mode::Replace)
    };
    let ops = [
        ("create", Op::Create(vec!["n"], 0o644), 384),
        ("mkdir", Op::Mkdir(vec!["m"], 0o755), 384),
        ("chmod", Op::Chmod(vec!["a"], 0o600), 384),
        ("rename", rename(&["a"], &["z"]), 512),
        ("unlink", Op::Unlink(vec!["n"]), 512),
        ("inheriting", Op::Mkdir(vec!["d", "i"], 0o755), 384),
        ("rename over a file", rename(&["z"], &["b"]), 1024),
        ("rename across directories", rename(&["b"], &["d", "b"]), 1024),
        ("whiteout", Op::Rename(vec!["m"], vec!["w"], Mode::Whiteout), 1024),
        ("access list", Op::Acl(vec!["w"], AclName::Access, ACLS[2]), 384),
        ("chmod of a list", Op::Chmod(vec!["w"], 0o700), 384),
        ("unnamed", Op::Unnamed(vec!["d"], 0o600, 0), 384),
        ("first name", Op::LinkHand(0, vec!["first"]), 384),
        ("rename of a directory across", rename(&["d", "e"], &["e"]), 1024),
    ];
    for (name, op, log_max) in ops {
        // Without records in the new epoch, an operation pays for all of its changes.
        real.make(&Op::Sync).unwrap();
        let (fences, log) = cost(&mut real, &op);
        println!("{name}: {log} bytes of log");
        assert_eq!(fences, 1, "{name}");
        assert!(log <= log_max, "{name} takes {log} bytes of log");
    }
}

/// Bytes between the writes of the test: a line.
const LINE: u64 = 64;

#[test]
fn checkpoint_flush_is_bounded() {
    const LINES: u32 = 256;
    // An inode with its checksum, up to two buckets, and the words above them.
    const LINES_OF_REQUEST: u64 = 64;
    const FILE_LINES: u64 = 2048;
    let medium = Arc::new(SimMedium::new(24 << 20));
    let options = FsOptions { checkpoint_lines: LINES, ..options() };
    let mut real = Real::make(&medium, &options);
    let file = create(&real.fs, real.fs.root(), "f");
    let bytes = vec![1; usize::try_from(FILE_LINES * LINE).unwrap()];
    assert_eq!(real.fs.write(file, 0, &bytes).unwrap(), bytes.len());
    real.make(&Op::Sync).unwrap();
    let before = real.fs.volume().checkpoints();
    let bound = 2 * u64::from(LINES);
    let mut most = 0;
    let mut flushed_by = |what: &str, op: &mut dyn FnMut()| {
        let before = medium.counters();
        op();
        let flushed = medium.counters().since(&before).lines_flushed;
        assert!(flushed <= bound + LINES_OF_REQUEST, "{what} flushed {flushed} lines");
        most = flushed.max(most);
    };
    for line in 0..FILE_LINES {
        // Distant lines, so each write adds one.
        let at = line * 71 % FILE_LINES * LINE;
        flushed_by("a write", &mut || assert_eq!(real.fs.write(file, at, &[2; 8]).unwrap(), 8));
    }
    for number in 0..200 {
        let text = format!("name {number}");
        flushed_by("a name", &mut || _ = create(&real.fs, real.fs.root(), &text));
    }
    flushed_by("a sync", &mut || real.fs.sync().unwrap());
    assert!(real.fs.volume().checkpoints() > before + 3, "writers made checkpoints");
    assert!(most > u64::from(LINES), "no flush had much to do: {most} lines at most");
}

#[test]
fn closed_file_is_freed_in_one_batch() {
    let medium = Arc::new(SimMedium::new(24 << 20));
    let real = Real::make(&medium, &options());
    let fs = &real.fs;
    for parts in [0, 1, 3] {
        let file = create(fs, fs.root(), "f");
        (0..parts).for_each(|part| {
            assert_eq!(fs.write(file, part << 21, &[7; 9000]).unwrap(), 9000);
        });
        fs.sync().unwrap();
        fs.open_inode(file).unwrap();
        fs.unlink(fs.root(), name("f")).unwrap();
        let before = fs.volume().medium().counters();
        fs.close_inode(file).unwrap();
        let fences = fs.volume().medium().counters().since(&before).fences;
        assert_eq!(fences, 1, "with bytes in {parts} places");
    }
    assert_eq!(fs.nameless_files(), 0);
}
