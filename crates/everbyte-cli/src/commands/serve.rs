//! `everbyte serve`.
//!
//! Owns the order of starting (recover, checkpoint timer, listen, control socket, open volumes,
//! announce) and of stopping (no new requests, finish the running requests, checkpoint, clean
//! mark).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use everbyte::error::FileError;
use everbyte_device::record::{RecordSummary, Recorder};
use everbyte_media::{MediaOptions, Technology};
use everbyte_nbd::{Address, Durability, PayloadMemory, Server, Settings, SocketFile};
use everbyte_server::metrics::{MetricsAddress, MetricsServer, page};
use everbyte_server::recording::{self, RecordError};
use everbyte_server::{OpenPool, Options};
use everbyte_vhost::VhostServer;

use super::serve_vhost::VhostTarget;
use super::server::{Stop, report_recovery, split_target, start_control};
use super::service::PassedSockets;
use super::trust::TrustArgs;
use super::{serve_config, service};
use crate::arguments::{UsageError, find_group, find_user, parse_mode};
use crate::output;
use crate::session::{SessionError, builder, wait_for};
use crate::size::parse_duration;
use crate::traces::Output;

/// Longest wait for volumes not yet ready before the server announces the other volumes.
const READY_TIME_MAX: Duration = Duration::from_secs(4);

/// Longest time for connections to finish their requests at the server's end. With the later
/// waits, a server ends within 10 s even if devices hang.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  everbyte serve /dev/shm/p --nbd unix:/tmp/everbyte.sock            every volume
  everbyte serve /dev/shm/p/disk --nbd tcp:127.0.0.1:10809           one volume
  everbyte serve /dev/shm/p --nbd unix:/run/e.sock --nbd tcp:10809   two addresses
  everbyte serve /dev/shm/p --nbd unix:/tmp/e.sock --emulate pcm     as slow as phase-change memory
  everbyte serve /dev/shm/p --nbd unix:/run/e.sock --socket-mode 660 --socket-group kvm
  everbyte serve /dev/shm/p --nbd unix:/run/e.sock --read-only-export base
  everbyte serve /dev/shm/p --nbd unix:/tmp/e.sock --record trace.csv.zst   record requests
  everbyte serve /dev/shm/p --vhost disk=/run/disk.sock              to a virtual machine
  everbyte serve /dev/shm/p --nbd tcp:10809 --metrics 9500           metrics for Prometheus
  everbyte serve --config /etc/everbyte/pool.toml                    options from a file, as a service

For each ready export the server prints a line 'ready: URI'. Without exports it prints the server's own URI. Without
--nbd it prints 'ready'. Other NBD programs accept the URI, for example
  nbdinfo 'nbd+unix:///disk?socket=/tmp/everbyte.sock'
A cache with a missing or silent backing device is not ready. 'everbyte volume list' shows its state, and connecting
clients get the reason until the device answers. A swap volume is not ready while programs lease parts of it
('everbyte run'), or if the pool is served read-only.

SIGTERM, SIGINT (Ctrl-C) and SIGHUP end the server cleanly: it finishes requests, makes all writes durable and marks
the pool clean. It waits a few seconds for hanging backing devices. If this loses an acknowledged write, standard error
reports the loss, the exit status is 1 and the pool is not marked clean. A second signal ends the server immediately
and is as safe as a crash: flushed data survives.

