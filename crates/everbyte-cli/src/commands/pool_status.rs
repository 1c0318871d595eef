//! `everbyte pool status`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everbyte_control::{CheckStatus, HealthStatus, PoolStatus, Request, Response};
use everbyte_pool::PoolError;
use everbyte_pool::file::FileError;
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::session::{Access, Session, SessionError};

const EXAMPLES: &str = "\
Examples:
  everbyte pool status /dev/shm/p
  everbyte pool status /dev/shm/p --json
  everbyte pool status /dev/shm/p || mail -s 'pool p' root < /dev/null

The states, from best to worst:
  clean     nothing is wrong; a pool that needs recovery after a crash is clean
  degraded  all bytes can be read, and something is missing: one of two copies of a structure is
            damaged, blocks are leaked, the pool is read-only, or a cache has no backing device
  damaged   structures or bytes are damaged, or two volumes own a block
  unknown   the pool cannot be judged: it is missing, locked, of another version, or its server does
            not answer

The command does the work of 'everbyte pool check' and looks at the state of each volume. It does not
read data: 'everbyte pool scrub' does. 'pool check', 'pool scrub' and 'pool info' use the same states.

Exit status: 0 clean, 1 degraded, 2 damaged, 3 unknown, also for a wrong command line.";

/// Print the health of a pool on one line, for scripts.
///
/// On a pool without a server the command works on a private, recovered copy and changes nothing. On a
/// served pool, writes wait while the server walks the maps.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Health of a pool, with the reasons.
#[derive(Serialize)]
struct Status {
    pool: String,
    status: HealthStatus,
    /// Damage and deficiencies; the reason why the pool cannot be judged.
    problems: Vec<String>,
    /// Unhealthy volumes.
    volumes: Vec<VolumeProblem>,
    leaked_bytes: u64,
    /// True if the pool was not shut down cleanly; of a served pool before its server began.
    recovered: bool,
    served: bool,
}

#[derive(Serialize)]
struct VolumeProblem {
    name: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The verdict of a check or a scrub.
pub(super) fn verdict(clean: bool, health: HealthStatus) -> String {
    if clean { "clean".to_owned() } else { format!("NOT CLEAN, {}", health.word()) }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let status = judge(&args.pool);
    if !args.json {
        output::line(line(&status));
    // Every failure of this command is `unknown`, also one of its own output.
    } else if let Err(error) = output::json(&status) {
        output::complain(format!("everbyte: {error}"));
        return ExitCode::from(UNKNOWN_STATUS);
    }
    exit_code(status.status)
}

/// The exit status for a state.
fn exit_code(health: HealthStatus) -> ExitCode {
    ExitCode::from(match health {
        HealthStatus::Clean => 0,
        HealthStatus::Degraded => 1,
        HealthStatus::Damaged => 2,
        HealthStatus::Unknown => UNKNOWN_STATUS,
    })
}

/// Exit status of `pool status` for a pool of unknown health.
pub(crate) const UNKNOWN_STATUS: u8 = 3;

/// The state and the first reason.
fn line(status: &Status) -> String {
    let word = status.status.word();
    let volumes = status.volumes.iter().map(|volume| match &volume.reason {
        Some(reason) => format!("volume {}: {}: {reason}", volume.name, volume.state),
        None => format!("volume {}: {}", volume.name, volume.state),
    });
    let reasons: Vec<String> = status.problems.iter().cloned().chain(volumes).collect();
    let reason = match reasons.as_slice() {
        [] => String::new(),
        [only] => format!(": {only}"),
        [first, rest @ ..] => format!(": {first} (and {} more)", rest.len()),
    };
    // A line stays one line, for any name and any text of the system.
    format!("{word}{reason}").replace(['\n', '\r'], " ")
}

/// Judges the pool at `path`. A failure is a state, too.
fn judge(path: &Path) -> Status {
    let mut status = Status {
        pool: path.display().to_string(),
        status: HealthStatus::Unknown,
        problems: Vec::new(),
        volumes: Vec::new(),
        leaked_bytes: 0,
        recovered: false,
        served: false,
    };
    match ask(path) {
        Ok((check, pool)) => {
            // The check judges structures, the information judges volumes and backing devices: the
            // worse one counts.
            status.status = check.health.max(pool.health);
            if !check.clean && status.status == HealthStatus::Clean {
                // A server of another version does not grade its problems.
                status.status = HealthStatus::Unknown;
            }
            status.problems = check.problems;
            status.leaked_bytes = check.leaked_bytes;
            status.recovered = !pool.clean;
            status.served = pool.serving.is_some();
            let is_problem = |state: &str| {
                ["damaged", "unknown kind"].contains(&state) || state.starts_with("backing")
            };
            status.volumes = pool
                .volumes
                .into_iter()
                .filter(|volume| is_problem(&volume.state))
                .map(|volume| VolumeProblem {
                    // Damage explains more than the state of the backing device.
                    reason: match volume.cache() {
                        _ if volume.damage.is_some() => volume.damage.clone(),
                        cache => cache.and_then(|cache| cache.reason.clone()),
                    },
                    name: volume.name,
                    state: volume.state,
                })
                .collect();
        }
        Err(error) => {
            status.status = of_failure(&error);
            status.problems.push(crate::describe(&error));
        }
    }
    status
}

fn ask(path: &Path) -> anyhow::Result<(CheckStatus, PoolStatus)> {
    let mut session = Session::open(path, Access::Read)?;
    // A hung server must answer in bounded time, or its state is unknown.
    session.probe()?;
    let check = match session.ask(Request::Check)? {
        Response::Check(check) => check,
        other => return Err(unexpected(&other)),
    };
    match session.ask(Request::Info)? {
        Response::Pool(pool) => Ok((check, *pool)),
        other => Err(unexpected(&other)),
    }
}

/// The state of a pool after a failed opening or request.
fn of_failure(error: &anyhow::Error) -> HealthStatus {
    match error.downcast_ref::<SessionError>() {
        Some(SessionError::File(FileError::Pool {
            source: PoolError::Corrupt(corrupt), ..
        })) => of_superblock(corrupt),
        _ => HealthStatus::Unknown,
    }
}

/// The state of a pool without a usable superblock.
pub(crate) fn of_superblock(corrupt: &everbyte_pool::Corrupt) -> HealthStatus {
    // Not a pool, or of another version: nothing is known to be damaged.
    if corrupt.is_foreign() { HealthStatus::Unknown } else { HealthStatus::Damaged }
}
