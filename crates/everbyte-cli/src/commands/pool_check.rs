//! `everbyte pool check`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everbyte::error::{FileError, PoolError};
use everbyte_control::{CheckStatus, HealthStatus, Request, Response, ScrubProblem};
use everbyte_server::{OpenPool, Options};
use serde::Serialize;

use super::pool_scrub::{describe, part};
use super::pool_status::{of_superblock, verdict};
use super::{unexpected, volumes};
use crate::output;
use crate::session::{Access, Session, SessionError, ask, builder, wait_for};

const EXAMPLES: &str = "\
Examples:
  everbyte pool check /dev/shm/p && echo fine
  everbyte pool check /dev/shm/p --json

  everbyte pool check --repair --dry-run /dev/pmem0     list the repairs
  everbyte pool check --repair /dev/pmem0 &&
    everbyte serve /dev/pmem0 --nbd unix:/run/everbyte.socket

Remarks name repairs during the pool's opening, and are not problems. The last line has the state of the pool:
'everbyte pool status --help' explains the states.

--repair makes only unambiguous repairs. It rewrites a damaged copy of a superblock, of a volume's checkpoint record or
of its descriptor from the other copy. It drops a saved list of free blocks if the list is damaged or contradicts
the maps, so that leaked blocks are free again. It changes nothing else, and an intact pool keeps every byte. Then
it reads all used data, and prints each loss on a line
  lost: volume NAME, PART at byte OFFSET (pool offset 0xADDRESS): REASON
A repair never replaces lost data by zeroes. Copy the readable data elsewhere ('everbyte serve --read-only'), and restore
the listed ranges. A data block with a wrong checksum is readable again after a write of the whole block or a discard. A
damaged map or log makes its volume permanently read-only. An interrupted repair can be run again. docs/repair.md
lists all kinds of damage.

Exit status: 0 if the pool is clean, or with --repair clean after the repair; 1 if it is degraded or damaged, with structure
and offset of each problem, if --dry-run found a necessary repair, or if the pool cannot be read; 2 for a wrong
command line.";

/// Check that every block of a pool is free or has exactly one owner, and repair damage.
///
/// On an unserved pool the check uses a private, recovered copy and changes nothing. On a served pool
/// writes wait during the check, and reads continue. With --repair the pool must not be in use.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Make the unambiguous repairs, read all used data, and list the losses.
    #[arg(long)]
    repair: bool,
    /// With --repair: list the repairs, and change nothing.
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Results of a repair, and of the check after it.
#[derive(Serialize)]
struct RepairStatus {
    dry_run: bool,
    /// The repairs, made or necessary, each with structure and offset.
    mended: Vec<String>,
    /// Unreadable data, and data with a wrong checksum.
    lost: Vec<ScrubProblem>,
    #[serde(flatten)]
    check: CheckStatus,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.repair {
        return run_repair(args);
    }
    let status = check(&args.pool)?;
    if args.json {
        output::json(&status)?;
    } else {
        tell(&status);
    }
    Ok(if status.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(status: &CheckStatus) {
    for problem in &status.problems {
        output::line(format!("problem: {problem}"));
    }
    for remark in &status.remarks {
        output::line(format!("remark: {remark}"));
    }
    output::line(format!(
        "{}: {} volumes, {} blocks in use, {} free",
        verdict(status.clean, status.health),
        status.volumes,
        status.used_blocks,
        status.free_blocks
    ));
}

fn run_repair(args: &Args) -> anyhow::Result<ExitCode> {
    let status = repair_and_check(&args.pool, args.dry_run)?;
    if args.json {
        output::json(&status)?;
    } else {
        let done = if args.dry_run { "would mend" } else { "mended" };
        for mended in &status.mended {
            output::line(format!("{done}: {mended}"));
        }
        for lost in &status.lost {
            output::line(format!("lost: {}", describe(lost)));
        }
        tell(&status.check);
    }
    // A dry run with a necessary repair is a failure for scripts, although nothing is wrong with
    // the command.
    let is_done = !args.dry_run || status.mended.is_empty();
    Ok(if is_done && status.check.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Repairs the pool at `path`, then checks and reads all of it. A pool without a valid superblock is a
/// finding.
fn repair_and_check(path: &Path, dry_run: bool) -> anyhow::Result<RepairStatus> {
    let repaired = match wait_for(|| builder().repair(path, dry_run)) {
        Ok(repaired) => repaired,
        // A pool that cannot be opened is the strongest finding of a check, not a failure of the
        // command.
        Err(FileError::Pool { source: PoolError::Corrupt(corrupt), .. }) => {
            let problems = vec![corrupt.to_string()];
            let health = of_superblock(&corrupt);
            let check = CheckStatus { problems, health, ..CheckStatus::default() };
            return Ok(RepairStatus { dry_run, mended: Vec::new(), lost: Vec::new(), check });
        }
        Err(error) => return Err(SessionError::from(error).into()),
    };
    let (mended, pool) = repaired;
    let pool = OpenPool::new(pool, Options::default());
    let mut session = Session::Local(Box::new(pool));
    let mut check = match session.ask(Request::Check)? {
        Response::Check(status) => status,
        other => return Err(unexpected(&other)),
    };
    // The reads below add volumes that cannot be opened.
    let found = check.problems.len();
    let lost = read_all(&mut session, &mut check.problems)?;
    let unopened = check.problems.len() > found;
    check.clean = check.problems.is_empty() && lost.is_empty();
    if !lost.is_empty() || unopened {
        check.health = HealthStatus::Damaged;
    }
    Ok(RepairStatus { dry_run, mended, lost, check })
}

/// Reads all used data. A volume with a failed opening is a problem.
fn read_all(
    session: &mut Session,
    problems: &mut Vec<String>,
) -> anyhow::Result<Vec<ScrubProblem>> {
    let volumes = volumes(session.ask(Request::VolumeList)?)?;
    // Structures of the pool first: the volumes stand on them.
    let mut lost = part(session, None, 0)?.problems;
    for volume in volumes {
        let mut next = Some(0);
        while let Some(from) = next {
            match part(session, Some(&volume), from) {
                Ok(part) => {
                    lost.extend(part.problems);
                    next = part.next;
                }
                Err(error) => {
                    problems.push(format!("volume {} cannot be opened: {error}", volume.name));
                    // The other volumes can still be read.
                    break;
                }
            }
        }
    }
    Ok(lost)
}

/// Checks the pool at `path`. Damage is a finding even if it prevents the opening.
///
/// # Errors
/// The pool cannot be reached.
pub(crate) fn check(path: &Path) -> anyhow::Result<CheckStatus> {
    match ask(path, Access::Read, Request::Check) {
        Ok(Response::Check(status)) => Ok(status),
        Ok(other) => Err(unexpected(&other)),
        // A pool that cannot be opened is a finding: the command reports it like any other.
        Err(SessionError::File(FileError::Pool {
            source: PoolError::Corrupt(corrupt), ..
        })) => Ok(CheckStatus {
            problems: vec![corrupt.to_string()],
            health: of_superblock(&corrupt),
            ..CheckStatus::default()
        }),
        Err(error) => Err(error.into()),
    }
}