If the server crashes or is killed (kill -9), acknowledged writes without a flush can be lost, as after a power failure
of a disk. Clients with automatic reconnect (nbd-client -persist, QEMU's reconnect-delay) do not notice the loss:
serve them with --write-through.

TCP has neither encryption nor passwords: listen on loopback, or on a trusted network.

As a service of systemd (Type=notify) the server reports readiness, status and its end. It serves NBD clients on passed
sockets with the name nbd (FileDescriptorName=nbd), and metrics on those with the name metrics. An address with a
passed socket is not bound again.";

/// Serve a pool's volumes to NBD clients.
///
/// After a crash the server first recovers the pool. Volumes created, resized or deleted by `everbyte
/// volume` (through the control socket POOL.sock) appear and disappear as exports. While the server
/// runs, no other process can open the pool.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device. With /VOLUME, the server exports only this volume.
    #[arg(value_name = "POOL[/VOLUME]", required_unless_present = "config")]
    target: Option<PathBuf>,
    /// Read all options from this TOML file. Its keys are the options without `--`, and `pool` for
    /// POOL[/VOLUME]. No other argument is valid with it.
    #[arg(long, value_name = "FILE", exclusive = true)]
    config: Option<PathBuf>,
    /// Address to listen on: unix:PATH, tcp:HOST:PORT, or tcp:PORT on loopback. Repeatable.
    /// Without it, only commands reach the pool, through its control socket.
    #[arg(long, value_name = "ADDRESS")]
    nbd: Vec<Address>,
    /// Serve a block volume or cache to virtual machines by vhost-user-blk, on the Unix socket PATH.
    /// A guest sees no volatile write cache unless --write-back is given. Repeatable.
    #[arg(long, value_name = "VOLUME=PATH")]
    vhost: Vec<VhostTarget>,
    /// Let guests of --vhost have a volatile write cache. They can switch it off and on.
    #[arg(long)]
    write_back: bool,
    /// Address for metrics in the text format of Prometheus, at the path /metrics: HOST:PORT, or PORT on
    /// loopback. The page needs no password.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// Serve without any change: after a crash the server recovers a private copy of the pool.
    /// Clients cannot write.
    #[arg(long)]
    read_only: bool,
    /// Export this volume read-only: the server refuses changes by NBD clients. Other volumes stay
    /// writable. Repeatable.
    #[arg(long, value_name = "VOLUME")]
    read_only_export: Vec<String>,
    /// Permissions of the Unix sockets, octal, such as 660. The default 600 lets only the
    /// server's user and root connect. A client needs write permission to connect.
    #[arg(long, value_parser = parse_mode, value_name = "MODE")]
    socket_mode: Option<u32>,
    /// Owner of the Unix sockets, a user's name or number. Requires root.
    #[arg(long, value_name = "USER")]
    socket_owner: Option<String>,
    /// Group of the Unix sockets, a name or number. It must be a group of the server's user.
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Make every write durable before the reply, and announce no volatile cache. Required for
    /// clients with automatic reconnect. Small writes take longer.
    #[arg(long)]
    write_through: bool,
    /// Add the latency of a memory technology to every line read and written, and always flush
    /// lines.
    #[arg(long, value_enum, value_name = "TECHNOLOGY")]
    emulate: Option<Emulate>,
    /// Count written lines per frame of 4 KiB, for 'everbyte pool info --wear'.
    #[arg(long, requires = "emulate")]
    count_wear: bool,
    /// Flush lines only if the medium needs it, or always.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    flush: Flush,
    /// Map the whole pool before the first request: requests then cause no page faults. Takes about
    /// one second per few GiB.
    #[arg(long)]
    populate: bool,
    /// Time between checkpoints, such as 5s or 500ms. A crash loses unflushed writes of at most
    /// this time.
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    checkpoint_interval: Duration,
    /// Record requests of clients as a trace for 'everbyte sim': lines of
    /// time_ns,op,file,offset,len, with the time since the start, op R, W, F (flush),
    /// T (trim) or Z (zero), and the export as file. The name's end .zst selects compression. After
    /// a write error the server continues without the recording.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Replace an existing file of --record. Pools and backing devices are never replaced.
    #[arg(long, requires = "record")]
    force: bool,
    /// Time that requests wait for the lost NBD server of a cache's backing device, such as 30s.
    /// Then they fail. Flushed data stays in the pool, and the cache continues when the server
    /// returns.
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    reconnect_timeout: Duration,
    /// Bypass the system's page cache (O_DIRECT) for files and block devices as backing devices, to
    /// cache pages only once. If the file system refuses, the server warns and uses the page cache.
    #[arg(long)]
    direct_backing: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Maximum of NBD connections per address.
    #[arg(long, default_value_t = 128, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=16384))]
    max_connections: u16,
}

/// Emulated memory technologies.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Emulate {
    /// DRAM with flushes.
    Dram,
    /// Spin-transfer torque MRAM.
    SttMram,
    /// Phase-change memory.
    Pcm,
    /// Phase-change memory with eight banks that write in parallel.
    PcmBanks,
    /// Resistive RAM.
    Reram,
}

/// When to flush lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Flush {
    /// Only if the medium needs it.
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
        let durability = match self.write_through {
            true => Durability::WhenAnswered,
            false => Durability::AtFlush,
        };
        let read_only_exports = self.read_only_export.clone();
        Options { only, read_only_exports, durability }
    }

    fn socket_file(&self) -> Result<SocketFile, UsageError> {
        Ok(SocketFile {
            mode: self.socket_mode.unwrap_or(SocketFile::default().mode),
            owner: self.socket_owner.as_deref().map(find_user).transpose()?,
            group: self.socket_group.as_deref().map(find_group).transpose()?,
        })
    }

    fn open(&self, path: &Path, only: Option<String>) -> Result<OpenPool, FileError> {
        let builder = builder()
            .media(self.media())
            .read_only(self.read_only)
            .exclusive(true)
            .checkpoint_interval(self.checkpoint_interval)
            .reconnect_timeout(self.reconnect_timeout)
            .direct_backing(self.direct_backing)
            .trust_pool(self.trust.trust_pool);
        // Another command can have the pool for a moment. A server that has it is an error
        // immediately.
        let pool = wait_for(|| builder.open_file(path))?;
        Ok(OpenPool::new(pool, self.options(only)))
    }
}

