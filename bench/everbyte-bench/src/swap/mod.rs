//! The memory extension: allocation of slots, and the costs of paging and of direct mode.

mod access;
mod allocators;
pub(crate) mod child;
pub(crate) mod command;
mod direct;
mod fill;
mod flash;
mod ft;
mod ft_suite;
mod full_store;
mod full_store_paging;
pub(crate) mod kernel;
mod measure;
mod meter;
mod moves;
mod paging;
mod place;
pub(crate) mod serve;
mod serving;
mod subjects;

use kernel::KernelSwap;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use subjects::Subject;

use crate::driver::Rounds;

/// Settings of a run.
pub(crate) struct Settings<'a> {
    /// Slots of 4 KiB of the swap space.
    slots: u64,
    /// Pairs of a freed and a taken slot that are measured at each fill.
    pairs: u64,
    /// Kernel swap is measured as well.
    with_kernel: bool,
    /// Settings of the kinds of kernel swap that were measured, as the kernel tells them.
    described: RefCell<BTreeMap<&'static str, String>>,
    /// Measurements that failed, where others went on.
    failures: RefCell<Vec<String>>,
    run: &'a Rounds,
}

impl Deref for Settings<'_> {
    type Target = Rounds;

    fn deref(&self) -> &Rounds {
        self.run
    }
}

impl Settings<'_> {
    /// Returns true if a workload is to be measured.
    fn wants(&self, workload: &str) -> bool {
        self.filter.wants(workload)
    }

    /// Returns `subjects`, and so many kinds of kernel swap if that is to be measured.
    fn and_kernel(&self, subjects: &[Subject], kernel: &[KernelSwap]) -> Vec<Subject> {
        let kernel = if self.with_kernel { kernel } else { &[] };
        let kernel = kernel.iter().map(|kernel| Subject::Kernel(*kernel));
        subjects.iter().copied().chain(kernel).collect()
    }

    /// Returns those of `subjects` that are to be measured with `workload`.
    fn wanted(&self, subjects: Vec<Subject>, workload: &str) -> Vec<Subject> {
        let is_wanted =
            |subject: &Subject| self.filter.wants(&format!("{workload}: {}", subject.name()));
        subjects.into_iter().filter(is_wanted).collect()
    }

    fn should_stop(&self) -> bool {
        self.check_stop().is_err()
    }
}

/// A number of points or pages as a fraction's part.
fn as_float(number: usize) -> f64 {
    crate::stats::as_f64(number as u64)
}
