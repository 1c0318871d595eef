//! The bodies of the fuzz targets: plain functions of bytes. They panic when a promise is broken.
//!
//! Each is called by a fuzzer (`fuzz/fuzz_targets`) and by a test that replays the corpora on any
//! toolchain (`tests/corpora.rs`). For any bytes, a target neither waits nor leaves anything
//! behind, and is deterministic. Nothing here is part of the program. `fuzz/README.md` describes
//! the use.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a panic is how a target reports")]
#![allow(clippy::print_stderr, reason = "stories are shown on demand")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "targets are for 64-bit machines, and cut numbers on purpose"
)]

mod address;
mod cache;
mod canary;
mod config;
mod control;
mod control_answers;
mod fs;
mod lease;
mod metrics;
mod nbd;
mod pool;
mod socket;
mod swap;
mod trace;
mod trace_reference;
mod vhost;

pub use address::address;
pub use cache::cache_volume;
pub use canary::canary;
pub use config::config;
pub use control::control;
pub use control_answers::control_answers;
pub use fs::{fs_image, fs_operations};
pub use lease::lease;
pub use metrics::metrics_request;
pub use nbd::{nbd_client, nbd_server};
pub use pool::pool_image;
pub use swap::swap_table;
pub use trace::{
    trace_any, trace_blkparse, trace_csv, trace_detection, trace_disksim, trace_fio, trace_fiu,
    trace_kvcache, trace_lcs, trace_mobibench, trace_msr, trace_oracle_general, trace_spc,
    trace_vscsi1, trace_vscsi2,
};
pub use vhost::{vhost_messages, vhost_ring};

use std::fmt::Debug;
use std::sync::LazyLock;

use arbitrary::{Arbitrary, Unstructured};

/// True if stories are printed, to understand an input.
static SHOWS: LazyLock<bool> = LazyLock::new(|| std::env::var_os("EVERBYTE_FUZZ_SHOW").is_some());

/// Decodes the story encoded by `bytes`.
fn story<S: Debug + for<'b> Arbitrary<'b>>(bytes: &[u8]) -> Option<S> {
    let story = S::arbitrary_take_rest(Unstructured::new(bytes)).ok()?;
    // Shown before the story is played: a panic must not hide it.
    if *SHOWS {
        eprintln!("{story:#?}");
    }
    Some(story)
}

/// A target: its name, which is also its corpus's, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// The targets. None of them may fail. The canary must fail, and is not among them.
pub const TARGETS: [Target; 30] = [
    ("pool_image", pool_image),
    ("cache_volume", cache_volume),
    ("fs_image", fs_image),
    ("fs_operations", fs_operations),
    ("nbd_server", nbd_server),
    ("nbd_client", nbd_client),
    ("control", control),
    ("control_answers", control_answers),
    ("lease", lease),
    ("swap_table", swap_table),
    ("address", address),
    ("config", config),
    ("metrics_request", metrics_request),
    ("trace_any", trace_any),
    ("trace_csv", trace_csv),
    ("trace_vscsi1", trace_vscsi1),
    ("trace_vscsi2", trace_vscsi2),
    ("trace_msr", trace_msr),
    ("trace_blkparse", trace_blkparse),
    ("trace_fio", trace_fio),
    ("trace_spc", trace_spc),
    ("trace_disksim", trace_disksim),
    ("trace_oracle_general", trace_oracle_general),
    ("trace_mobibench", trace_mobibench),
    ("trace_detection", trace_detection),
    ("trace_fiu", trace_fiu),
    ("trace_kvcache", trace_kvcache),
    ("trace_lcs", trace_lcs),
    ("vhost_messages", vhost_messages),
    ("vhost_ring", vhost_ring),
];
