//! The policies that a cache in use can have, behind one type: a policy is given its actions by a
//! generic method, so there are no trait objects of it.

use everbyte_policy::policy::{
    Actions, Capacity, ClockMigration, Hybrid, HybridConfig, Policy, Sparse,
};
use everbyte_policy::sim::Kind;
use everbyte_policy::{Access, PageNo};

use crate::settings::{Settings, SettingsError};

/// A policy over a storage of any size.
pub(crate) enum AnyPolicy {
    Hybrid(Hybrid<Sparse>),
    ClockMigration(ClockMigration<Sparse>),
}

impl AnyPolicy {
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let pages = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let capacity =
            Capacity { dram: pages(settings.dram_pages()), pram: pages(settings.scm_pages()) };
        let config = HybridConfig {
            small_write_bytes: settings.small_write_bytes,
            ..HybridConfig::default()
        };
        match settings.policy {
            Kind::Hybrid => Ok(Self::Hybrid(Hybrid::new(Sparse, capacity, config))),
            Kind::ClockMigration => Ok(Self::ClockMigration(ClockMigration::new(Sparse, capacity))),
            other => Err(SettingsError::OneTier {
                policy: other.name(),
                usable: "hybrid, clock-migration".to_owned(),
            }),
        }
    }

    pub(crate) fn access(&mut self, access: Access, actions: &mut impl Actions) {
        match self {
            Self::Hybrid(policy) => policy.access(access, actions),
            Self::ClockMigration(policy) => policy.access(access, actions),
        }
    }

    pub(crate) fn remove(&mut self, page: u32) {
        match self {
            Self::Hybrid(policy) => policy.remove(PageNo(page)),
            Self::ClockMigration(policy) => policy.remove(PageNo(page)),
        }
    }

    pub(crate) fn cleaned(&mut self, page: u32) {
        match self {
            Self::Hybrid(policy) => policy.cleaned(PageNo(page)),
            Self::ClockMigration(policy) => policy.cleaned(PageNo(page)),
        }
    }
}
