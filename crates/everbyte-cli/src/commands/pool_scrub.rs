//! `everbyte pool scrub`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use everbyte_control::{HealthStatus, Request, Response, ScrubPart, ScrubProblem, VolumeStatus};
use everbyte_pool::PoolError;
use everbyte_pool::file::FileError;
use indicatif::ProgressBar;
use serde::Serialize;

use super::pool_status::of_superblock;
use super::pool_status::verdict;
use super::{unexpected, volumes};
use crate::output;
use crate::session::{Access, Session, SessionError};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte pool scrub /dev/shm/p && echo fine
  everbyte pool scrub /dev/pmem0 --json | jq .problems
  0 3 * * 0  root  everbyte pool scrub /dev/pmem0      in a crontab: every Sunday at three

A scrub finds media errors, verifies the checksums of volumes ('everbyte volume create --checksum'), and verifies check
bits and checksums of superblocks, headers and maps. It corrects nothing. Each problem is a line
  problem: volume NAME, PART at byte OFFSET (pool offset 0xADDRESS): REASON
Volume and byte are omitted for structures of the pool. A data block with a media error or a wrong checksum can be
written as a whole or discarded. Then the problem is gone.

A scrub does not read free space, and does not verify the owners of blocks: 'everbyte pool check' does.

The last line has the state of the pool: 'everbyte pool status --help' explains the states.

Exit status: 0 if the pool is clean; 1 if it is degraded or damaged, or if the scrub failed.";

/// Maximum of problems. At the maximum a scrub ends.
const PROBLEMS_MAX: usize = 1 << 20;
/// Maximum of renames of a volume during its scrub. At the maximum its scrub ends.
const RENAMES_MAX: u32 = 1000;

/// Read all used data of a pool, and list unreadable data and wrong checksums.
///
/// On an unserved pool the scrub uses a private, recovered copy and changes nothing. On a served pool
/// the server reads at most 1 MiB at a time under shared locks, and clients continue. The scrub follows
/// renamed volumes and skips deleted volumes. Ctrl-C ends it.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Default)]
struct ScrubStatus {
    clean: bool,
    /// Completely read volumes.
    volumes: u64,
    /// Volumes deleted during the scrub.
    deleted_volumes: u64,
    read_bytes: u64,
    verified_blocks: u64,
    problems: Vec<ScrubProblem>,
    /// Health by the worst of the problems.
    health: HealthStatus,
}

