//! `everbyte volume create`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use everbyte::backing::{self, BackingError};
use everbyte_block::{BLOCK_NAME, CACHE_NAME};
use everbyte_cache::{Mode, Policy, usable_policies};
use everbyte_control::{NewCache, NewFs, NewVolume, Request, Response};
use everbyte_fs::{FS_NAME, IndexKind};
use everbyte_pool::LANES_DEFAULT;
use everbyte_swap_volume::SWAP_NAME;

use super::trust::TrustArgs;
use super::unexpected;
use crate::arguments::{UsageError, parse_backing};
use crate::output;
use crate::session::ask;
use crate::size::{parse_size, show_size};

/// The engine's default, as in the header of a volume.
#[allow(clippy::cast_possible_truncation, reason = "a constant far below 2^32")]
const CHECKPOINT_LINES_DEFAULT: u32 = everbyte_pool::format::CHECKPOINT_LINES_DEFAULT as u32;
/// Size of a page of a cache, in bytes.
const PAGE_BYTES: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p disk --size 256M
  everbyte volume create /dev/shm/p database --size 10G -o lanes=32
  everbyte volume create /dev/pmem0 ledger --size 10G --checksum crc32c
  everbyte volume create /dev/shm/p files --kind fs --size 10G
  everbyte volume create /dev/shm/p more --kind swap --size 4G
  everbyte volume create /dev/shm/p scratch --size 1T        larger than the pool: thin
  everbyte volume create /dev/shm/p fast --kind cache --backing /dev/sdb --scm 8G --dram 2G
  everbyte volume create /dev/shm/p remote --kind cache --backing nbd://host/disk --scm 8G

A volume allocates its log at creation and other space on its first use. It can be larger than the pool: 'everbyte volume
list' shows provisioned and used space.

A file system (--kind fs) is used through 'everbyte mount'. The default number of inodes is one per 16K of its size.

A swap volume (--kind swap) has a multiple of 2M, allocated at creation. It is volatile: a crash and the end of a lease discard
its data. 'everbyte serve' exports it over NBD as a swap device for other machines: 'nbd-client -swap', then 'mkswap' and
'swapon'. Do not use it as the kernel's swap device on the server's machine: without free memory the server itself can
wait for the swap device.

A cache keeps the most-used pages of a slower backing device, and has the size of this device. A flush makes writes durable in the
pool. The cache writes them back later. Use the backing device only through the cache until 'everbyte volume detach' has
written everything back. A cache needs pool space for its --scm, for a copy of its --dram, for a sixteenth of both (at most
16M), for its log and its map. It needs server DRAM for its --dram, and about 90 bytes per page of 4096 bytes in either
tier: 180M for 8G of --scm. 'everbyte volume resize' changes its DRAM, its SCM, and its size after a growth of the backing
device. 'everbyte volume attach' attaches a moved backing device.

Tuning options (-o):
  delta=WHEN           change detection in block volumes and caches, storing only changed 64-byte lines: auto, on or
                       off. Default: auto
  threshold=PERCENT    block volumes and caches: a write with at least this share of changed lines replaces the block
                       instead of logging old bytes. 0: always. 101: only if the log is too small. Default: 50
  log-size=SIZE        size of the log over all lanes. Default: 1/32 of the volume, within 2M and 128M, and at least
                       320K per lane
  lanes=N              lanes of the log, 1 to 1024: the number of concurrent writers. Default: 8
  checkpoint-lines=N   count of dirty 64-byte lines that starts a checkpoint in the background. Writers wait at
                       twice the count. A lower count makes flushes shorter and checkpoints more
                       frequent. Default: 65536, 4 MiB
  inodes=N             file systems: maximum of files, directories and links. Default: one per 16K
  large-inode-tables   file systems: inode tables of 2M instead of 4K
  small-write=BYTES    caches: largest write, 0 to 4096, that the cache prefers to place in SCM. Default: 512";

const DELTA_DEFAULT: &str = "auto";
const CHECKSUM_DEFAULT: &str = "none";
const THRESHOLD_DEFAULT: u32 = 50;
const MODE_DEFAULT: &str = "write-back";
const POLICY_DEFAULT: &str = "everbyte";
const SMALL_WRITE_DEFAULT: u16 = 512;

