//! The policies of a cache in use, behind one type. A policy reports its actions through a generic
//! method, so it cannot be a trait object.
//!
//! All of them keep a page in only one tier. Eviction relies on this.

use everbyte_policy::policy::{
    Actions, Capacity, CleanVictims, ClockDwf, ClockMigration, Everbyte, FourQueue, Hybrid,
    HybridConfig, MClock, Pdram, Policy, Sparse, Tier,
};
use everbyte_policy::sim::{Costs, Kind};
use everbyte_policy::{Access, Op, PageNo};

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

/// Calls a method of the actual policy.
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
            Kind::Everbyte => {
                let small = settings.small_write_bytes;
                Self::Everbyte(Everbyte::new(Sparse, size, small, Costs::default()).into())
            }
            Kind::Hybrid => Self::hybrid(size, config),
            Kind::HybridDrop => {
                let clean_victims = CleanVictims::Drop;
                Self::hybrid(size, HybridConfig { clean_victims, ..config })
            }
            Kind::HybridDropUnused => {
                let clean_victims = CleanVictims::DropUnused;
                Self::hybrid(size, HybridConfig { clean_victims, ..config })
            }
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

    fn hybrid(size: Capacity, config: HybridConfig) -> Self {
        Self::Hybrid(Hybrid::new(Sparse, size, config).into())
    }

    /// Sets the costs of a policy that weighs costs.
    pub(crate) fn set_costs(&mut self, costs: Costs) {
        if let Self::Everbyte(policy) = self {
            policy.set_costs(costs);
        }
    }

    /// Returns at most `count` pages that the policy will write back next, from `from` on and
    /// around. Returns none if the policy does not report them.
    pub(crate) fn waiting(&self, from: u32, count: usize) -> Vec<u32> {
        let Self::Everbyte(policy) = self else { return Vec::new() };
        let (mut pages, mut at, mut is_around) = (Vec::new(), from, false);
        while pages.len() < count {
            match policy.next_waiting(PageNo(at)) {
                Some(page) if is_around && page.0 >= from => break,
                Some(page) => {
                    pages.push(page.0);
                    at = page.0 + 1;
                }
                None if is_around => break,
                None => (at, is_around) = (0, true),
            }
        }
        pages
    }

    /// Returns the tier of the page by the policy.
    pub(crate) fn tier_of(&self, page: u32) -> Option<Tier> {
        each!(self, policy => policy.directory().tier(PageNo(page)))
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

/// Returns true if a hit of a page in the tier `found` moves no page under the policy of these
/// settings.
pub(crate) fn stays(settings: &Settings, access: Access, found: Tier) -> bool {
    let is_served_there = access.op == Op::Read || found == Tier::Dram;
    is_served_there
        || match settings.policy {
            // These policies serve a write in SCM where it is. The others may promote the page.
            Kind::Hybrid | Kind::HybridDrop | Kind::HybridDropUnused | Kind::ClockMigration => true,
            Kind::Everbyte => !Everbyte::<Sparse>::may_promote(access, settings.small_write_bytes),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use everbyte_policy::policy::Action;

    use super::*;
    use crate::layout::PAGE_U64;
    use crate::settings::{Identity, Mode};

    fn settings(policy: Kind) -> Settings {
        let identity = |name: &str| Identity {
            kind: "memory".into(),
            name: name.into(),
            serial: String::new(),
            backing: None,
        };
        Settings {
            backing: identity("test"),
            backing_bytes: 200 * PAGE_U64,
            dram_bytes: 20 * PAGE_U64,
            scm_bytes: 60 * PAGE_U64,
            mode: Mode::WriteBack,
            policy,
            small_write_bytes: 512,
        }
    }

    #[test]
    fn hits_that_are_said_to_move_nothing_move_nothing() {
        for kind in Kind::ALL {
            let settings = settings(kind);
            let Ok(mut policy) = AnyPolicy::new(&settings) else { continue };
            let (mut seed, mut staying, mut in_scm) = (kind as u64 + 1, 0, 0);
            for _ in 0..50_000 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let page = u32::try_from((seed >> 8) % 12 * ((seed >> 16) % 12)).unwrap();
                let op = if seed & 1 == 0 { Op::Read } else { Op::Write };
                let len = [64, 512, 1024, 4096][usize::try_from(seed >> 1 & 3).unwrap()];
                let access = Access { page: PageNo(page), start: 0, len, op };
                let found = policy.tier_of(page);
                let mut actions = Vec::new();
                policy.access(access, &mut actions);
                let Some(found) = found.filter(|&found| stays(&settings, access, found)) else {
                    continue;
                };
                assert_eq!(actions, [Action::Hit { found, served: found }], "{kind}: {access:?}");
                staying += 1;
                in_scm += u32::from(found == Tier::Scm);
            }
            assert!(staying > 20_000 && in_scm > 1000, "{kind}: {staying}, {in_scm} in SCM");
        }
    }
}