/// The parts running while a pool is served, in the order of their stop.
struct RunningServers {
    servers: Vec<Arc<Server>>,
    vhosts: Vec<Arc<VhostServer>>,
    metrics: Vec<MetricsServer>,
}

impl RunningServers {
    fn start(args: &Args, pool: &Arc<OpenPool>, passed: PassedSockets) -> anyhow::Result<Self> {
        if let Some(record) = &args.record {
            // Before the first listener: the record has every request from the beginning.
            pool.set_recorder(start_recording(pool, record, args.force)?);
        }
        let servers = listen_all(args, pool, passed.nbd)?;
        let file = args.socket_file().map_err(anyhow::Error::new)?;
        let vhosts =
            args.vhost.iter().map(|target| target.serve(pool, file, args.write_back).map(Arc::new));
        let vhosts = vhosts.collect::<anyhow::Result<Vec<_>>>()?;
        pool.set_servers(&servers, &vhosts);
        let metrics = serve_metrics(args, pool, passed.metrics)?;
        // After the addresses are taken: a failed start must not appear to commands as a server.
        start_control(pool)?;
        Ok(Self { servers, vhosts, metrics })
    }
}

impl Drop for RunningServers {
    fn drop(&mut self) {
        // A scrape during the close would wait for it.
        self.metrics.clear();
        // All stop accepting first, so that the waits for running requests overlap.
        self.vhosts.iter().for_each(|server| server.begin_shutdown());
        for server in &self.servers {
            server.begin_shutdown();
        }
        self.vhosts.iter().for_each(|server| server.shutdown());
        for server in &self.servers {
            server.shutdown();
        }
    }
}

