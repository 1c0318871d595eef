//! Steps of a workload with failing memory: the possible contents after a failed request, and the guaranteed
//! contents after a successful one.
//!
//! The rule: success has its usual meaning. A failed write is atomic, and the work of a failed flush or
//! shutdown may have been done nevertheless.

use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{MediaError, Medium, PoolOffset};
use everbyte_pool::format::{COMPLETED_A_AT, COMPLETED_B_AT, Entry, ROOT_AT};

use super::{Expect, History};
use crate::content::{BLOCK, Content};
use crate::steps::{Fault, W};

impl History<'_> {
    /// Makes memory fail. From now on requests may, too.
    pub(super) fn fault(&mut self, name: &'static str, fault: Fault) {
        self.is_faulty = true;
        let root_at = self.volume(name).volume().root_at();
        let header_at = root_at.0 - ROOT_AT;
        match fault {
            Fault::Marks | Fault::UnknownMarks => {
                self.unreadable.push(name);
                for copy in [COMPLETED_A_AT, COMPLETED_B_AT] {
                    self.medium.inject_poison(PoolOffset(header_at + copy), 8);
                    if fault == Fault::Marks {
                        self.medium.probe(PoolOffset(header_at + copy), 8);
                    }
                }
                if fault == Fault::UnknownMarks {
                    self.unreadable = self.tracks.keys().copied().collect();
                }
            }
            Fault::Fences => {
                self.unreadable = self.tracks.keys().copied().collect();
                let reason = "a test says so".to_owned();
                self.medium.fail(MediaError::WriteBack { at: PoolOffset(0), len: 0, reason });
            }
            Fault::Data(block) => {
                let at = self.entry_of(root_at, block).block.offset();
                self.medium.inject_poison(at, 64);
                self.cannot_read(name, block);
            }
            Fault::Map(block) => {
                let leaf = Entry::decode(self.medium.load_word(root_at)).unwrap().unwrap();
                self.medium.inject_poison(leaf.block.offset().plus(8 * block), 8);
                self.cannot_read(name, block);
            }
        }
    }

    fn entry_of(&self, root_at: PoolOffset, block: u64) -> Entry {
        let entry = |at| Entry::decode(self.medium.load_word(at)).unwrap().unwrap();
        entry(entry(root_at).block.offset().plus(8 * block))
    }

    /// A reader meets the fault.
    fn cannot_read(&self, name: &str, block: u64) {
        let read = self.volume(name).read(block * BLOCK, &mut [0; 9]);
        assert!(read.is_err(), "a bad line is read");
    }

    /// A write that may fail.
    pub(super) fn write_faulty(&mut self, name: &'static str, write: W) {
        let begun = self.note(&format!("{write:?}"));
        let before = self.tracks[name].now.clone();
        let data = write.bytes(&before);
        let fua = if write.fua { Fua::Yes } else { Fua::No };
        let (outcome, completed) = self.watch(name, |volume| volume.write(write.at, &data, fua));
        let after = before.with(write.at, &data);
        let now = match (&outcome, Content::of(&self.volume(name))) {
            (Ok(()), Ok(found)) => {
                assert!(found == after, "{}", found.first_difference(&after));
                after.clone()
            }
            (Ok(()), Err(_)) => after.clone(),
            (Err(_), Ok(found)) => {
                assert!(found == before || found == after, "{}", found.first_difference(&before));
                found
            }
            (Err(_), Err(_)) => before.clone(),
        };
        let bases = self.tracks[name].durable.clone();
        let with_it: Vec<Content> = bases.iter().map(|base| base.with(write.at, &data)).collect();
        let mut either = bases.clone();
        if write.fua {
            either.extend(with_it.iter().cloned());
        }
        if completed || write.fua {
            either.extend([before.clone(), after.clone()]);
        }
        let durable = match (&outcome, write.fua, completed) {
            (Ok(()), true, true) => vec![after],
            (Ok(()), true, false) => with_it,
            (_, _, true) => vec![before, after],
            (_, false, false) => bases,
            (Err(_), true, false) => either.clone(),
        };
        self.end(name, &begun, either, durable, now);
    }

    /// A flush that may fail.
    pub(super) fn flush_faulty(&mut self, name: &'static str) {
        let begun = self.note("flush");
        let outcome = self.volume(name).flush();
        assert!(
            outcome.is_ok() || self.unreadable.contains(&name),
            "{}: {outcome:?}",
            self.case.name
        );
        let (durable, now) = self.durable_after(name, outcome.is_ok());
        self.end(name, &begun, durable.clone(), durable, now);
    }

    /// Returns the durable contents of volume `name` after a flush, and its present contents.
    fn durable_after(&self, name: &str, is_done: bool) -> (Vec<Content>, Content) {
        let track = &self.tracks[name];
        let mut durable = if is_done { Vec::new() } else { track.durable.clone() };
        durable.push(track.now.clone());
        (durable, track.now.clone())
    }

    /// A shutdown. It fails if a volume cannot be made durable, and makes the others durable.
    pub(super) fn close_faulty(&mut self) {
        let begun: std::sync::Arc<Expect> = self.note("closing");
        let is_closed = self.open.pool.close().is_ok();
        assert!(is_closed || !self.unreadable.is_empty(), "{}: not closed", self.case.name);
        assert_eq!(
            self.open.pool.close().is_ok(),
            is_closed,
            "closed again, it says something else"
        );
        let mut inside = super::Contents::new();
        for name in self.tracks.keys().copied().collect::<Vec<_>>() {
            let is_done = is_closed || !self.unreadable.contains(&name);
            let left = self.durable_after(name, false).0;
            inside.insert(name, left.into_iter().map(Some).collect());
            self.track(name).durable = self.durable_after(name, is_done).0;
        }
        begun.inside.set(inside).unwrap();
        self.rest("after closing");
    }
}
