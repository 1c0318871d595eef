//! `everbyte fs`: its subcommands.

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    fs_cat, fs_df, fs_get, fs_ls, fs_mkdir, fs_mv, fs_put, fs_rm, fs_stat, fs_sync, fs_tree,
};

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p files --kind fs --size 256M
  everbyte fs put -r photos /dev/shm/p/files:/photos
  everbyte fs ls -l /dev/shm/p/files:/photos
  everbyte fs cat /dev/shm/p/files:/photos/readme.txt
  everbyte fs get -rp /dev/shm/p/files:/photos /backup

A file's name is POOL/VOLUME:PATH: POOL is the pool's file or device, VOLUME the file system, and PATH begins at its
root, with or without a slash. POOL/VOLUME alone is the root. '..' and symbolic links in PATH stay within the file
system. More than 40 links are an error, as for programs.

Access to the pool permits all of these commands: they show and keep permissions of files, and do not check them.";

/// List, copy, move and remove files of a file system, mounted or not.
///
/// If a server has the pool, or the file system is mounted, the command uses the control socket
/// POOL.sock, and programs on the mount see changes immediately. Otherwise it opens the pool.
/// Commands without changes leave an unserved pool untouched.
#[derive(Subcommand)]
#[command(after_long_help = EXAMPLES)]
pub(crate) enum FsCommand {
    Ls(fs_ls::Args),
    Tree(fs_tree::Args),
    Stat(fs_stat::Args),
    Cat(fs_cat::Args),
    Get(fs_get::Args),
    Put(fs_put::Args),
    Mkdir(fs_mkdir::Args),
    Mv(fs_mv::Args),
    Rm(fs_rm::Args),
    Df(fs_df::Args),
    Sync(fs_sync::Args),
}

pub(crate) fn run(command: &FsCommand) -> anyhow::Result<ExitCode> {
    match command {
        FsCommand::Ls(args) => fs_ls::run(args),
        FsCommand::Tree(args) => fs_tree::run(args),
        FsCommand::Stat(args) => fs_stat::run(args),
        FsCommand::Cat(args) => fs_cat::run(args),
        FsCommand::Get(args) => fs_get::run(args),
        FsCommand::Put(args) => fs_put::run(args),
        FsCommand::Mkdir(args) => fs_mkdir::run(args),
        FsCommand::Mv(args) => fs_mv::run(args),
        FsCommand::Rm(args) => fs_rm::run(args),
        FsCommand::Df(args) => fs_df::run(args),
        FsCommand::Sync(args) => fs_sync::run(args),
    }
}
