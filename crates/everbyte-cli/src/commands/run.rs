//! `everbyte run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use everbyte::error::FileError;
use everbyte_control::{ControlClient, Handler, Request, VolumeStatus};
use everbyte_path::{Kind, look};
use everbyte_server::{OpenPool, Options};

use super::run_program::{check_program, find_program};
use super::run_served::serve;
use super::server::{report_recovery, split_target};
use super::trust::{TrustArgs, untrusted};
use super::volumes;
use crate::output;
use crate::session::{SessionError, builder, wait_for};
use crate::size::{parse_size, show_size};

/// The library preloaded into programs.
const LIBRARY: &str = "libeverbyte_preload.so";
/// The kind of volumes to lend.
const SWAP: &str = "swap";

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p more --kind swap --size 4G
  everbyte run --dram 1G --pool /dev/shm/p -- python3 analysis.py
  everbyte run --dram 1G --pool /dev/shm/p/more --stats -- sort -S 3G --parallel=2 words
  everbyte run --dram 64M -- sqlite3 :memory:
  everbyte run --dram 2G --pool /dev/shm/p --bss -- ./fortran-program

Memory from malloc and its relatives pages, and so do private anonymous mappings of 1 MiB and more. At
most --dram of this memory is in DRAM. The rest is in runs of a swap volume. The pool's server lends
these runs when the program needs more memory. Stacks, global variables, smaller mappings, shared memory
and memory from the program's own system calls do not page.

With --bss the program's zero-initialized global variables page, too, such as large arrays in Fortran or
C. Variables of libraries do not. brk and sbrk then give no memory.

Memory counts from its first use. If the memory in use and a request exceed DRAM and volume, malloc and
mmap fail. If a use of granted memory finds no slot, SIGKILL ends the program, and one line gives the
sizes. With --strict memory counts at its allocation, and no use fails.

Children start the same way. Each has a separate limit of --dram bytes, and all share the volume. A child
of fork has its parent's whole heap, in DRAM, and does not page until it executes a program. If DRAM is
too small for this heap, the fork fails. A child without the right to page, such as a child of another
user or in a sandbox, runs on ordinary memory, and one line reports it. Statically linked programs, and
programs with another user's rights or with file capabilities, cannot be preloaded. The command refuses
them. As children they run without paging.

If a server has the pool ('everbyte serve', or another 'everbyte run'), it lends, and the program takes
this command's place. Otherwise this command is the server until the program has ended, and its exit
status is the program's, or 128 plus the number of the program's fatal signal. If a server is killed, its
programs keep their runs, and ask the next server for more. Without --pool the rest of the heap is in
memory, too. This saves nothing.

Faults are resolved by threads of the program's (userfaultfd), because the program passes such memory to
system calls. That takes one of: CAP_SYS_PTRACE, access to /dev/userfaultfd, or the sysctl
vm.unprivileged_userfaultfd=1.

If another user can change the pool, the command refuses it: this user could read and change the heap.
--trust-pool overrides the refusal.

--stats writes a line to standard error every second and two at the end: bytes of DRAM and of slots, bytes
in and out, faults and the time in them. The lines also have the bytes in use, reserved and resident, and
the expected lifetime of the medium in years. With --wear another line at the end has the number of
written slots, and their mean and most writes. Children write lines only with --child-stats.

Environment:
  EVERBYTE_PRELOAD  the library to preload; else libeverbyte_preload.so next to this program or in
                    ../lib/everbyte or ../lib";

/// Run a program with little DRAM: its heap pages to storage-class memory.
///
/// The program needs no change. Its heap is in a swap volume of a pool, and at most --dram bytes of it are
/// in DRAM at a time.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Most bytes of the heap in DRAM, for each process.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    dram: u64,
    /// The pool's file or device, followed by /VOLUME if it has more than one swap volume.
    #[arg(long, value_name = "POOL[/VOLUME]")]
    pool: Option<PathBuf>,
    /// Let zero-initialized global variables (.bss) page as well, for programs with large static arrays.
    #[arg(long)]
    bss: bool,
    /// Count memory at its allocation: malloc and mmap fail beyond DRAM and volume, and no later access does.
    #[arg(long)]
    strict: bool,
    /// Write statistics to standard error, every second and at the end.
    #[arg(long)]
    stats: bool,
    /// Write the statistics of children too.
    #[arg(long, requires = "stats")]
    child_stats: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Count the writes of each slot, and report the evenness of the wear at the end.
    #[arg(long)]
    wear: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Passes the options to the library in the environment.
