//! `everbyte serve`.
//!
//! Owns the order of starting (recover, checkpoint timer, listen, control socket, open volumes,
//! announce) and of stopping (no new requests, finish those that run, checkpoint, clean mark).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use everbyte::backing;
use everbyte_device::record::{RecordSummary, Recorder};
use everbyte_media::{MediaOptions, Technology};
use everbyte_nbd::{Address, Durability, Server, Settings, SocketFile};
use everbyte_pool::file::{FileError, Sharing, inspect, open_locked};
use everbyte_pool::{CheckpointTimer, OpenOptions};
use everbyte_server::recording::{self, RecordError};
use everbyte_server::{OpenPool, Options, SessionError, kinds, listen, wait_for};

use super::server::{Stop, report_recovery, split_target, start_control};
use super::trust::{TrustArgs, distrust};
use crate::arguments::{UsageError, find_group, find_user, parse_mode};
use crate::output;
use crate::size::parse_duration;
use crate::traces::Output;

/// Longest time the server waits for volumes that are not ready before it announces the others.
const READY_TIME_MAX: Duration = Duration::from_secs(4);

/// Longest time connections may take to finish their requests when the server ends. With the waits
/// after that, a server ends within 10 s whatever hangs.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  everbyte serve /dev/shm/p --nbd unix:/tmp/everbyte.sock            every volume
  everbyte serve /dev/shm/p/disk --nbd tcp:127.0.0.1:10809           one volume
  everbyte serve /dev/shm/p --nbd unix:/run/e.sock --nbd tcp:10809   two addresses
  everbyte serve /dev/shm/p --nbd unix:/tmp/e.sock --emulate pcm     as slow as phase-change memory
  everbyte serve /dev/shm/p --nbd unix:/run/e.sock --socket-mode 660 --socket-group kvm
  everbyte serve /dev/shm/p --nbd unix:/run/e.sock --read-only-export base
  everbyte serve /dev/shm/p --nbd unix:/tmp/e.sock --record trace.csv.zst   and what clients ask

For each export a line 'ready: URI' is printed once clients can have it, or one with the server's
own URI if there is none; without --nbd the line is 'ready'. Other NBD programs take the URI as it is, for example
  nbdinfo 'nbd+unix:///disk?socket=/tmp/everbyte.sock'
A cache whose backing device is missing or silent is not ready: 'everbyte volume list' has its state,
and clients that connect are told why, until it is there. Nor is a swap volume as long as programs have
a part of it ('everbyte run'), or if the pool is served read-only.

SIGTERM, SIGINT (Ctrl-C) and SIGHUP end the server cleanly: requests are finished, everything is made
durable and the pool is marked clean. The server waits a few seconds for backing devices that hang; if
an answered write is lost by that, standard error says so, the exit status is 1 and the pool is not
marked clean. A second signal ends the server at once, which is as safe as a crash: everything that
was flushed is there.

The end of the server by kill -9 or a crash undoes what was answered and not flushed, as a power cut
does to a disk. Clients that connect again by themselves (nbd-client -persist, QEMU's
reconnect-delay) do not know that: serve them with --write-through.

TCP has neither encryption nor passwords: listen on loopback, or on a network you trust.";

