//! The policies that a cache in use can have, behind one type: a policy reports its actions through
//! a generic method, so there are no trait objects of it.
//!
//! All of them keep a page in one tier only, which eviction relies on.

use everbyte_policy::policy::{
    Actions, Capacity, ClockDwf, ClockMigration, Everbyte, FourQueue, Hybrid, HybridConfig, MClock,
    Pdram, Policy, Sparse,
};
use everbyte_policy::sim::Kind;
use everbyte_policy::{Access, PageNo};

use crate::settings::{Settings, SettingsError, refusal, usable};

/// A policy over a backing device of any size.
pub(crate) enum AnyPolicy {
    Everbyte(Box<Everbyte<Sparse>>),
    Hybrid(Box<Hybrid<Sparse>>),
    ClockMigration(Box<ClockMigration<Sparse>>),
    ClockDwf(Box<ClockDwf<Sparse>>),
    MClock(Box<MClock<Sparse>>),
    FourQueue(Box<FourQueue<Sparse>>),
    Pdram(Box<Pdram<Sparse>>),
}

/// Calls a method of the policy, whichever it is.
macro_rules! each {
    ($any:expr, $policy:ident => $call:expr) => {
        match $any {
            AnyPolicy::Everbyte($policy) => $call,
            AnyPolicy::Hybrid($policy) => $call,
            AnyPolicy::ClockMigration($policy) => $call,
            AnyPolicy::ClockDwf($policy) => $call,
            AnyPolicy::MClock($policy) => $call,
            AnyPolicy::FourQueue($policy) => $call,
            AnyPolicy::Pdram($policy) => $call,
        }
    };
}

impl AnyPolicy {
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let pages = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let size =
            Capacity { dram: pages(settings.dram_pages()), scm: pages(settings.scm_pages()) };
        let config = HybridConfig {
            small_write_bytes: settings.small_write_bytes,
            ..HybridConfig::default()
        };
        Ok(match settings.policy {
            Kind::Everbyte => Self::Everbyte(Everbyte::new(Sparse, size, config).into()),
            Kind::Hybrid => Self::Hybrid(Hybrid::new(Sparse, size, config).into()),
            Kind::ClockMigration => Self::ClockMigration(ClockMigration::new(Sparse, size).into()),
            Kind::ClockDwf => Self::ClockDwf(ClockDwf::new(Sparse, size).into()),
            Kind::MClock => Self::MClock(MClock::new(Sparse, size).into()),
            Kind::FourQueue => Self::FourQueue(FourQueue::new(Sparse, size).into()),
            Kind::Pdram => Self::Pdram(Pdram::new(Sparse, size).into()),
            other => {
                let why = refusal(other).unwrap_or("it was not made for one");
                return Err(SettingsError::Policy { policy: other.name(), why, usable: usable() });
            }
        })
    }

    pub(crate) fn access(&mut self, access: Access, actions: &mut impl Actions) {
        each!(self, policy => policy.access(access, actions));
    }

    pub(crate) fn remove(&mut self, page: u32) {
        each!(self, policy => policy.remove(PageNo(page)));
    }

    pub(crate) fn cleaned(&mut self, page: u32) {
        each!(self, policy => policy.cleaned(PageNo(page)));
    }
}
