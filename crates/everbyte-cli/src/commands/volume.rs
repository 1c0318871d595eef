//! `everbyte volume`: its subcommands.

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    volume_attach, volume_create, volume_delete, volume_detach, volume_list, volume_rename,
    volume_resize,
};

/// Create, list, resize, rename and delete volumes, attach and detach caches.
///
/// If a server has the pool, the command uses the server's control socket, and other volumes'
/// clients are not affected. Otherwise it opens the pool.
#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    Create(Box<volume_create::Args>),
    List(volume_list::Args),
    Resize(volume_resize::Args),
    Rename(volume_rename::Args),
    Delete(volume_delete::Args),
    Attach(volume_attach::Args),
    Detach(volume_detach::Args),
}

pub(crate) fn run(command: &VolumeCommand) -> anyhow::Result<ExitCode> {
    match command {
        VolumeCommand::Create(args) => volume_create::run(args),
        VolumeCommand::List(args) => volume_list::run(args),
        VolumeCommand::Resize(args) => volume_resize::run(args),
        VolumeCommand::Rename(args) => volume_rename::run(args),
        VolumeCommand::Delete(args) => volume_delete::run(args),
        VolumeCommand::Attach(args) => volume_attach::run(args),
        VolumeCommand::Detach(args) => volume_detach::run(args),
    }
}