/// Serve a pool's volumes to NBD clients.
///
/// The pool is recovered first if it was not shut down cleanly. Volumes that are created, resized
/// or deleted meanwhile (by `everbyte volume`, through the control socket POOL.sock) come and go
/// as exports. No other process can open the pool as long as it is served.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device; followed by /VOLUME, only that volume is served.
    #[arg(value_name = "POOL[/VOLUME]")]
    target: PathBuf,
    /// Address to listen on: unix:PATH, tcp:HOST:PORT, or tcp:PORT on loopback. May be repeated; without
    /// it only commands reach the pool, through its control socket.
    #[arg(long, value_name = "ADDRESS")]
    nbd: Vec<Address>,
    /// Serve without changing anything: a pool that was not shut down cleanly is recovered in a
    /// private copy, and clients cannot write.
    #[arg(long)]
    read_only: bool,
    /// Export this volume read-only: NBD clients can read it and are refused what would change it,
    /// while others can be written. May be repeated.
    #[arg(long, value_name = "VOLUME")]
    read_only_export: Vec<String>,
    /// Permissions of the Unix sockets of --nbd, octal, such as 660. Left out, they are 600: only the
    /// user who serves, and root, can connect. Connecting takes the permission to write.
    #[arg(long, value_parser = parse_mode, value_name = "MODE")]
    socket_mode: Option<u32>,
    /// Owner of the Unix sockets of --nbd, a user's name or number. Takes the rights of root.
    #[arg(long, value_name = "USER")]
    socket_owner: Option<String>,
    /// Group of the Unix sockets of --nbd, a name or number: one of those of the user who serves.
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Make every write durable before it is answered, and announce no volatile cache: for clients
    /// that connect again by themselves after the server was killed. Small writes take longer.
    #[arg(long)]
    write_through: bool,
    /// Add the costs of a memory technology to every line read and written, and flush lines even
    /// where that is not needed.
    #[arg(long, value_enum, value_name = "TECHNOLOGY")]
    emulate: Option<Emulate>,
    /// Count the lines that are written to each frame of 4 KiB, for 'everbyte pool info --wear'.
    #[arg(long, requires = "emulate")]
    count_wear: bool,
    /// Flush lines only where the medium needs it, or always.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    flush: Flush,
    /// Map the whole pool before serving, so that no request pays for a page fault. Takes about a
    /// second for every few GiB.
    #[arg(long)]
    populate: bool,
    /// Time between checkpoints, such as 5s or 500ms: a crash takes back unflushed writes of at most
    /// this time.
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    checkpoint_interval: Duration,
    /// Record requests of clients as a trace for 'everbyte sim': lines of
    /// time_ns,op,file,offset,len, where the time counts from the start, op is R, W, F (flush),
    /// T (trim) or Z (zero), and file is the export. Compressed if the name ends in .zst. If it cannot
    /// be written any more, serving goes on without it.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Replace the file of --record if there is one. Pools and backing devices are never replaced.
    #[arg(long, requires = "record")]
    force: bool,
    /// Time for which requests wait while the NBD server of a cache's backing device is lost, such as
    /// 30s. Then they fail; what clients flushed stays in the pool, and everything goes on when the
    /// server is back.
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    reconnect_timeout: Duration,
    /// Bypass the system's page cache (O_DIRECT) for backing devices that are files or block devices,
    /// so that pages are not cached twice. Where a file system refuses, a warning says so and its
    /// page cache is used.
    #[arg(long)]
    direct_backing: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// NBD connections at once, for each address.
    #[arg(long, default_value_t = 128, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=16384))]
    max_connections: u16,
}

/// Memory technologies that can be emulated.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Emulate {
    /// DRAM with flushes.
    Dram,
    /// Spin-transfer torque MRAM.
    SttMram,
    /// Phase-change memory.
    Pcm,
    /// The same in eight banks that write at once.
    PcmBanks,
    /// Resistive RAM.
    Reram,
}

/// Choice of when lines are flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Flush {
    /// Only where the medium needs it.
    Auto,
    /// Always.
    Force,
}

impl Args {
    fn media(&self) -> MediaOptions {
        let technology = self.emulate.map(|emulate| match emulate {
            Emulate::Dram => Technology::Dram,
            Emulate::SttMram => Technology::SttMram,
            Emulate::Pcm => Technology::Pcm,
            Emulate::PcmBanks => Technology::PcmBanks,
            Emulate::Reram => Technology::Reram,
        });
        MediaOptions::new()
            .emulate(technology)
            .count_wear(self.count_wear)
            .force_flush(self.flush == Flush::Force)
            .populate(self.populate)
    }

    fn options(&self, only: Option<String>) -> Options {
        let backing = backing::Options {
            reconnect_timeout: self.reconnect_timeout,
            direct: self.direct_backing,
            ..backing::Options::default()
        };
        let durability = match self.write_through {
            true => Durability::WhenAnswered,
            false => Durability::AtFlush,
        };
        let read_only_exports = self.read_only_export.clone();
        let (unchanging, trust_pool) = (self.read_only, self.trust.trust_pool);
        Options { only, read_only_exports, unchanging, backing, durability, trust_pool }
    }

    fn socket_file(&self) -> Result<SocketFile, UsageError> {
        Ok(SocketFile {
            mode: self.socket_mode.unwrap_or(SocketFile::default().mode),
            owner: self.socket_owner.as_deref().map(find_user).transpose()?,
            group: self.socket_group.as_deref().map(find_group).transpose()?,
        })
    }

    fn open(&self, path: &Path, only: Option<String>) -> Result<OpenPool, FileError> {
        let (media, options) = (self.media(), self.options(only));
        if self.read_only {
            let open = || inspect(path, Sharing::Exclusive, media.clone(), kinds());
            let found = wait_for(open)?;
            return Ok(OpenPool::new(found.pool, path, found.medium, options));
        }
        let open = || open_locked(path, &media, kinds(), &OpenOptions::default());
        let pool = wait_for(open)?;
        let medium = pool.medium().describe();
        Ok(OpenPool::new(pool, path, medium, options))
    }
}

