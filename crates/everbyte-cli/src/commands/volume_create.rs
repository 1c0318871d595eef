//! `everbyte volume create`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::{PossibleValue, PossibleValuesParser};
use everbyte::backing::{self, BackingError};
use everbyte_block::{BLOCK_NAME, CACHE_NAME};
use everbyte_cache::{Mode, Policy, usable_policies};
use everbyte_control::{NewCache, NewFs, NewVolume, Request, Response};
use everbyte_fs::{FS_NAME, IndexKind};
use everbyte_pool::LANES_DEFAULT;
use everbyte_server::ask;
use everbyte_swap_volume::SWAP_NAME;

use super::trust::TrustArgs;
use super::unexpected;
use crate::arguments::{UsageError, parse_backing};
use crate::output;
use crate::size::{parse_size, show_size};

/// The engine's, as the header of a volume has it.
#[allow(clippy::cast_possible_truncation, reason = "it is a constant, and far smaller")]
const CHECKPOINT_LINES_DEFAULT: u32 = everbyte_pool::format::CHECKPOINT_LINES_DEFAULT as u32;
/// Size of a page of a cache, in bytes.
const PAGE_BYTES: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p disk --size 256M
  everbyte volume create /dev/shm/p database --size 10G --lanes 32
  everbyte volume create /dev/pmem0 ledger --size 10G --checksum crc32c
  everbyte volume create /dev/shm/p files --kind fs --size 10G
  everbyte volume create /dev/shm/p more --kind swap --size 4G
  everbyte volume create /dev/shm/p scratch --size 1T        more than the pool has: thin
  everbyte volume create /dev/shm/p fast --kind cache --backing /dev/sdb --scm 8G --dram 2G
  everbyte volume create /dev/shm/p remote --kind cache --backing nbd://host/disk --scm 8G

A volume takes space as it is written, besides its log, which is there from the start. A volume
may be larger than the pool; `everbyte volume list` shows what is provisioned and used.

A file system (--kind fs) is used through 'everbyte mount'. It has room for one file for each 16K of
its size; --delta, --checksum and --threshold are for block volumes and caches.

A swap volume (--kind swap) has a multiple of 2M, which it takes from the pool at once. It keeps
nothing: not after a crash, nor for the next that uses it. 'everbyte serve' exports it over NBD as a
device for the swap of other machines: 'nbd-client -swap', then 'mkswap' and 'swapon'. Do not swap
this machine itself to it: with no memory left, the server that is to make room may wait for room.

A cache keeps the pages of a slower backing device that are used most, and is as large as that
device. A flush makes writes durable in the pool; the cache writes them back later. So use the backing
device through the cache only, until `everbyte volume detach` has written everything back. A cache
takes of the pool its --scm, as much again as its --dram, a sixteenth of both, 16M at most, its log and
its map. Of the server's DRAM it takes, beside --dram, about 90 bytes for each page of 4096 bytes in
either tier: 180M for 8G of --scm. 'everbyte volume resize' changes its DRAM and SCM, and its size when
the backing device has grown; 'everbyte volume attach' attaches a backing device that has moved.";

const DELTA_DEFAULT: &str = "auto";
const CHECKSUM_DEFAULT: &str = "none";
const THRESHOLD_DEFAULT: u32 = 50;
const MODE_DEFAULT: &str = "write-back";
const POLICY_DEFAULT: &str = "everbyte";
const SMALL_WRITE_DEFAULT: u16 = 512;