/// Create a volume in a pool.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume: up to 64 letters, digits, '.', '_' and '-', not beginning with '.' or '-'.
    name: String,
    /// Visible size, such as 256M, a multiple of 512 bytes. A cache has the size of its backing device.
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: Option<u64>,
    /// Kind of the volume: a block volume, a cache of a backing device, a file system, or volatile swap
    /// space.
    #[arg(long, default_value = BLOCK_NAME, value_parser = [BLOCK_NAME, CACHE_NAME, FS_NAME, SWAP_NAME])]
    kind: String,
    #[command(flatten)]
    cache: CacheArgs,
    /// The index over inode tables. A direct index takes 8 bytes for each possible table at creation. A
    /// window takes 2M at a time, in one piece, for tables and index. The default is direct.
    #[arg(long, help_heading = "File systems", value_name = "INDEX", value_parser = indexes())]
    index: Option<String>,
    /// Checksum of every block, verified by 'everbyte pool scrub' and by every read: none, or a CRC-32C.
    /// It cannot be changed later.
    #[arg(long, help_heading = "Block volumes and caches", default_value = CHECKSUM_DEFAULT, value_parser = ["none", "crc32c"])]
    checksum: String,
    /// Wipe freed memory, and show no program the data of another program. Costs a write of 2M of zeroes
    /// per lease of 2M.
    #[arg(long, help_heading = "Swap volumes")]
    wipe: bool,
    /// Tuning options, listed below.
    #[arg(short = 'o', long = "options", value_name = "KEY=VALUE,...", default_value = "",
          hide_default_value = true, value_parser = parse_tuning)]
    tuning: Tuning,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print the new volume as JSON.
    #[arg(long)]
    json: bool,
}

/// The values of -o.
#[derive(clap::Parser, Clone, Debug)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Tuning {
    #[arg(long, default_value = DELTA_DEFAULT, value_parser = ["auto", "on", "off"])]
    delta: String,
    #[arg(long, default_value_t = THRESHOLD_DEFAULT, value_parser = clap::value_parser!(u32).range(0..=101))]
    threshold: u32,
    #[arg(long, value_parser = parse_size)]
    log_size: Option<u64>,
    #[arg(long, default_value_t = LANES_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=1024))]
    lanes: u32,
    #[arg(long, default_value_t = CHECKPOINT_LINES_DEFAULT, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_lines: u32,
    /// Bytes of a node of a tree index, a power of two from 64 to 4096. Undocumented: tree indexes only
    /// reproduce the figures of a paper.
    #[arg(long, value_parser = parse_size)]
    index_node: Option<u64>,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    inodes: Option<u64>,
    #[arg(long)]
    large_inode_tables: bool,
    #[arg(long, default_value_t = SMALL_WRITE_DEFAULT, value_parser = clap::value_parser!(u16).range(0..=4096))]
    small_write: u16,
}

/// Parses KEY=VALUE pairs, separated by commas, as options of a separate command line.
fn parse_tuning(list: &str) -> Result<Tuning, String> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    // The same parser as for options, so values have the same syntax and the same errors.
    Tuning::try_parse_from(words.map(|word| format!("--{word}"))).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").replace("'--", "'")
    })
}

/// The names of indexes. The help omits trees: they only reproduce the figures of a paper.
fn indexes() -> PossibleValuesParser {
    let value = |kind: IndexKind| PossibleValue::new(kind.name()).hide(kind.is_tree());
    PossibleValuesParser::new(IndexKind::ALL.map(value))
}

/// Settings of a cache.
#[derive(clap::Args)]
struct CacheArgs {
    /// The backing device of a cache: a file, a block device, nbd://HOST:PORT/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH.
    #[arg(long, help_heading = "Caches", value_name = "PATH|URI", value_parser = parse_backing)]
    backing: Option<String>,
    /// Pool space (SCM) for cached pages, such as 256M, at least 4K. Required for a cache.
    #[arg(long, help_heading = "Caches", value_parser = parse_size, value_name = "SIZE")]
    scm: Option<u64>,
    /// DRAM for cached pages, such as 64M, at least 4K. Default: a third of --scm.
    #[arg(long, help_heading = "Caches", value_parser = parse_size, value_name = "SIZE")]
    dram: Option<u64>,
    /// Write mode. write-back: write to the backing device later, in the order of its sectors.
    /// write-through: write to the cache and to the backing device. write-around: write uncached pages
    /// only to the backing device.
    #[arg(long, help_heading = "Caches", default_value = MODE_DEFAULT, value_parser = Mode::ALL.map(Mode::name))]
    mode: String,
    /// Replacement policy, as in 'everbyte sim'. Other policies of 'everbyte sim' are only for comparison.
    #[arg(long, help_heading = "Caches", default_value = POLICY_DEFAULT,
          value_parser = PossibleValuesParser::new(usable_policies().map(Policy::name)))]
    policy: String,
}

