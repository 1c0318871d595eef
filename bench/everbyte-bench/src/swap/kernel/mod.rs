//! Kernel swap for the comparison with regions: its settings, and its measurement.
//!
//! Swap over a loop device can stop a machine: its writes must not wait for memory freed only by these writes. So
//! the device's file lies on its own tmpfs, never swapped, with all pages allocated before swapping begins. The
//! measured program is alone in a memory cgroup. A guardian process outlives its parent and removes everything.

mod cgroup;
mod device;
pub(crate) mod guardian;
pub(super) mod machine;

use std::path::Path;

use anyhow::{Context, Result};

/// Settings of the kernel and of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KernelSwap {
    pub(super) name: &'static str,
    /// The device is compressed memory (lz4), else a loop device over a file on tmpfs.
    is_zram: bool,
    /// Pages of a read, as a power of two: vm.page-cluster.
    page_cluster: u32,
    /// 1 to 100. In a memory cgroup, 0 would forbid swapping.
    swappiness: u32,
    /// Scheduler of the device, if it has one.
    scheduler: &'static str,
}

const fn settings(
    name: &'static str,
    is_zram: bool,
    page_cluster: u32,
    swappiness: u32,
    scheduler: &'static str,
) -> KernelSwap {
    KernelSwap { name, is_zram, page_cluster, swappiness, scheduler }
}

/// The kernel's defaults, then single changes, and for the loop device the paper's settings.
pub(super) const KERNEL_SWAPS: [KernelSwap; 8] = [
    settings("swap-loop", false, 3, 60, "none"),
    settings("swap-loop-cluster0", false, 0, 60, "none"),
    settings("swap-zram", true, 3, 60, "none"),
    settings("swap-zram-cluster0", true, 0, 60, "none"),
    settings("swap-loop-swappiness1", false, 3, 1, "none"),
    settings("swap-loop-deadline", false, 3, 60, "mq-deadline"),
    settings("swap-loop-tuned", false, 0, 1, "none"),
    settings("swap-zram-swappiness1", true, 3, 1, "none"),
];
/// The first kinds differ most. Most workloads use only them.
pub(super) const KERNEL_SWAPS_SOME: usize = 4;

/// Writes a file of the kernel.
fn set(path: &Path, value: &str) -> Result<()> {
    std::fs::write(path, value)
        .with_context(|| format!("cannot write {value:?} to {}", path.display()))
}

/// Reads a file of the kernel, "-" if it does not exist.
fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "-".to_owned(), |text| text.trim().to_owned())
}
