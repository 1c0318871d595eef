//! An open pool, the operations on it, and the contents that it must then have.
//!
//! Invariant: `known` has an entry for each open volume. It is believed only while the pool is
//! sound.

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::Arbitrary;
use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, WriteRequest};
use everbyte_media::{BLOCK_U64, Mapped};
use everbyte_pool::{Pool, PoolError};

use super::model::{Content, Known, RUNS, block_numbers};

/// Longest write in bytes: any log takes it as one commit.
const WRITE_MAX: u64 = 8192;

/// A range in one of the runs.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) struct Place {
    block: u8,
    start: u16,
    len: u16,
}

impl Place {
    /// Offset and length in bytes; the length is at least 1 and stays in the run.
    fn range(self) -> (u64, u64) {
        let blocks: u64 = RUNS.iter().map(|run| run.end - run.start).sum();
        let block = block_numbers().nth((u64::from(self.block) % blocks) as usize).unwrap();
        let end = RUNS.iter().find(|run| run.contains(&block)).unwrap().end * BLOCK_U64;
        let offset = block * BLOCK_U64 + u64::from(self.start) % BLOCK_U64;
        // The model knows only the runs, so a range must not leave its run.
        (offset, (1 + u64::from(self.len) % WRITE_MAX).min(end - offset))
    }
}

/// A write of one byte value, repeated.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) struct Write {
    place: Place,
    byte: u8,
}

impl Write {
    fn data(self) -> (u64, Vec<u8>) {
        let (offset, len) = self.place.range();
        (offset, vec![self.byte; len as usize])
    }
}

/// An operation on a volume.
#[derive(Debug, Arbitrary)]
pub(crate) enum Action {
    Write { write: Write, fua: bool },
    Batch { writes: [Write; 3], fua: bool },
    Group { writes: [Write; 2], commit: bool },
    Flush,
    Discard { place: Place, fua: bool },
    Zero { place: Place, hole: bool, fast: bool, fua: bool },
    Read { offset: u64, len: u16 },
    Status { offset: u64, len: u64, extents_max: u8 },
    Resize { sectors: u16 },
    Replace { sectors: u16 },
    Check,
}

/// An action on the `volume`th volume by name.
#[derive(Debug, Arbitrary)]
pub(crate) struct Step {
    volume: u8,
    action: Action,
}

/// An open pool and the contents that it must have.
pub(crate) struct Life {
    pool: Arc<Pool<Mapped>>,
    volumes: BTreeMap<String, BlockVolume<Mapped>>,
    known: BTreeMap<String, Known>,
    /// True while the pool has to keep its promises.
    sound: bool,
    /// True if its logs take a write of `WRITE_MAX` bytes as one commit.
    whole_commits: bool,
    /// True if its logs may hold records that it did not write, of epochs to come.
    forged: bool,
}

impl Life {
    /// Makes a life of a pool whose contents must be `known`.
    pub(crate) fn sound(pool: &Arc<Pool<Mapped>>, known: BTreeMap<String, Known>) -> Self {
        let mut life = Self {
            pool: Arc::clone(pool),
            volumes: BTreeMap::new(),
            known: BTreeMap::new(),
            sound: true,
            whole_commits: true,
            forged: false,
        };
        life.open_volumes();
        assert!(life.volumes.keys().eq(known.keys()), "volumes came or went");
        for (name, expected) in known {
            let found = &life.known[&name].now;
            // An empty list means that any content is allowed, after writes of several commits.
            let allowed = expected.durable.is_empty() || expected.durable.contains(found);
            assert!(allowed, "{name}: {}", difference(found, &expected.durable[0]));
        }
        life
    }

    /// Makes a life of a pool with unknown contents. Only `check` and the checksums of its data
    /// prove it sound, except for `forged` records.
    pub(crate) fn stranger(pool: &Arc<Pool<Mapped>>, forged: bool) -> Self {
        let clean = pool.check().is_ok_and(|report| report.is_clean()) && has_its_checksums(pool);
        let mut life = Self {
            pool: Arc::clone(pool),
            volumes: BTreeMap::new(),
            known: BTreeMap::new(),
            sound: clean,
            whole_commits: false,
            forged,
        };
        life.open_volumes();
        for volume in life.volumes.values() {
            drop(format!("{:?}", pool.volume_info(volume.volume())));
        }
        life
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.sound
    }