impl ScrubStatus {
    fn add(&mut self, part: ScrubPart) -> anyhow::Result<()> {
        self.read_bytes = self.read_bytes.saturating_add(part.read_bytes);
        self.verified_blocks = self.verified_blocks.saturating_add(part.verified_blocks);
        self.problems.extend(part.problems);
        self.health = self.health.max(part.health);
        // A destroyed or hostile pool has a problem in each block. The memory of the command is
        // bounded.
        if self.problems.len() > PROBLEMS_MAX {
            bail!("the pool has more than {PROBLEMS_MAX} problems");
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scrubbed = scrub(&args.pool)?;
    if args.json {
        output::json(&scrubbed)?;
    } else {
        for problem in &scrubbed.problems {
            output::line(format!("problem: {}", describe(problem)));
        }
        let deleted = match scrubbed.deleted_volumes {
            0 => String::new(),
            deleted => format!(", {deleted} volumes deleted meanwhile"),
        };
        output::line(format!(
            "{}: {} volumes, {} read, {} blocks verified by checksum{deleted}",
            verdict(scrubbed.clean, scrubbed.health),
            scrubbed.volumes,
            show_size(scrubbed.read_bytes),
            scrubbed.verified_blocks
        ));
    }
    Ok(if scrubbed.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn describe(problem: &ScrubProblem) -> String {
    let volume = problem.volume.as_ref().map(|name| format!("volume {name}, "));
    let byte = problem.offset.map(|offset| format!(" at byte {offset}"));
    format!(
        "{}{}{} (pool offset {:#x}): {}",
        volume.unwrap_or_default(),
        problem.structure,
        byte.unwrap_or_default(),
        problem.pool_offset,
        problem.what
    )
}

/// Scrubs the pool at `path`. Damage is a finding even if it prevents the opening.
fn scrub(path: &Path) -> anyhow::Result<ScrubStatus> {
    let mut scrubbed = ScrubStatus { health: HealthStatus::Clean, ..ScrubStatus::default() };
    match Session::open(path, Access::Read) {
        Ok(mut session) => scrub_all(&mut session, &mut scrubbed)?,
        // A damaged superblock is a finding of the scrub, with its place.
        Err(SessionError::File(FileError::Pool {
            source: PoolError::Corrupt(corrupt), ..
        })) => {
            scrubbed.health = of_superblock(&corrupt);
            scrubbed.problems.push(ScrubProblem {
                volume: None,
                structure: corrupt.structure.clone(),
                offset: None,
                pool_offset: corrupt.at.0,
                what: corrupt.what.clone(),
            });
        }
        Err(error) => return Err(error.into()),
    }
    scrubbed.clean = scrubbed.problems.is_empty();
    Ok(scrubbed)
}

fn scrub_all(session: &mut Session, scrubbed: &mut ScrubStatus) -> anyhow::Result<()> {
    let volumes = volumes(session.ask(Request::VolumeList)?)?;
    let bar = progress(&volumes);
    // Structures of the pool first: the volumes stand on them.
    scrubbed.add(part(session, None, 0)?)?;
    for volume in volumes {
        scrub_volume(session, volume, scrubbed, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Reads all of a volume. Follows renames, and stops at a deletion.
fn scrub_volume(
    session: &mut Session,
    mut volume: VolumeStatus,
    scrubbed: &mut ScrubStatus,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let used_bytes = volume.used_bytes.unwrap_or(0);
    let mut next = Some(0);
    let mut done = 0;
    let mut is_deleted = false;
    let mut renames = 0;
    while let Some(from) = next {
        match part(session, Some(&volume), from) {
            Ok(part) => {
                next = part.next;
                done = part.read_bytes.saturating_add(done);
                bar.inc(part.read_bytes);
                scrubbed.add(part)?;
            }
            // Volumes can be renamed and deleted during a scrub. Their uid tells which of them
            // happened.
            Err(error) => {
                let mut listed = volumes(session.ask(Request::VolumeList)?)?.into_iter();
                match listed.find(|now| now.uid == volume.uid) {
                    Some(now) if now.name == volume.name => return Err(error),
                    // The scrub goes on at the same byte under the new name. The bound ends a race
                    // without end.
                    Some(now) if renames < RENAMES_MAX => {
                        renames += 1;
                        volume = now;
                    }
                    Some(_) => return Err(error),
                    None => {
                        is_deleted = true;
                        next = None;
                    }
                }
            }
        }
    }
    // Bytes counted as used and then found missing.
    bar.inc(used_bytes.saturating_sub(done));
    if is_deleted {
        scrubbed.deleted_volumes += 1;
    } else {
        scrubbed.volumes += 1;
    }
    Ok(())
}

/// Scrubs one part of `volume`, or of the pool's own structures.
///
/// # Errors
/// The request is refused, for example because another volume has the name now, or the server has ended.
pub(super) fn part(
    session: &mut Session,
    volume: Option<&VolumeStatus>,
    from: u64,
) -> anyhow::Result<ScrubPart> {
    let request = Request::Scrub {
        volume: volume.map(|volume| volume.name.clone()),
        uid: volume.map(|volume| volume.uid),
        from,
    };
    match session.ask(request)? {
        Response::Scrub(part) => Ok(part),
        other => Err(unexpected(&other)),
    }
}

/// A bar over the used bytes of volumes.
fn progress(volumes: &[VolumeStatus]) -> ProgressBar {
    let used = volumes.iter().map(|volume| volume.used_bytes.unwrap_or(0));
    let total = used.fold(0, u64::saturating_add);
    output::progress("scrubbing {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}", total)
}