impl Args {
    /// Checks the options against the kind. The error names all missing or wrong options.
    fn check(&self) -> Result<(), UsageError> {
        if self.wipe && self.kind != SWAP_NAME {
            return Err(UsageError(
                "--wipe is for swap volumes: add --kind swap, or leave it out".into(),
            ));
        }
        // Before the kinds below: an option of another kind is the likelier mistake than a missing
        // size.
        self.check_fs_options()?;
        self.check_block_options()?;
        let CacheArgs { backing, scm, dram, mode, policy } = &self.cache;
        if self.kind != CACHE_NAME {
            let for_caches = backing.is_some()
                || scm.is_some()
                || dram.is_some()
                || mode != MODE_DEFAULT
                || policy != POLICY_DEFAULT
                || self.tuning.small_write != SMALL_WRITE_DEFAULT;
            return match (for_caches, self.size) {
                (true, _) => Err(UsageError(
                    "--backing, --scm, --dram, --mode, --policy and -o small-write are for caches: \
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
            "a cache needs --backing PATH|URI and --scm SIZE, without --size: it has the size of \
             its backing device"
                .into(),
        ))
    }

    /// Refuses options without effect: for example, the user must not expect checksums in a file system.
    fn check_block_options(&self) -> Result<(), UsageError> {
        let is_for_blocks = self.tuning.delta != DELTA_DEFAULT
            || self.checksum != CHECKSUM_DEFAULT
            || self.tuning.threshold != THRESHOLD_DEFAULT;
        if is_for_blocks && [FS_NAME, SWAP_NAME].contains(&&*self.kind) {
            return Err(UsageError(format!(
                "--checksum, -o delta and -o threshold are for block volumes and caches: leave \
                 them out with --kind {}",
                self.kind
            )));
        }
        let has_log = self.tuning.log_size.is_some()
            || self.tuning.lanes != LANES_DEFAULT
            || self.tuning.checkpoint_lines != CHECKPOINT_LINES_DEFAULT;
        if has_log && self.kind == SWAP_NAME {
            return Err(UsageError(
                "-o log-size, -o lanes and -o checkpoint-lines are for volumes with a log: leave \
                 them out with --kind swap"
                    .into(),
            ));
        }
        Ok(())
    }

    fn has_fs_options(&self) -> bool {
        let Tuning { index_node, inodes, large_inode_tables, .. } = &self.tuning;
        self.index.is_some() || index_node.is_some() || inodes.is_some() || *large_inode_tables
    }

    fn check_fs_options(&self) -> Result<(), UsageError> {
        if self.has_fs_options() && self.kind != FS_NAME {
            return Err(UsageError(
                "--index, -o inodes, -o index-node and -o large-inode-tables are for file systems: \
                 add --kind fs, or leave them out"
                    .into(),
            ));
        }
        Ok(())
    }

    fn new_fs(&self) -> Result<Option<Box<NewFs>>, UsageError> {
        let too_large = |_| UsageError("-o index-node is at most 4K".into());
        let index_node = self.tuning.index_node;
        let new = NewFs {
            index: self.index.clone().unwrap_or_else(|| IndexKind::default().name().to_owned()),
            index_node_bytes: index_node.map(u32::try_from).transpose().map_err(too_large)?,
            inodes_max: self.tuning.inodes,
            large_tables: self.tuning.large_inode_tables,
        };
        Ok(self.has_fs_options().then(|| Box::new(new)))
    }

    fn new_cache(&self) -> anyhow::Result<Option<Box<NewCache>>> {
        let CacheArgs { backing, scm, dram, mode, policy } = &self.cache;
        let (Some(text), &Some(scm_bytes)) = (backing, scm) else { return Ok(None) };
        // DRAM to SCM is 1:3, as by default in the simulator, in whole pages.
        let third = (scm_bytes / 3 / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES);
        Ok(Some(Box::new(NewCache {
            backing: resolve(text)?,
            dram_bytes: dram.unwrap_or(third),
            scm_bytes,
            mode: mode.clone(),
            policy: policy.clone(),
            small_write_bytes: self.tuning.small_write,
        })))
    }
}

/// The absolute name of the existing backing device `text`.
fn resolve(text: &str) -> anyhow::Result<String> {
    match backing::resolve(text) {
        // The library names no commands, so the advice is added here.
        Err(error @ BackingError::NotFound { .. }) => {
            bail!("{error}: create the file first, for example with 'truncate -s 10G {text}'")
        }
        resolved => Ok(resolved?),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let new = NewVolume {
        name: args.name.clone(),
        kind: args.kind.clone(),
        size_bytes: args.size.unwrap_or(0),
        delta: args.tuning.delta.clone(),
        checksum: args.checksum.clone(),
        threshold_percent: args.tuning.threshold,
        log_bytes: args.tuning.log_size,
        lanes: args.tuning.lanes,
        // The default is not sent: a server may have another one.
        checkpoint_lines: (args.tuning.checkpoint_lines != CHECKPOINT_LINES_DEFAULT)
            .then_some(args.tuning.checkpoint_lines),
        cache: args.new_cache()?,
        fs: args.new_fs()?,
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
