//! The subcommands, one file each.

pub(crate) mod client;
mod client_disconnect;
mod client_list;
pub(crate) mod completions;
mod files;
pub(crate) mod fs;
mod fs_cat;
mod fs_df;
mod fs_get;
mod fs_ls;
mod fs_mkdir;
mod fs_mv;
mod fs_put;
mod fs_rm;
mod fs_stat;
mod fs_sync;
mod fs_tree;
mod listing;
pub(crate) mod man;
pub(crate) mod mount;
mod mount_background;
mod mount_options;
mod mount_served;
pub(crate) mod pool;
pub(crate) mod pool_check;
pub(crate) mod pool_create;
mod pool_delete;
pub(crate) mod pool_grow;
pub(crate) mod pool_info;
pub(crate) mod pool_scrub;
pub(crate) mod pool_status;
pub(crate) mod run;
mod run_program;
mod run_served;
pub(crate) mod serve;
mod serve_config;
mod serve_vhost;
mod server;
mod service;
pub(crate) mod sim;
mod sim_generate;
mod sim_info;
mod sim_merge;
mod sim_plan;
mod sim_run;
mod sim_traces;
mod source;
pub(crate) mod system_mount;
pub(crate) mod top;
mod trust;
pub(crate) mod volume;
pub(crate) mod volume_attach;
pub(crate) mod volume_create;
pub(crate) mod volume_delete;
pub(crate) mod volume_detach;
pub(crate) mod volume_list;
pub(crate) mod volume_rename;
mod volume_resize;

use everbyte_control::{Response, VolumeStatus};

/// The volumes in the answer to [`Request::VolumeList`](everbyte_control::Request::VolumeList).
fn volumes(answer: Response) -> anyhow::Result<Vec<VolumeStatus>> {
    match answer {
        Response::Volumes(volumes) => Ok(volumes),
        other => Err(unexpected(&other)),
    }
}

/// The error for an answer of another type than the request's: the server has another version.
pub(crate) fn unexpected(response: &Response) -> anyhow::Error {
    anyhow::anyhow!("the server answered something else than was asked: {response:?}")
}
