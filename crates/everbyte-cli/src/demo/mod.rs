//! `everbyte demo`: shows Everbyte in about ten seconds, for new readers.
//!
//! Owns the order of the steps, their texts and the verdict. Invariants: every figure is measured in
//! this run; a failed verification is printed and ends in exit status 1; no file is left behind.

mod files;
mod ledger;
mod measure;
mod server;
mod story;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use everbyte_block::BLOCK_NAME;
use everbyte_control::{CheckStatus, NewVolume, PoolStatus, Request, Response};
use everbyte_pool::LANES_DEFAULT;
use everbyte_pool::file::{CreateOptions, create};
use serde::Serialize;
use tempfile::TempDir;

use crate::commands::{pool_check, unexpected};
use crate::output;
use crate::session::{Access, ask};
use files::{Samples, Verdict};
use ledger::{Counts, Verification};
use measure::Throughput;
use server::{Cleanup, DemoServer};
use story::Story;

const POOL_BYTES: u64 = 192 << 20;
const FILES_BYTES: u64 = 48 << 20;
const LEDGER_BYTES: u64 = 32 << 20;
/// Required free space of the folder.
const ROOM_BYTES: u64 = POOL_BYTES + (32 << 20);
const WRITERS: u64 = 2;
/// Duration of the writing before the server is killed.
const WRITING_TIME: Duration = Duration::from_millis(2500);
const FILES_VOLUME: &str = "files";
const LEDGER_VOLUME: &str = "ledger";

const EXAMPLES: &str = "\
Examples:
  everbyte demo
  everbyte demo --json | jq .

The demo needs neither root nor special hardware: DRAM replaces storage-class memory.
It uses about 250 MiB of /dev/shm, or of the directory for temporary files, and removes its files.

Exit status: 0 if all data was found as promised, else 1.";

/// Demonstrate crash consistency: write to volumes, kill the server, and verify the data.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// The results.
#[derive(Serialize)]
struct Report {
    ok: bool,
    seconds: f64,
    pool: PoolPart,
    files: FilesPart,
    crash: CrashPart,
    check: CheckStatus,
    throughput: Vec<Throughput>,
}

#[derive(Serialize)]
struct PoolPart {
    folder: String,
    size_bytes: u64,
    survives: String,
    medium: String,
}

#[derive(Serialize)]
struct FilesPart {
    kind: &'static str,
    files: usize,
    bytes: u64,
    before_crash: Verdict,
    after_crash: Verdict,
}

#[derive(Serialize)]
struct CrashPart {
    writers: u64,
    counts: Counts,
    /// True if the pool was found clean after the kill. This would be wrong.
    clean_after_kill: bool,
    records_undone: u64,
    /// From the start of the server's process to its first answer.
    back_after_ms: f64,
    found: Verification,
}

/// Processes and places shared by all steps of the demonstration.
struct Stage {
    cleanup: Arc<Cleanup>,
    /// Removed when dropped.
    folder: TempDir,
    pool: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

impl Stage {
    fn new() -> anyhow::Result<Self> {
        let folder = make_folder()?;
        let path = folder.path().to_owned();
        let cleanup = Cleanup::start(&path).context("cannot watch for signals")?;
        let [pool, socket, log] = ["pool", "nbd.sock", "log"].map(|name| path.join(name));
        Ok(Self { cleanup, folder, pool, socket, log })
    }

    fn serve(&self) -> anyhow::Result<DemoServer> {
        DemoServer::start(&self.cleanup, &self.pool, &self.socket, &self.log)
    }

    fn uri(&self, volume: &str) -> String {
        everbyte_nbd::Address::Unix(self.socket.clone()).uri(volume)
    }

    fn info(&self) -> anyhow::Result<PoolStatus> {
        match ask(&self.pool, Access::Read, Request::Info)? {
            Response::Pool(pool) => Ok(*pool),
            other => Err(unexpected(&other)),
        }
    }