    /// Asserts that `check` finds nothing.
    pub(crate) fn expect_clean(&mut self) {
        let report = self.pool.check().expect("a sound pool can be checked");
        assert!(report.is_clean(), "a sound pool is called damaged: {report:?}");
        self.known.values_mut().for_each(Known::settle);
    }

    fn open_volumes(&mut self) {
        for volume in self.pool.volumes() {
            let name = volume.name().to_owned();
            match BlockVolume::open_as(&self.pool, &name, volume.kind()) {
                Ok(volume) => {
                    let content = read_all(&volume, self.sound);
                    self.known.insert(name.clone(), Known::durable(content));
                    self.volumes.insert(name, volume);
                }
                Err(error) => assert!(!self.sound, "a volume does not open: {error}"),
            }
        }
    }

    /// Carries out `steps`, and then reads everything.
    pub(crate) fn steps<'s>(&mut self, steps: impl Iterator<Item = &'s Step>) {
        for step in steps {
            self.step(step);
        }
        for (name, volume) in &self.volumes {
            let found = read_all(volume, self.sound);
            let expected = &self.known[name].now;
            assert!(!self.sound || found == *expected, "{name}: {}", difference(&found, expected));
        }
    }

    fn step(&mut self, step: &Step) {
        let count = self.volumes.len().max(1);
        let name = self.volumes.keys().nth(usize::from(step.volume) % count).cloned();
        // Before the step: a checkpoint within it makes other volumes' contents durable.
        let before = self.completed_epochs();
        self.act(step, name.clone());
        // A request that finds no block completes the epochs of other volumes.
        for (other, epoch) in self.completed_epochs() {
            let is_completed = before.get(&other).is_some_and(|before| *before != epoch);
            if is_completed && Some(&other) != name.as_ref() {
                self.known.get_mut(&other).unwrap().settle();
            }
        }
    }

    fn completed_epochs(&self) -> BTreeMap<String, u64> {
        let epoch = |(name, volume): (&String, &BlockVolume<Mapped>)| {
            (name.clone(), volume.volume().completed_epoch())
        };
        self.volumes.iter().map(epoch).collect()
    }

    fn act(&mut self, step: &Step, name: Option<String>) {
        match (&step.action, name) {
            (Action::Check, _) if self.sound => self.expect_clean(),
            (Action::Check, _) => drop(self.pool.check()),
            (Action::Replace { sectors }, name) => {
                self.replace(name.as_deref(), *sectors);
            }
            (_, None) => {}
            (action, Some(name)) => {
                let volume = &self.volumes[&name];
                let known = self.known.get_mut(&name).unwrap();
                // Undoing a group undoes the forged records of its epoch.
                let undoes = matches!(action, Action::Group { commit: false, .. });
                self.sound &= !(undoes && self.forged);
                let whole_commits = self.whole_commits;
                let mut actor = Actor { volume, known, sound: self.sound, whole_commits };
                actor.act(action);
            }
        }
    }

    /// Deletes a volume, if there is one, and makes one of the same name.
    fn replace(&mut self, name: Option<&str>, sectors: u16) {
        if let Some(name) = name {
            self.volumes.remove(name);
            self.known.remove(name);
            let deleted = self.pool.delete_volume(name);
            assert!(!self.sound || deleted.is_ok(), "a volume cannot be deleted: {deleted:?}");
        }
        let options = BlockOptions {
            delta: Delta::Auto,
            log_bytes: Some(32 << 10),
            lanes: 1,
            ..BlockOptions::default()
        };
        let name = name.unwrap_or("new");
        let size_bytes = u64::from(sectors) * 512;
        match BlockVolume::create(&self.pool, name, size_bytes, &options) {
            Ok(volume) => {
                self.volumes.insert(name.to_owned(), volume);
                self.known.insert(name.to_owned(), Known::durable(Content::new(size_bytes)));
            }
            // The pool is nearly full, and the size comes from the input. Both refusals are right.
            Err(PoolError::NoSpace { .. } | PoolError::Invalid(_)) => {}
            Err(error) => assert!(!self.sound, "a volume cannot be made: {error}"),
        }
    }

    /// Closes the pool, or lets it crash. Returns the contents that an opening must find.
    pub(crate) fn end(mut self, closed: bool) -> BTreeMap<String, Known> {
        if closed {
            let done = self.pool.close();
            assert!(!self.sound || done.is_ok(), "a sound pool cannot be closed: {done:?}");
            self.known.values_mut().for_each(Known::settle);
        }
        self.known
    }
}