/// Make a volume in a pool.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume: up to 64 letters, digits, '.', '_' and '-', not beginning with '.' or '-'.
    name: String,
    /// Size that its users see, such as 256M, a multiple of 512 bytes. Not for a cache, which has
    /// that of its backing device.
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: Option<u64>,
    /// Kind of the volume: a block volume, a cache of a backing device, a file system, or swap, which
    /// keeps nothing after a crash.
    #[arg(long, default_value = BLOCK_NAME, value_parser = [BLOCK_NAME, CACHE_NAME, FS_NAME, SWAP_NAME])]
    kind: String,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    fs: FsArgs,
    /// Change detection: compare writes with what is stored, and store changed lines only; where it
    /// pays, always, or never.
    #[arg(long, help_heading = "Block volumes and caches", default_value = DELTA_DEFAULT, value_parser = ["auto", "on", "off"])]
    delta: String,
    /// Checksum of every block, by which 'everbyte pool scrub' and every read notice bytes that are
    /// not what was stored: none, or a CRC-32C. It cannot be changed later.
    #[arg(long, help_heading = "Block volumes and caches", default_value = CHECKSUM_DEFAULT, value_parser = ["none", "crc32c"])]
    checksum: String,
    /// A write that changes at least this share of a block replaces the block instead of logging
    /// the old bytes: 0 always, 101 only what the log has no room for.
    #[arg(long, help_heading = "Block volumes and caches", default_value_t = THRESHOLD_DEFAULT, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(0..=101))]
    threshold: u32,
    /// Size of the log over all lanes, such as 16M. Left out, it is 1/32 of the volume's size, at
    /// least 2M and at most 128M, and at least 320K for each lane.
    #[arg(long, help_heading = "The log", value_parser = parse_size, value_name = "SIZE")]
    log_size: Option<u64>,
    /// Lanes of the log: how many threads can write at once.
    #[arg(long, help_heading = "The log", default_value_t = LANES_DEFAULT, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    lanes: u32,
    /// Dirty lines of 64 bytes, stored and not yet durable, at which a checkpoint begins in the
    /// background before its time has come; writers wait for it at twice as many. Fewer make flushes
    /// shorter, and checkpoints more frequent. 65536 lines are 4 MiB.
    #[arg(long, help_heading = "The log", default_value_t = CHECKPOINT_LINES_DEFAULT, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_lines: u32,
    /// For swap: show no program what another left, and free nothing unwiped. Costs a write of 2M of
    /// zeroes for each 2M that is lent again.
    #[arg(long, help_heading = "Swap volumes")]
    wipe: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print the new volume as JSON.
    #[arg(long)]
    json: bool,
}

/// Settings of a file system.
#[derive(clap::Args)]
struct FsArgs {
    /// The index over inode tables. A direct index takes 8 bytes for each possible table at creation. A window takes 2M at a
    /// time, in one piece, for tables and index. The default is direct.
    #[arg(long, help_heading = "File systems", value_name = "INDEX", value_parser = indexes())]
    index: Option<String>,
    /// Size of a node of an index that is a tree: a power of two from 64 to 4096 bytes.
    #[arg(long, help_heading = "File systems", value_parser = parse_size, value_name = "SIZE", hide = true)]
    index_node: Option<u64>,
    /// Most files, directories and links that there can be. Left out, it is one for each 16K of the
    /// size.
    #[arg(long, help_heading = "File systems", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    inodes: Option<u64>,
    /// Put inodes into tables of 2M instead of 4K.
    #[arg(long, help_heading = "File systems")]
    large_inode_tables: bool,
}

/// The names of indexes. The help does not list trees: they only reproduce the figures of a paper.
fn indexes() -> PossibleValuesParser {
    let value = |kind: IndexKind| PossibleValue::new(kind.name()).hide(kind.is_tree());
    PossibleValuesParser::new(IndexKind::ALL.map(value))
}

impl FsArgs {
    fn wanted(&self, is_fs: bool) -> Result<Option<Box<NewFs>>, UsageError> {
        let Self { index, index_node, inodes, large_inode_tables } = self;
        let is_given =
            index.is_some() || index_node.is_some() || inodes.is_some() || *large_inode_tables;
        if is_given && !is_fs {
            return Err(UsageError(
                "--index, --index-node, --inodes and --large-inode-tables are for file systems: \
                 add --kind fs, or leave them out"
                    .into(),
            ));
        }
        let too_large = |_| UsageError("--index-node is at most 4K".into());
        let new = NewFs {
            index: index.clone().unwrap_or_else(|| IndexKind::default().name().to_owned()),
            index_node_bytes: index_node.map(u32::try_from).transpose().map_err(too_large)?,
            inodes_max: *inodes,
            large_tables: *large_inode_tables,
        };
        Ok(is_given.then(|| Box::new(new)))
    }
}

/// Settings of a cache.
#[derive(clap::Args)]
struct CacheArgs {
    /// The backing device, which a cache needs: a file, a block device, nbd://HOST:PORT/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH.
    #[arg(long, help_heading = "Caches", value_name = "PATH|URI", value_parser = parse_backing)]
    backing: Option<String>,
    /// SCM, space of the pool for a cache's pages, such as 256M, which a cache needs; at least 4K.
    #[arg(long, help_heading = "Caches", value_parser = parse_size, value_name = "SIZE")]
    scm: Option<u64>,
    /// DRAM for a cache's pages, such as 64M, at least 4K. Left out, it is a third of --scm.
    #[arg(long, help_heading = "Caches", value_parser = parse_size, value_name = "SIZE")]
    dram: Option<u64>,
    /// Write mode: the backing device gets what is written later, in the order of its sectors; at
    /// once, as well as the cache; or at once instead of the cache, for pages that are not cached.
    #[arg(long, help_heading = "Caches", default_value = MODE_DEFAULT, value_parser = Mode::ALL.map(Mode::name))]
    mode: String,
    /// Replacement policy, by a name that 'everbyte sim' knows. Other policies of 'everbyte sim' are
    /// for comparison: they know one tier only, or keep pages in both at once (spitfire).
    #[arg(long, help_heading = "Caches", default_value = POLICY_DEFAULT,
          value_parser = PossibleValuesParser::new(usable_policies().map(Policy::name)))]
    policy: String,
    /// Writes of at most this many bytes are small, and best made in SCM.
    #[arg(long, help_heading = "Caches", default_value_t = SMALL_WRITE_DEFAULT, value_name = "BYTES",
          value_parser = clap::value_parser!(u16).range(0..=4096))]
    small_write: u16,
}