fn configure(command: &mut Command, args: &Args) {
    let stats = match (args.stats, args.wear) {
        (true, _) => Some("1"),
        // Only the end.
        (false, true) => Some("0"),
        (false, false) => None,
    };
    for (name, value) in [
        // The library changes the digits in the program that this command starts.
        ("EVERBYTE_RUN_STAGE", Some("0:0000000000")),
        ("EVERBYTE_RUN_STATS", stats),
        ("EVERBYTE_RUN_STRICT", args.strict.then_some("1")),
        ("EVERBYTE_RUN_CHILD_STATS", args.child_stats.then_some("1")),
        ("EVERBYTE_RUN_BSS", args.bss.then_some("1")),
        ("EVERBYTE_RUN_TRUST_POOL", args.trust.trust_pool.then_some("1")),
        ("EVERBYTE_RUN_WEAR", args.wear.then_some("1")),
    ] {
        match value {
            Some(value) => command.env(name, value),
            // A program under `everbyte run` can start another one: its variables must not leak
            // into that.
            None => command.env_remove(name),
        };
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some((name, arguments)) = args.program.split_first() else { bail!("there is no program") };
    // Before the exec: nothing is left after it that could explain a program without preloading.
    let program = find_program(name)?;
    check_program(&program)?;
    let library = find_library()?;
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments).env("LD_PRELOAD", preloaded(&library));
    command.env("EVERBYTE_RUN_DRAM", args.dram.to_string());
    configure(&mut command, args);
    let Some(target) = &args.pool else {
        tracing::warn!("without --pool the rest of the heap is in memory, too: this saves nothing");
        command.env("EVERBYTE_RUN_SPACE", memory_bytes()?.to_string());
        command.env_remove("EVERBYTE_RUN_POOL");
        announce(&program, args, "memory without a name");
        // exec returns only after a failure.
        return Err(replace_by(&mut command, &program));
    };
    let (path, wanted) = split_target(target)?;
    let builder = builder().trust_pool(args.trust.trust_pool);
    let pool = match wait_for(|| builder.open_file(&path)) {
        Err(FileError::InUse(holder)) => match ControlClient::connect(&path) {
            Ok(mut client) => {
                // Before a lease: the heap must never lie in memory that another user can change.
                check_trust(args, client.distrust()?)?;
                let volumes = volumes(client.call(Request::VolumeList)?)?;
                lend_from(&mut command, &path, choose(&volumes, wanted.as_deref(), &path)?)?;
                announce(&program, args, &target.display().to_string());
                return Err(replace_by(&mut command, &program));
            }
            Err(_) => return Err(SessionError::from(FileError::InUse(holder)).into()),
        },
        opened => opened.map_err(SessionError::from)?,
    };
    let started = std::time::Instant::now();
    let pool = std::sync::Arc::new(OpenPool::new(pool, Options::default()));
    // The result waits, so that the pool below is closed in each case.
    let trusted = check_trust(args, pool.distrust());
    report_recovery(&pool, started.elapsed());
    let answer = trusted.and_then(|()| Ok(pool.handle(Request::VolumeList)?));
    let status = answer.and_then(|answer| {
        let volumes = volumes(answer)?;
        lend_from(&mut command, &path, choose(&volumes, wanted.as_deref(), &path)?)?;
        announce(&program, args, &target.display().to_string());
        serve(&pool, &mut command).with_context(|| format!("cannot run {}", program.display()))
    });
    // Before the `?`: also after a failure the pool is left clean.
    let closed = pool.close();
    let status = status?;
    closed.context("the pool could not be closed cleanly; it will be recovered")?;
    Ok(ExitCode::from(status))
}

/// Rejects a pool others can change for the reason `distrust`, unless the command line trusts it.
fn check_trust(args: &Args, distrust: Option<String>) -> anyhow::Result<()> {
    match distrust.filter(|_| !args.trust.trust_pool) {
        Some(reason) => {
            let effect = "they could read and change the memory of the program";
            Err(untrusted(&reason, effect).into())
        }
        None => Ok(()),
    }
}

