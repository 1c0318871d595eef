//! Kernel swap, measured beside regions: its settings, and the way to measure with it.
//!
//! Swap over a loop device can bring a machine to a halt: its writes must not wait for memory that only
//! they can free. So the device's file lies on a tmpfs of its own that is never swapped, with all of its
//! pages there before swapping begins; the program that pages is alone in a memory cgroup; and a guardian
//! process, which outlives whoever started it, takes everything down again.

mod cgroup;
mod device;
pub(crate) mod guardian;
pub(super) mod machine;

use serde::{Deserialize, Serialize};

/// The device that is swapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeviceKind {
    /// A loop device over a file on tmpfs.
    Loop,
    /// Compressed memory, by lz4.
    Zram,
}

/// Settings of the kernel and of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SwapSettings {
    pub(super) device: DeviceKind,
    /// Pages that are read at once, as a power of two: vm.page-cluster.
    page_cluster: u32,
    /// 1 to 100; in a memory cgroup, 0 would forbid swapping.
    swappiness: u32,
    /// The scheduler of the device, where it has one.
    scheduler: &'static str,
}

/// Kernel swap as it is measured: as a kernel comes, and with single settings changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum KernelSwap {
    Loop,
    LoopCluster0,
    LoopSwappiness1,
    LoopDeadline,
    /// All at once, as the paper set them.
    LoopTuned,
    Zram,
    ZramCluster0,
    ZramSwappiness1,
}

impl KernelSwap {
    pub(super) const ALL: [Self; 8] = [
        Self::Loop,
        Self::LoopCluster0,
        Self::LoopSwappiness1,
        Self::LoopDeadline,
        Self::LoopTuned,
        Self::Zram,
        Self::ZramCluster0,
        Self::ZramSwappiness1,
    ];
    /// Those that differ most, where there is no time for all.
    pub(super) const SOME: [Self; 4] =
        [Self::Loop, Self::LoopCluster0, Self::Zram, Self::ZramCluster0];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loop => "swap-loop",
            Self::LoopCluster0 => "swap-loop-cluster0",
            Self::LoopSwappiness1 => "swap-loop-swappiness1",
            Self::LoopDeadline => "swap-loop-deadline",
            Self::LoopTuned => "swap-loop-tuned",
            Self::Zram => "swap-zram",
            Self::ZramCluster0 => "swap-zram-cluster0",
            Self::ZramSwappiness1 => "swap-zram-swappiness1",
        }
    }

    pub(super) fn settings(self) -> SwapSettings {
        let device = match self {
            Self::Zram | Self::ZramCluster0 | Self::ZramSwappiness1 => DeviceKind::Zram,
            _ => DeviceKind::Loop,
        };
        let has_cluster_0 =
            matches!(self, Self::LoopCluster0 | Self::LoopTuned | Self::ZramCluster0);
        let has_swappiness_1 =
            matches!(self, Self::LoopSwappiness1 | Self::LoopTuned | Self::ZramSwappiness1);
        SwapSettings {
            device,
            page_cluster: if has_cluster_0 { 0 } else { 3 },
            swappiness: if has_swappiness_1 { 1 } else { 60 },
            scheduler: if self == Self::LoopDeadline { "mq-deadline" } else { "none" },
        }
    }
}

/// Writes a file of the kernel's.
fn set(path: &std::path::Path, value: &str) -> anyhow::Result<()> {
    use anyhow::Context;
    std::fs::write(path, value)
        .with_context(|| format!("cannot write {value:?} to {}", path.display()))
}

/// Reads a file of the kernel's, as far as there is one.
fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "-".to_owned(), |text| text.trim().to_owned())
}