    fn make_volume(&self, name: &str, size_bytes: u64) -> anyhow::Result<()> {
        let new = NewVolume {
            name: name.to_owned(),
            kind: BLOCK_NAME.to_owned(),
            size_bytes,
            delta: "auto".to_owned(),
            checksum: "none".into(),
            threshold_percent: 50,
            log_bytes: Some(8 << 20),
            lanes: LANES_DEFAULT,
            checkpoint_lines: None,
            cache: None,
            fs: None,
            wipe: false,
        };
        match ask(&self.pool, Access::Write, Request::VolumeCreate(new))? {
            Response::Volume(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// A folder on tmpfs, or else on disk.
fn make_folder() -> anyhow::Result<TempDir> {
    let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let has_room = |place: &&PathBuf| {
        rustix::fs::statvfs(place.as_path())
            .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= ROOM_BYTES)
    };
    // Space alone is no right to write, so the next place is tried after a failure.
    for place in places.iter().filter(has_room) {
        if let Ok(folder) = tempfile::Builder::new().prefix("everbyte-demo-").tempdir_in(place) {
            return Ok(folder);
        }
    }
    bail!(
        "neither /dev/shm nor {} has {} of room that may be written to: free some, or set TMPDIR",
        places[1].display(),
        crate::size::show_size(ROOM_BYTES)
    );
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let story = Story::new(!args.json);
    let stage = Stage::new()?;
    let played = play(&stage, &story);
    // Before the folder goes: after a signal its handler removes it and ends the process.
    stage.cleanup.yield_to_signal();
    // Before the `?`: a failed demonstration leaves nothing behind either.
    drop(stage);
    let mut report = played?;
    report.seconds = started.elapsed().as_secs_f64();
    if args.json {
        output::json(&report)?;
    }
    story.end(&report);
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play(stage: &Stage, story: &Story) -> anyhow::Result<Report> {
    let pool = make_pool(stage)?;
    story.opening(&pool);
    let server = stage.serve()?;
    stage.make_volume(FILES_VOLUME, FILES_BYTES)?;
    stage.make_volume(LEDGER_VOLUME, LEDGER_BYTES)?;
    story.serving(server.pid);

    let (samples, uri) = (Samples::new(), stage.uri(FILES_VOLUME));
    let image = samples.write(&uri)?;
    // A first verification: without it a later difference could come from the writing itself.
    let before_crash = samples.verify(&image, &uri)?;
    let mut files = FilesPart {
        kind: "FAT",
        files: samples.count(),
        bytes: samples.bytes(),
        before_crash,
        after_crash: before_crash,
    };
    story.files(&files);

    let (server, crash) = crash(stage, story, server)?;
    files.after_crash = samples.verify(&image, &uri)?;
    story.after_crash(&crash, &files);
    let check = pool_check::check(&stage.pool)?;
    story.check(&check);
    let throughput = measure::measure(&stage.uri(LEDGER_VOLUME))?;
    story.throughput(&throughput);
    server.stop()?;
    let is_clean = stage.info()?.clean;
    let ok = is_clean
        && check.clean
        && crash.found.is_good()
        && files.before_crash.is_good()
        && files.after_crash.is_good();
    Ok(Report { ok, seconds: 0.0, pool, files, crash, check, throughput })
}

fn make_pool(stage: &Stage) -> anyhow::Result<PoolPart> {
    let options = CreateOptions { len_bytes: Some(POOL_BYTES), ..CreateOptions::default() };
    let size_bytes = create(&stage.pool, &options)?;
    let info = stage.info()?;
    let parent = stage.folder.path().parent().unwrap_or(Path::new("/"));
    Ok(PoolPart {
        folder: parent.display().to_string(),
        size_bytes,
        survives: info.survives,
        medium: info.medium.kind,
    })
}

/// Writes, kills the server in the middle, starts it again and verifies the contents.
fn crash(
    stage: &Stage,
    story: &Story,
    server: DemoServer,
) -> anyhow::Result<(DemoServer, CrashPart)> {
    let uri = stage.uri(LEDGER_VOLUME);
    let writers = ledger::start(&uri, WRITERS)?;
    std::thread::sleep(WRITING_TIME);
    server.kill();
    let (ledgers, counts) = ledger::join(writers)?;
    story.killed(&counts);
    let dead = stage.info()?;
    let server = stage.serve()?;
    let part = CrashPart {
        writers: WRITERS,
        counts,
        clean_after_kill: dead.clean,
        records_undone: dead.records_undone,
        back_after_ms: server.start_time.as_secs_f64() * 1000.0,
        found: ledger::verify(&uri, &ledgers)?,
    };
    Ok((server, part))
}