impl Args {
    /// Checks that what is there fits the kind, and names all that is missing or too much at once.
    fn check(&self) -> Result<(), UsageError> {
        if self.wipe && self.kind != SWAP_NAME {
            return Err(UsageError(
                "--wipe is for swap volumes: add --kind swap, or leave it out".into(),
            ));
        }
        self.check_block_options()?;
        let CacheArgs { backing, scm, dram, mode, policy, small_write } = &self.cache;
        if self.kind != CACHE_NAME {
            let for_caches = backing.is_some()
                || scm.is_some()
                || dram.is_some()
                || mode != MODE_DEFAULT
                || policy != POLICY_DEFAULT
                || *small_write != SMALL_WRITE_DEFAULT;
            return match (for_caches, self.size) {
                (true, _) => Err(UsageError(
                    "--backing, --scm, --dram, --mode, --policy and --small-write are for caches: \
                     add --kind cache and leave out --size, or leave them out"
                        .into(),
                )),
                (false, None) => {
                    Err(UsageError(format!("a {} volume needs --size SIZE", self.kind)))
                }
                (false, Some(_)) => Ok(()),
            };
        }
        if backing.is_some() && scm.is_some() && self.size.is_none() {
            return Ok(());
        }
        Err(UsageError(
            "a cache is made with --backing PATH|URI and --scm SIZE, and without --size: it is as \
             large as its backing device"
                .into(),
        ))
    }
}

impl Args {
    /// Refuses what would be passed over: nobody is to believe that there are checksums where there are none.
    fn check_block_options(&self) -> Result<(), UsageError> {
        let is_for_blocks = self.delta != DELTA_DEFAULT
            || self.checksum != CHECKSUM_DEFAULT
            || self.threshold != THRESHOLD_DEFAULT;
        if is_for_blocks && [FS_NAME, SWAP_NAME].contains(&&*self.kind) {
            return Err(UsageError(format!(
                "--delta, --checksum and --threshold are for block volumes and caches: leave \
                 them out with --kind {}",
                self.kind
            )));
        }
        let has_log = self.log_size.is_some()
            || self.lanes != LANES_DEFAULT
            || self.checkpoint_lines != CHECKPOINT_LINES_DEFAULT;
        if has_log && self.kind == SWAP_NAME {
            return Err(UsageError(
                "--log-size, --lanes and --checkpoint-lines are for volumes with a log: leave them out \
                 with --kind swap"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// The backing device that `text` names, which must be there.
fn resolve(text: &str) -> anyhow::Result<String> {
    match backing::resolve(text) {
        Err(error @ BackingError::NotFound { .. }) => {
            bail!("{error}: make the file first, such as by 'truncate -s 10G {text}'")
        }
        resolved => Ok(resolved?),
    }
}

impl CacheArgs {
    fn wanted(&self) -> anyhow::Result<Option<Box<NewCache>>> {
        let (Some(text), Some(scm_bytes)) = (&self.backing, self.scm) else { return Ok(None) };
        let third = (scm_bytes / 3 / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES);
        Ok(Some(Box::new(NewCache {
            backing: resolve(text)?,
            dram_bytes: self.dram.unwrap_or(third),
            scm_bytes,
            mode: self.mode.clone(),
            policy: self.policy.clone(),
            small_write_bytes: self.small_write,
        })))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let new = NewVolume {
        name: args.name.clone(),
        kind: args.kind.clone(),
        size_bytes: args.size.unwrap_or(0),
        delta: args.delta.clone(),
        checksum: args.checksum.clone(),
        threshold_percent: args.threshold,
        log_bytes: args.log_size,
        lanes: args.lanes,
        checkpoint_lines: (args.checkpoint_lines != CHECKPOINT_LINES_DEFAULT)
            .then_some(args.checkpoint_lines),
        cache: args.cache.wanted()?,
        fs: args.fs.wanted(args.kind == FS_NAME)?,
        wipe: args.wipe,
    };
    match ask(&args.pool, args.trust.access(), Request::VolumeCreate(new))? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => output::line(format!(
            "created {} volume {} of {} with a log of {}",
            volume.kind,
            volume.name,
            show_size(volume.size_bytes),
            show_size(volume.log_bytes)
        )),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}