/// Becomes the program; returns only on an error.
fn replace_by(command: &mut Command, program: &Path) -> anyhow::Error {
    anyhow::Error::from(command.exec()).context(format!("cannot run {}", program.display()))
}

fn announce(program: &Path, args: &Args, place: &str) {
    let variables = if args.bss { "initialised variables" } else { "variables" };
    // Standard output is the program's.
    output::complain(format!(
        "everbyte run: the heap of {} has {} of DRAM, the rest is in {place}; stacks, {variables}, \
         raw system calls and children that are static or run as others do not page",
        program.display(),
        show_size(args.dram)
    ));
}

/// The chosen swap volume.
fn choose<'v>(
    volumes: &'v [VolumeStatus],
    wanted: Option<&str>,
    pool: &Path,
) -> anyhow::Result<&'v VolumeStatus> {
    let pool = pool.display();
    if let Some(wanted) = wanted {
        let Some(found) = volumes.iter().find(|volume| volume.name == wanted) else {
            bail!("there is no volume {wanted} in {pool}");
        };
        if found.kind != SWAP {
            bail!("volume {wanted} of {pool} is of the kind {}, not {SWAP}", found.kind);
        }
        return Ok(found);
    }
    // Without a name exactly one swap volume must exist: a guess could fill the wrong one.
    let swap: Vec<_> = volumes.iter().filter(|volume| volume.kind == SWAP).collect();
    match swap[..] {
        [one] => Ok(one),
        [] => bail!("{pool} has no swap volume: make one by everbyte volume create --kind {SWAP}"),
        _ => {
            let names: Vec<_> = swap.iter().map(|volume| volume.name.as_str()).collect();
            bail!(
                "{pool} has several swap volumes, {}: name one, as in POOL/VOLUME",
                names.join(", ")
            )
        }
    }
}

/// Passes the source of its memory to the program.
fn lend_from(command: &mut Command, pool: &Path, volume: &VolumeStatus) -> anyhow::Result<()> {
    if let Some(reason) = &volume.read_only {
        bail!("volume {} is read-only, so nothing of it is lent: {reason}", volume.name);
    }
    let pool = std::fs::canonicalize(pool).with_context(|| pool.display().to_string())?;
    command.env("EVERBYTE_RUN_POOL", pool);
    command.env("EVERBYTE_RUN_VOLUME", &volume.name);
    command.env("EVERBYTE_RUN_SPACE", volume.size_bytes.to_string());
    Ok(())
}

/// The value of `LD_PRELOAD`: the library, and the libraries preloaded already.
fn preloaded(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let is_there = before.to_string_lossy().split([':', ' ']).any(|word| OsStr::new(word) == value);
    if is_there {
        return before;
    }
    if !before.is_empty() {
        value.push(":");
        value.push(before);
    }
    value
}

fn find_library() -> anyhow::Result<PathBuf> {
    let (path, must_exist) = match std::env::var_os("EVERBYTE_PRELOAD") {
        Some(path) => (vec![PathBuf::from(path)], true),
        None => {
            let program = std::env::current_exe().context("cannot find this program")?;
            let folder = program.parent().unwrap_or(Path::new("/")).to_owned();
            let places = ["", "../lib/everbyte", "../lib"];
            (places.map(|place| folder.join(place).join(LIBRARY)).to_vec(), false)
        }
    };
    if let Some(found) =
        path.iter().find(|path| look(path).is_ok_and(|found| found.kind() == Kind::File))
    {
        let found = std::fs::canonicalize(found)?;
        if found.to_string_lossy().contains([' ', ':']) {
            bail!("{} cannot be preloaded: its path has a space or a colon", found.display());
        }
        return Ok(found);
    }
    let looked: Vec<_> = path.iter().map(|path| path.display().to_string()).collect();
    if must_exist {
        bail!("{}, which EVERBYTE_PRELOAD names, is not there", looked.join(""));
    }
    bail!(
        "there is no {}: install it beside this program, or set EVERBYTE_PRELOAD to its path",
        looked.join(", ")
    )
}

/// DRAM of this machine, in bytes.
fn memory_bytes() -> anyhow::Result<u64> {
    let info = rustix::system::sysinfo();
    let bytes = info.totalram as u64 * u64::from(info.mem_unit);
    if bytes == 0 { bail!("the system does not say how much memory it has") } else { Ok(bytes) }
}
