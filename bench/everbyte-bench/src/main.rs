//! Benchmarks: volumes, files, mounts, caches and paged memory, compared with the memory below them and with
//! rivals.
//!
//! Owns the command line. The bench is a separate program: rivals stay out of the everyday build.
//! `unsafe` is confined to five modules: raw memory, the C library, the counting allocator, paged memory, and
//! a slow store.

mod baselines;
mod block;
mod cache;
mod children;
mod consistency;
mod crowd;
mod driver;
mod environment;
mod files;
mod filter;
mod index;
mod layers;
mod machine;
mod measure;
mod media;
mod mount;
mod rows;
mod stats;
mod subject;
mod subjects;
mod swap;
mod table;
mod tpcc;
mod workload;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::block::BlockArgs;
use crate::cache::options::CacheArgs;
use crate::consistency::command::ConsistencyArgs;
use crate::crowd::CrowdArgs;
use crate::driver::drive;
use crate::files::command::FilesArgs;
use crate::index::command::IndexArgs;
use crate::index::misses::{self, MissesArgs};
use crate::layers::LayersArgs;
use crate::machine::MachineArgs;
use crate::media::MediaArgs;
use crate::mount::command::MountArgs;
use crate::mount::served::{self as served_mount, ServeMountArgs};
use crate::subjects::pmemblk_library;
use crate::subjects::served::{self, ServeArgs};
use crate::swap::child;
use crate::swap::command::SwapArgs;
use crate::swap::kernel::guardian;
use crate::swap::task::TaskArgs;
use crate::tpcc::kill::{self, ChildArgs, KillArgs};

/// Measures Everbyte, the memory below it and its rivals.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    Block(BlockArgs),
    Consistency(ConsistencyArgs),
    Cache(CacheArgs),
    Crowd(CrowdArgs),
    Files(FilesArgs),
    Index(IndexArgs),
    Layers(LayersArgs),
    Machine(MachineArgs),
    Media(MediaArgs),
    Mount(MountArgs),
    Swap(SwapArgs),
    /// Kills TPC-C during transactions and checks the remaining database.
    TpccKill(KillArgs),
    #[command(hide = true)]
    TpccChild(ChildArgs),
    #[command(hide = true)]
    IndexMisses(MissesArgs),
    #[command(hide = true)]
    ServeDevice(ServeArgs),
    #[command(hide = true)]
    ServeMount(ServeMountArgs),
    #[command(hide = true)]
    SwapChild(TaskArgs),
    #[command(hide = true)]
    SwapGuardian(TaskArgs),
}

fn main() -> ExitCode {
    // Before any thread: a change of the environment is not safe later.
    pmemblk_library::set_environment();
    let done = match Cli::parse().suite {
        Suite::Block(args) => drive(&args),
        Suite::Consistency(args) => drive(&args),
        Suite::Cache(args) => drive(&args),
        Suite::Crowd(args) => drive(&args),
        Suite::Files(args) => drive(&args),
        Suite::Index(args) => drive(&args),
        Suite::Layers(args) => drive(&args),
        Suite::Machine(args) => drive(&args),
        Suite::Media(args) => drive(&args),
        Suite::Mount(args) => drive(&args),
        Suite::Swap(args) => drive(&args),
        Suite::TpccKill(args) => kill::rounds(&args),
        Suite::TpccChild(args) => kill::child(&args),
        Suite::IndexMisses(args) => misses::child(&args),
        Suite::ServeDevice(args) => served::serve(&args),
        Suite::ServeMount(args) => served_mount::serve(&args),
        Suite::SwapChild(args) => child::run(&args),
        Suite::SwapGuardian(args) => guardian::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error leaves the status as the only message.
            let _closed = writeln!(io::stderr(), "everbyte-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
