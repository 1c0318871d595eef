//! Hits: requests for parts of pages that change only the page's bytes. They take the lock of the
//! page's shard, and no lock common to all requests.
//!
//! Invariants: the lock of the shard is held until the last byte is copied. A request that is not a
//! plain hit goes the common way before it changes anything: for an absent page, a page pending
//! write-back, a write that makes a clean page dirty, and a page that the policy may move.

use everbyte_device::DeviceError;
use everbyte_plant::planted;
use everbyte_policy::policy::Tier;
use everbyte_policy::{Access, Op};

use crate::actions::access_of;
use crate::cache::Cache;
use crate::frame::Frame;
use crate::hit_log::PendingHit;
use crate::layout::Part;
use crate::plant::Bug;
use crate::policies::stays;

impl Cache {
    /// Reads a part of a page if this is a plain hit. Returns false otherwise.
    pub(crate) fn read_hit(&self, part: Part, out: &mut [u8]) -> Result<bool, DeviceError> {
        let mut shard = self.frames.read(part.page);
        let Some(found) = shard.get(part.page).and_then(Frame::tier) else { return Ok(false) };
        if planted(Bug::MovedUnderHit) && found == Tier::Scm {
            drop(shard);
            self.scm.read(part.page, part.start, out)?;
            shard = self.frames.read(part.page);
        } else {
            match shard.read(&self.scm, part.page, part.start, out) {
                // The backing device has the same bytes.
                Err(DeviceError::Media { .. })
                    if shard.get(part.page).is_some_and(|frame| !frame.is_dirty()) =>
                {
                    return Ok(false);
                }
                read => read?,
            }
        }
        drop(shard);
        self.note_hit(access_of(part, Op::Read), found);
        Ok(true)
    }

    /// Writes a part of a page if this is a plain hit. Returns false otherwise.
    pub(crate) fn write_hit(&self, part: Part, data: &[u8]) -> Result<bool, DeviceError> {
        let access = access_of(part, Op::Write);
        let mut shard = self.frames.write(part.page);
        let Some(found) = shard.get(part.page).and_then(Frame::tier) else { return Ok(false) };
        // The first write to a clean page changes the sets of the state, which need its lock.
        let is_counted = shard.is_dirty_in_place(part.page);
        if !is_counted || !stays(&self.settings, access, found) {
            return Ok(false);
        }
        shard.write(&self.scm, part.page, part.start, data)?;
        drop(shard);
        self.note_hit(access, found);
        Ok(true)
    }