/// One volume during one action.
struct Actor<'a> {
    volume: &'a BlockVolume<Mapped>,
    known: &'a mut Known,
    sound: bool,
    whole_commits: bool,
}

impl Actor<'_> {
    fn act(&mut self, action: &Action) {
        let volume = self.volume;
        let completed = volume.volume().completed_epoch();
        let advanced = || volume.volume().completed_epoch() != completed;
        match *action {
            Action::Write { write, fua } => {
                let (offset, data) = write.data();
                let done = volume.write(offset, &data, self::fua(fua));
                self.changed(done, advanced(), self.whole_commits, fua, offset, &data);
            }
            Action::Discard { place, fua } => {
                let (offset, len) = place.range();
                let done = volume.discard(offset, len, self::fua(fua));
                self.changed(done, advanced(), false, fua, offset, &vec![0; len as usize]);
            }
            Action::Zero { place, hole, fast, fua } => {
                let (offset, len) = place.range();
                let hole = if hole { Hole::Allowed } else { Hole::Forbidden };
                let done = volume.write_zeroes(offset, len, hole, fast, self::fua(fua));
                self.changed(done, advanced(), false, fua, offset, &vec![0; len as usize]);
            }
            Action::Batch { writes, fua } => self.batch(writes, fua),
            Action::Group { writes, commit } => self.group(writes, commit),
            Action::Flush => {
                let done = volume.flush();
                assert!(!self.sound || done.is_ok(), "a flush failed: {done:?}");
                self.known.settle();
            }
            Action::Read { offset, len } => {
                drop(volume.read(offset, &mut vec![0; usize::from(len)]));
            }
            Action::Status { offset, len, extents_max } => self.status(offset, len, extents_max),
            Action::Resize { sectors } => self.resize(u64::from(sectors) * 512),
            // These are the pool's.
            Action::Check | Action::Replace { .. } => {}
        }
    }

    /// Notes a change that was `done` or not. `whole` means that a crash leaves all of it or
    /// nothing.
    fn changed(
        &mut self,
        done: Result<(), DeviceError>,
        advanced: bool,
        whole: bool,
        fua: bool,
        offset: u64,
        data: &[u8],
    ) {
        // If a checkpoint came during the change, a crash leaves the change or the state before it.
        let before = advanced.then(|| self.known.now.clone());
        let fua = fua && done.is_ok();
        match done {
            Ok(()) => self.known.now.put(offset, data),
            Err(DeviceError::OutOfRange { .. } | DeviceError::NotFast) => {}
            // One commit is atomic, so a change without space has done nothing.
            Err(DeviceError::NoSpace { .. }) if whole => {}
            Err(DeviceError::NoSpace { .. }) => return self.look_again(),
            Err(error) => assert!(!self.sound, "a sound volume refused a change: {error}"),
        }
        match before {
            // The epoch of a durable change was completed, or everything was durable already.
            Some(_) if fua => self.known.settle(),
            Some(before) if whole => self.known.durable = vec![before, self.known.now.clone()],
            // Several commits around a checkpoint: any part of them may be durable.
            Some(_) => self.known.durable.clear(),
            None if fua => {
                // A durable write survives a crash with any of the earlier contents.
                for durable in &mut self.known.durable {
                    durable.put(offset, data);
                }
            }
            None => {}
        }
    }

    /// Takes the volume's contents for the expected ones, where nothing is promised.
    fn look_again(&mut self) {
        self.known.now = read_all(self.volume, self.sound);
        self.known.durable.clear();
    }

    fn batch(&mut self, writes: [Write; 3], fua: bool) {
        let data = writes.map(Write::data);
        let requests: Vec<_> = data
            .iter()
            .map(|(offset, data)| WriteRequest { offset: *offset, data, fua: self::fua(fua) })
            .collect();
        let results = self.volume.write_batch(&requests);
        assert_eq!(results.len(), requests.len(), "one result for each request");
        for ((offset, data), done) in data.iter().zip(results) {
            match done {
                Ok(()) => self.known.now.put(*offset, data),
                Err(DeviceError::OutOfRange { .. } | DeviceError::NoSpace { .. }) => {}
                Err(error) => assert!(!self.sound, "a sound volume refused a batch: {error}"),
            }
        }
        // Each write of a batch is atomic by itself, so a crash can leave any of them.
        self.known.durable.clear();
    }

    fn group(&mut self, writes: [Write; 2], commit: bool) {
        let group = match self.volume.begin_group() {
            Ok(group) => group,
            Err(error) => return assert!(!self.sound, "a sound volume has no groups: {error}"),
        };
        self.known.settle();
        for (offset, data) in writes.map(Write::data) {
            if group.write(offset, &data).is_ok() {
                self.known.now.put(offset, &data);
            }
        }
        if commit {
            let done = group.commit();
            assert!(!self.sound || done.is_ok(), "a group cannot be committed: {done:?}");
            self.known.settle();
        } else {
            let done = group.roll_back();
            assert!(!self.sound || done.is_ok(), "a group cannot be rolled back: {done:?}");
            self.known.now = self.known.durable[0].clone();
        }
    }

    fn status(&self, offset: u64, len: u64, extents_max: u8) {
        let Ok(extents) = self.volume.status(offset, len, extents_max.into()) else { return };
        let covered: u64 = extents.iter().map(|extent| extent.len).sum();
        assert!(extents.iter().all(|extent| extent.len > 0) && covered <= len && covered > 0);
        assert!(extents.len() <= usize::from(extents_max).max(1), "too many extents");
    }

    fn resize(&mut self, size_bytes: u64) {
        let same = self.volume.geometry().size_bytes == size_bytes;
        match self.volume.resize(size_bytes) {
            Ok(()) if same => {}
            Ok(()) => {
                self.known.now.resize(size_bytes);
                self.known.settle();
            }
            Err(PoolError::Invalid(_)) => {}
            // The attempt may have completed an epoch to find space.
            Err(PoolError::NoSpace { .. }) => self.known.durable.clear(),
            Err(error) => assert!(!self.sound, "a sound volume cannot be resized: {error}"),
        }
    }
}