/// Everything that runs while a pool is served, in the order in which it stops.
struct Serving {
    servers: Vec<Arc<Server>>,
    _timer: Option<CheckpointTimer>,
}

impl Serving {
    fn start(args: &Args, pool: &Arc<OpenPool>) -> anyhow::Result<Self> {
        if let Some(record) = &args.record {
            pool.set_recorder(start_recording(pool, record, args.force)?);
        }
        let timer = if args.read_only {
            None
        } else {
            let timer = pool.start_timer(args.checkpoint_interval);
            Some(timer.context("cannot start the checkpoint thread")?)
        };
        let servers = listen_all(args, pool)?;
        pool.set_servers(&servers);
        start_control(pool)?;
        Ok(Self { servers, _timer: timer })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        for server in &self.servers {
            server.begin_shutdown();
        }
        for server in &self.servers {
            server.shutdown();
        }
    }
}

fn start_recording(pool: &OpenPool, path: &Path, force: bool) -> anyhow::Result<Recorder> {
    let file = match pool.record_file(path, force) {
        Err(error @ RecordError::Exists { .. }) => bail!("{error}; pass --force for that"),
        made => made?,
    };
    let output = Output::over(file, path);
    let output = output.with_context(|| format!("cannot write to {}", path.display()))?;
    Ok(recording::start(Box::new(output), path)?)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (path, only) = split_target(&args.target)?;
    let mut stop = Stop::new().context("cannot catch signals")?;
    let started = Instant::now();
    let pool = Arc::new(args.open(&path, only).map_err(SessionError::from)?);
    report_recovery(&pool, started.elapsed());
    if let Some(reason) = distrust(&pool) {
        let rights = if args.trust.trust_pool {
            "all rights, as asked for"
        } else {
            "no more rights than they have"
        };
        tracing::warn!(
            "{reason}, so others can change the pool: backing devices, their sockets and the record are \
             opened with {rights}"
        );
    }
    let served = serve(args, &pool, &mut stop);
    match pool.end_recording() {
        Some(RecordSummary { requests, is_complete: true }) => {
            tracing::info!(requests, "the record is complete");
        }
        Some(_) => tracing::warn!("the record is not complete: it ended before the server"),
        None => {}
    }
    // Whether it was served or not: it is in order now, and is to be found so.
    let closed = pool.close();
    served?;
    closed.context("the pool could not be closed cleanly; it will be recovered")?;
    tracing::info!("the pool is closed");
    pool.check_told_losses()?;
    Ok(ExitCode::SUCCESS)
}

/// Serves until a signal comes.
fn serve(args: &Args, pool: &Arc<OpenPool>, stop: &mut Stop) -> anyhow::Result<()> {
    let serving = Serving::start(args, pool)?;
    let ready = pool.open_exported(Instant::now() + READY_TIME_MAX, || stop.is_wanted())?;
    if !stop.is_wanted() {
        announce(&ready, &serving.servers);
    }
    stop.wait();
    Ok(())
}

fn listen_all(args: &Args, pool: &Arc<OpenPool>) -> anyhow::Result<Vec<Arc<Server>>> {
    let settings = Settings {
        connections_max: usize::from(args.max_connections),
        shutdown_time_max: SHUTDOWN_TIME_MAX,
        socket_file: args.socket_file().map_err(anyhow::Error::new)?,
        ..Settings::default()
    };
    let mut servers = Vec::new();
    for address in &args.nbd {
        if let Address::Tcp(tcp) = address
            && !tcp.ip().is_loopback()
        {
            tracing::warn!(
                "{address}: whoever reaches this address can read and write the volumes"
            );
        }
        servers.push(listen(pool, address, settings)?);
    }
    Ok(servers)
}

/// Says which exports are ready, or if there is none, that the server is.
fn announce(ready: &[String], servers: &[Arc<Server>]) {
    let itself = [String::new()];
    let names = if ready.is_empty() { &itself } else { ready };
    let mut lines: Vec<String> = Vec::new();
    for server in servers {
        lines.extend(names.iter().map(|name| format!("ready: {}", server.address().uri(name))));
    }
    if servers.is_empty() {
        lines.push("ready".to_owned());
    }
    for line in lines {
        if let Err(error) = output::try_line(&line) {
            tracing::warn!(%error, "cannot say on standard output: {line}");
        }
    }
}