    /// Has the policy hear of a hit, in time.
    fn note_hit(&self, access: Access, found: Tier) {
        if self.hit_log.note(PendingHit { access, found })
            // A hit never waits: the thread that holds the lock reports these hits at its next
            // decision.
            && let Some(mut state) = self.state.try_lock()
        {
            state.tell_hits();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use everbyte_block::{BlockOptions, BlockVolume, kinds};
    use everbyte_device::{BlockDevice, Fua, MemoryDevice};
    use everbyte_media::{Mapped, MediaOptions};
    use everbyte_policy::sim::Kind;
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;
    use crate::layout::{PAGE_U64, volume_bytes};
    use crate::scm::Mark;
    use crate::settings::{Identity, Mode, Settings};

    const PAGES: u64 = 20;

    fn cache() -> Cache {
        cache_over(PAGES * PAGE_U64)
    }

    /// A cache before a device of this size.
    fn cache_over(backing_bytes: u64) -> Cache {
        let backing = Identity {
            kind: "memory".into(),
            name: "test".into(),
            serial: String::new(),
            backing: None,
        };
        let settings = Settings {
            backing: backing.clone(),
            backing_bytes,
            dram_bytes: 4 * PAGE_U64,
            scm_bytes: 8 * PAGE_U64,
            mode: Mode::WriteBack,
            policy: Kind::Everbyte,
            small_write_bytes: 512,
        };
        let medium = Mapped::anonymous(256 * PAGE_U64, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 4, [7; 16]).unwrap();
        let pool = Pool::open(Arc::new(medium), kinds(), &OpenOptions::default()).unwrap();
        let options = BlockOptions { log_bytes: Some(2 * 65536), lanes: 1, ..Default::default() };
        let bytes = volume_bytes(settings.backing_bytes);
        let volume = BlockVolume::create(&Arc::new(pool), "c", bytes, &options).unwrap();
        Cache::format(&volume, &settings).unwrap();
        let device = Arc::new(MemoryDevice::new(backing_bytes));
        Cache::open(Arc::new(volume), device, &backing).unwrap()
    }

    /// Writes to a page that was evicted between a hit and its report to the policy. Returns the
    /// bytes read then.
    fn write_after_late_hit() -> [u8; 4] {
        let (cache, mut found) = (cache(), [0; 4]);
        cache.read(0, &mut found).unwrap();
        cache.read(0, &mut found).unwrap();
        {
            let mut state = cache.state.lock();
            state.lagging_policy.remove(0);
            state.remove(0);
            state.tell_hits();
        }
        cache.write(0, &[7; 4], Fua::No).unwrap();
        cache.read(0, &mut found).unwrap();
        assert_eq!(cache.stats().hits() + cache.stats().misses, 4);
        found
    }

    #[test]
    fn late_hit_restores_no_evicted_page() {
        assert_eq!(write_after_late_hit(), [7; 4]);
    }

    /// The policy gets a write to a page that was written back before the report.
    #[test]
    fn late_write_hit_leaves_clean_page_clean() {
        let cache = cache();
        cache.write(0, &[1; 10], Fua::No).unwrap();
        let access = access_of(Part { page: 0, start: 0, len: 10, at: 0 }, Op::Write);
        cache.drain().unwrap();
        cache.hit_log.note(PendingHit { access, found: Tier::Dram });
        assert_eq!(cache.stats().dirty_pages, 0);
        let evicted: u64 = (1..PAGES)
            .map(|page| {
                cache.read(page * PAGE_U64, &mut [0; 4096]).unwrap();
                let actions = cache.stats().actions;
                actions
                    .iter()
                    .filter(|a| a.action.starts_with("evict"))
                    .map(|a| a.count)
                    .sum::<u64>()
            })
            .sum();
        assert_eq!(evicted, 0, "a clean page is dropped, not written back");
    }

    /// Memory of pages is reused: the last page must not show another page's bytes beyond the end
    /// of its device.
    #[test]
    fn last_page_shows_no_other_bytes() {
        let bytes = PAGES * PAGE_U64 - 1000;
        let cache = cache_over(bytes);
        cache.write(0, &[7; 4096], Fua::No).unwrap();
        cache.state.lock().demote(0);
        let last = 19;
        cache.write(u64::from(last) * PAGE_U64, &[8; 4096 - 1000], Fua::No).unwrap();
        let mut page = [1; 4096];
        cache.state.lock().read(last, 0, &mut page).unwrap();
        assert_eq!((page[0], page[3095]), (8, 8));
        assert!(page[3096..].iter().all(|&byte| byte == 0), "bytes of page 0");
    }

    /// A write of a whole page in SCM moves it to DRAM with these bytes. The page leaves SCM unless
    /// a flush may have promised its bytes there.
    #[test]
    fn whole_write_moves_scm_page_and_keeps_promise() {
        for (written, mark) in [(0, None), (10, Some(Mark::Dirty))] {
            let (cache, mut found) = (cache(), [0; 4096]);
            cache.read(0, &mut found).unwrap();
            cache.write(0, &[1; 10][..written], Fua::No).unwrap();
            cache.state.lock().demote(0);
            assert_eq!(cache.frames.look(0, |frame| frame.in_dram), Some(false));
            cache.write(0, &[7; 4096], Fua::No).unwrap();
            let frame = cache.frames.look(0, |frame| *frame).unwrap();
            assert_eq!((frame.in_dram, frame.mark, frame.is_dirty()), (true, mark, true));
            assert_eq!(cache.stats().dirty_pages, 1);
            cache.read(0, &mut found).unwrap();
            assert_eq!(found, [7; 4096]);
        }
    }
}