fn fua(wanted: bool) -> Fua {
    if wanted { Fua::Yes } else { Fua::No }
}

/// Returns true if the data of all openable volumes match their checksums: a forged descriptor may
/// require checksums that were never stored.
fn has_its_checksums(pool: &Arc<Pool<Mapped>>) -> bool {
    let volumes = pool.volumes().into_iter();
    let opened =
        volumes.filter_map(|volume| BlockVolume::open_as(pool, volume.name(), volume.kind()).ok());
    // Volumes without checksums have nothing to compare.
    let mut checked = opened.filter(|volume| volume.checksum() == Checksum::Crc32c);
    checked.all(|volume| {
        let mut next = Some(0);
        while let Some(from) = next {
            let Ok((report, more)) = volume.scrub(from) else { return false };
            if !report.findings.is_empty() {
                return false;
            }
            next = more;
        }
        true
    })
}

/// Reads all runs. Every byte of a sound volume can be read.
fn read_all(volume: &BlockVolume<Mapped>, sound: bool) -> Content {
    let size_bytes = volume.geometry().size_bytes;
    let mut content = Content::new(size_bytes);
    let mut bytes = [0; 4096];
    for block in block_numbers() {
        let offset = block * BLOCK_U64;
        let len = size_bytes.saturating_sub(offset).min(BLOCK_U64);
        let part = &mut bytes[..len as usize];
        match volume.read(offset, part) {
            Ok(()) => content.put(offset, part),
            Err(error) => assert!(!sound || len == 0, "a sound volume cannot be read: {error}"),
        }
    }
    content
}

/// Describes in words how two contents differ.
fn difference(found: &Content, expected: &Content) -> String {
    if found.size_bytes != expected.size_bytes {
        return format!("{} bytes instead of {}", found.size_bytes, expected.size_bytes);
    }
    let differ = |&block: &u64| found.block(block) != expected.block(block);
    let Some(block) = block_numbers().find(differ) else { return "nothing differs".into() };
    let (found, expected) = (found.block(block), expected.block(block));
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    format!("block {block}, byte {at}: {:#x} instead of {:#x}", found[at], expected[at])
}
