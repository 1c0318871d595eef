//! A file system under a mount, in a separate process: this program with a hidden subcommand. It serves until its
//! standard input ends, at the latest with its parent.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use everbyte_device::meter::Meter;
use everbyte_fs::{AccessTimes, IndexKind};
use everbyte_fuse::{Mount, MountOptions, Privileges};
use everbyte_media::{Mapped, MediaOptions};
use fuser::{BackgroundSession, Filesystem, Session};

use super::fuse_options::{Caching, FuseOptions, config};
use super::plain::Plain;
use crate::index::place::{file_system, sparse_file};

/// Inodes of our file system.
const INODES: u64 = 1 << 20;

/// The file systems of this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ServedFs {
    /// One that answers with constants.
    Null,
    /// Tables and vectors in memory.
    Plain,
    /// Ours, in memory of the process, with the flushes that persistent memory needs.
    Everbyte,
}

/// Serve a file system to the benchmark.
#[derive(clap::Args)]
pub(crate) struct ServeMountArgs {
    /// File system to serve.
    #[arg(long = "fs", value_enum)]
    pub(crate) fs: ServedFs,
    /// The kernel's caching.
    #[arg(long, value_enum)]
    pub(crate) caching: Caching,
    /// Directory to mount on.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Threads that serve.
    #[arg(long)]
    pub(crate) threads: usize,
    /// Bytes of our pool.
    #[arg(long)]
    pub(crate) size: u64,
}

/// A mount that ends when this is dropped.
enum Mounted {
    Fuser(BackgroundSession),
    Ours(Mount),
}

impl ServedFs {
    /// Its name in the results and on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Plain => "plain",
            Self::Everbyte => "everbyte",
        }
    }
}

/// Mounts and serves until standard input ends.
///
/// # Errors
/// It cannot be mounted, or unmounted.
pub(crate) fn serve(args: &ServeMountArgs) -> Result<()> {
    let options = FuseOptions::new(args.caching);
    let mounted = match args.fs {
        ServedFs::Null => Mounted::Fuser(session(Plain::new(options, false), args)?),
        ServedFs::Plain => Mounted::Fuser(session(Plain::new(options, true), args)?),
        ServedFs::Everbyte => Mounted::Ours(ours(args)?),
    };
    let mut out = io::stdout().lock();
    out.write_all(b"ready\n")?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    match mounted {
        Mounted::Fuser(session) => Ok(session.umount_and_join()?),
        Mounted::Ours(mount) => mount.unmount().map(|_| ()).map_err(Into::into),
    }
}

fn session<F: Filesystem>(fs: F, args: &ServeMountArgs) -> Result<BackgroundSession> {
    let session = Session::new(fs, &args.dir, &config(args.fs.name(), args.threads))
        .with_context(|| format!("cannot mount on {}", args.dir.display()))?;
    Ok(session.spawn()?)
}

fn ours(args: &ServeMountArgs) -> Result<Mount> {
    // The first touch of persistent memory zeroes no page, so all pages are touched before the measurement.
    let options = MediaOptions::new().force_flush(true).populate(true);
    let medium = Mapped::from_file(&sparse_file(args.size)?, &options)?;
    let fs = file_system(medium, IndexKind::default(), None, INODES)?;
    let options = MountOptions {
        source: "everbyte-bench/everbyte".to_owned(),
        allow_other: false,
        read_only: false,
        threads: args.threads,
        access_times: AccessTimes::default(),
        caching: args.caching.ours(),
        privileges: Privileges::default(),
        exec: true,
        dir_access_times: true,
    };
    Ok(Mount::new(Arc::new(fs), &args.dir, &options, &Meter::new(8))?)
}