fn start_recording(pool: &OpenPool, path: &Path, force: bool) -> anyhow::Result<Recorder> {
    let file = match pool.record_file(path, force) {
        // The library names no option, so the advice is added here.
        Err(error @ RecordError::Exists { .. }) => bail!("{error}; pass --force for that"),
        made => made?,
    };
    let output = Output::over(file, path);
    let output = output.with_context(|| format!("cannot write to {}", path.display()))?;
    Ok(recording::start(Box::new(output), path)?)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let from_file = args.config.as_deref().map(serve_config::read::<Args>).transpose()?;
    let args = from_file.as_ref().unwrap_or(args);
    // Before the first thread: the variables of the environment are removed.
    let passed = service::passed_sockets()?;
    let target = args.target.as_deref().context("no pool is given")?;
    let (path, only) = split_target(target)?;
    // Before the pool is opened: a signal during a long recovery still ends it cleanly.
    let mut stop = Stop::new().context("cannot catch signals")?;
    let started = Instant::now();
    service::status(&format!("opening {}", path.display()));
    let pool = Arc::new(args.open(&path, only).map_err(SessionError::from)?);
    report_recovery(&pool, started.elapsed());
    if let Some(reason) = pool.distrust() {
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
    let served = serve(args, &pool, passed, &mut stop);
    // After the servers: no request can come any more. Before the close: it can take long.
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
    // The pool is in order, but a store through a mapping is lost and no sync has reported it.
    pool.check_told_losses()?;
    Ok(ExitCode::SUCCESS)
}

/// Serves until a signal comes.
fn serve(
    args: &Args,
    pool: &Arc<OpenPool>,
    passed: PassedSockets,
    stop: &mut Stop,
) -> anyhow::Result<()> {
    let serving = RunningServers::start(args, pool, passed)?;
    // With a deadline: a hung backing device must not keep the other volumes from being ready.
    let ready = pool.open_exported(Instant::now() + READY_TIME_MAX, || stop.is_wanted())?;
    // A server about to end must not attract clients.
    if !stop.is_wanted() {
        announce(&ready, &serving, &args.vhost);
        service::ready(&status(pool, &ready));
    }
    stop.wait();
    Ok(())
}

/// The state of the server in one line, for the service manager.
fn status(pool: &OpenPool, ready: &[String]) -> String {
    let exported = pool.exported();
    let missing: Vec<_> = exported.iter().filter(|name| !ready.contains(name)).cloned().collect();
    let path = pool.pool().path().display();
    match missing.as_slice() {
        [] => format!("serving {path}, exports: {}", ready.len()),
        missing => {
            format!("serving {path}, exports: {}, not ready: {}", ready.len(), missing.join(", "))
        }
    }
}

fn listen_all(
    args: &Args,
    pool: &Arc<OpenPool>,
    passed: Vec<OwnedFd>,
) -> anyhow::Result<Vec<Arc<Server>>> {
    let settings = Settings {
        connections_max: usize::from(args.max_connections),
        shutdown_time_max: SHUTDOWN_TIME_MAX,
        socket_file: args.socket_file().map_err(anyhow::Error::new)?,
        ..Settings::default()
    };
    // One memory for the writes of all servers bounds the memory of the process.
    let payloads = PayloadMemory::default();
    let exports = || Arc::<OpenPool>::clone(pool);
    let mut servers = Vec::new();
    for socket in passed {
        let server = Server::adopt_sharing(socket, exports(), settings, payloads.clone())?;
        servers.push(Arc::new(server));
    }
    for address in &args.nbd {
        // The service manager listens there: a second socket could not have this address.
        if servers.iter().any(|server| server.address() == address) {
            continue;
        }
        let server = Server::bind_sharing(address, exports(), settings, payloads.clone())?;
        servers.push(Arc::new(server));
    }
    for address in servers.iter().map(|server| server.address()) {
        if let Address::Tcp(tcp) = address
            && !tcp.ip().is_loopback()
        {
            tracing::warn!(
                "{address}: whoever reaches this address can read and write the volumes"
            );
        }
    }
    Ok(servers)
}

/// Starts the metrics servers: on passed sockets, and at the wanted address.
fn serve_metrics(
    args: &Args,
    pool: &Arc<OpenPool>,
    passed: Vec<OwnedFd>,
) -> anyhow::Result<Vec<MetricsServer>> {
    // Weak: a scrape must not keep the pool from its end.
    let source = || {
        let pool = Arc::downgrade(pool);
        move || pool.upgrade().map(|pool| page(pool.metrics()))
    };
    let mut servers = Vec::new();
    for socket in passed {
        servers.push(MetricsServer::adopt(socket, source())?);
    }
    if let Some(address) = args.metrics
        && servers.iter().all(|server| server.address() != address.socket_address())
    {
        servers.push(MetricsServer::bind(address, source())?);
    }
    for address in servers.iter().map(MetricsServer::address) {
        if !address.ip().is_loopback() {
            tracing::warn!("metrics at {address}: every host with a route to it can read them");
        }
    }
    Ok(servers)
}

/// Prints the ready exports, or the readiness of the server without one, and the pages of metrics.
fn announce(ready: &[String], serving: &RunningServers, vhosts: &[VhostTarget]) {
    let servers = &serving.servers;
    let itself = [String::new()];
    let names = if ready.is_empty() { &itself } else { ready };
    let mut lines: Vec<String> = Vec::new();
    for server in servers {
        lines.extend(names.iter().map(|name| format!("ready: {}", server.address().uri(name))));
    }
    let vhosts = vhosts.iter().filter(|target| ready.contains(&target.volume));
    lines.extend(vhosts.map(VhostTarget::ready_line));
    if lines.is_empty() {
        lines.push("ready".to_owned());
    }
    let pages = serving.metrics.iter().map(MetricsServer::address);
    lines.extend(pages.map(|address| format!("metrics: http://{address}/metrics")));
    for line in lines {
        // Clients may already work, so a closed standard output does not end the server.
        if let Err(error) = output::try_line(&line) {
            tracing::warn!(%error, "cannot say on standard output: {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, CommandFactory};

    use super::*;

    #[test]
    fn keys_are_options_of_serve() {
        let command = crate::Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let keys = serve.get_arguments().filter(|option| !option.is_global_set());
        let keys = keys.filter_map(clap::Arg::get_long).filter(|key| *key != "help");
        let known = Args::augment_args(clap::Command::new("serve"));
        let refused: Vec<_> =
            keys.filter(|key| serve_config::action_of(&known, key).is_none()).collect();
        assert_eq!(refused, ["config"]);
    }

    #[test]
    fn sample_config_is_accepted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let sample = std::fs::read_to_string(root.join("docs/examples/pool.toml")).unwrap();
        serve_config::options::<Args>(&sample).unwrap();
        // The commented keys as well.
        let lines = sample.lines().map(|line| match line.strip_prefix("# ") {
            Some(key) if key.contains(" = ") => key,
            _ => line,
        });
        let all = lines.collect::<Vec<_>>().join("\n");
        assert!(all.contains("\nwrite-through = true"));
        serve_config::options::<Args>(&all).unwrap();
    }
}
