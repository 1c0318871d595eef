//! The mapped medium: the one implementor of [`Medium`] for real memory.
//!
//! Owns the mapping, its counters, its emulated costs and its media errors. Invariants: every address is
//! checked against the length before it becomes a pointer. Every store is counted. A fence returns `Ok` only
//! if all earlier flushes and streams of this thread are durable as far as [`Medium::persistence_domain`]
//! says, and no store of any thread is known to be lost.
//!
//! Copies in and out are made by assembly through raw pointers, and words are atomics, because threads may
//! read without a lock during others' stores. The compiler takes assembly for foreign code with the rights of
//! atomics, so such a race gives some bytes and is not undefined behaviour. Rust has no formal rule for the
//! stores of other processes; there we rely on a load yielding some bytes during any write. Only comparisons
//! load as Rust does: their caller holds a lock that keeps writers away, and readers do not write.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use everbyte_path::FileLock;

use crate::counters::{ShardedCounters, lines_touched};
use crate::cpu::{Cpu, prefetch_line, store_fence};
use crate::emulate::{self, Technology};
use crate::error::OpenError;
use crate::fault_handler::{self, Registration};
use crate::free_space::memory_to_spare;
use crate::map::{Mapping, Source, to_usize};
use crate::medium::{Counters, MediaError, Medium, PersistenceDomain, Piece, PoisonedRange};
use crate::open::{
    MediaKind, MediaOptions, Probe, allocate_from, check_length, name_of, open_path, probe,
};
use crate::own_memory;
use crate::send;
use crate::stack::Stack;
use crate::units::{BLOCK, BLOCK_U64, BlockNo, LINE, LineMask, PoolOffset};
use crate::wear::{Wear, WearCounts};
use crate::window::{WINDOW_REGION_BYTES, Window, WindowSpace};
use crate::writeback::WriteBack;

/// Mapped memory: a DAX file or device, an ordinary file, a file in memory, or none at all.
pub struct Mapped {
    /// Declared before `map`, hence dropped before it: the handler must forget the range first.
    registration: Registration,
    map: Mapping,
    /// The device copied by this private copy; `None` if it is not such a copy.
    copied: Option<File>,
    cpu: &'static Cpu,
    name: String,
    kind: MediaKind,
    persistence_domain: PersistenceDomain,
    page: u64,
    writable: bool,
    populate: bool,
    /// The reason why the medium cannot grow, if it cannot.
    fixed: Option<&'static str>,
    /// True if flush instructions run.
    flushes: bool,
    write_back: Option<WriteBack>,
    emulated: Option<Technology>,
    wear: Option<WearCounts>,
    counters: ShardedCounters,
    growing: Mutex<()>,
    /// Declared last, hence dropped last: no other process gets the file before the mapping has ended.
    lock: Option<FileLock>,
}

/// The medium's kind and its instructions, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Kind of memory.
    pub kind: MediaKind,
    /// The instruction that flushes a line; `none` if flushes need not run.
    pub flush: &'static str,
    /// The call of a fence after `sfence`, if any.
    pub sync: Option<&'static str>,
    /// The vector extension for copies and comparisons.
    pub copy: &'static str,
    /// The technology of the added costs.
    pub emulated: Option<Technology>,
    /// The event that durable contents outlive.
    pub persistence_domain: PersistenceDomain,
}

impl std::fmt::Display for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, survives {}, flush {}", self.kind, self.persistence_domain, self.flush)?;
        if let Some(sync) = self.sync {
            write!(f, " and {sync}")?;
        }
        write!(f, ", copies with {}", self.copy)?;
        match self.emulated {
            Some(technology) => write!(f, ", emulates {technology}"),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({}, {} bytes, {})", self.name, self.len(), self.describe())
    }
}

impl Mapped {
    /// Maps the file or device at `path`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: impl AsRef<Path>, options: &MediaOptions) -> Result<Self, OpenError> {
        let file = open_path(path.as_ref(), options)?;
        Self::map_file(file, path.as_ref().display().to_string(), options)
    }

    /// Maps an open file or device, open for writing unless `options` say `private` or `read_only`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn from_file(file: &File, options: &MediaOptions) -> Result<Self, OpenError> {
        let name = name_of(file);
        let file = file.try_clone().map_err(OpenError::io("duplicate", &name))?;
        Self::map_file(file, name, options)
    }

    /// Keeps the lock of the mapped file until the mapping ends.
    #[must_use]
    pub fn with_lock(mut self, lock: FileLock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Makes a medium of ranges of a file, one behind the other. [`Mapped::append`] may add ranges until it
    /// has at least `bytes_max` bytes. Nothing else of the file is mapped.
    ///
    /// # Errors
    /// `BadLength` unless each range is of whole pages; else as [`Mapped::open`].
    pub fn of_ranges(
        file: &File,
        ranges: &[Range<u64>],
        bytes_max: u64,
        options: &MediaOptions,
    ) -> Result<Self, OpenError> {
        let name = name_of(file);
        let found = Probe { regular: false, len: 0, ..probe(file, &name, options)? };
        let options = options.clone().reserve_bytes(bytes_max);
        let medium = Self::map(Source::Ranges, name, &found, &options)?;
        medium.append(file, ranges)?;
        Ok(medium)
    }

    /// Adds ranges of a file to a medium of [`Mapped::of_ranges`], while others use it.
    ///
    /// # Errors
    /// `CannotGrow` beyond the reserved length, and for other mediums; else as [`Mapped::of_ranges`]. The
    /// ranges before the failed one were added.
    pub fn append(&self, file: &File, ranges: &[Range<u64>]) -> Result<(), OpenError> {
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let added: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let room = self.map.reserved() as u64 - self.len();
        if added > room || !matches!(self.map.source(), Source::Ranges) {
            let (name, len) = (self.name.clone(), self.len().saturating_add(added));
            let reason = format!("there is room for {room} bytes more");
            return Err(OpenError::CannotGrow { name, len, reason });
        }
        for range in ranges {
            let len = range.end.saturating_sub(range.start);
            check_length(&self.name, len, self.page)?;
            let appended = self.map.append(
                Some((file, range.start)),
                rustix::mm::MapFlags::SHARED,
                to_usize(len),
            );
            appended.map_err(OpenError::io("map", &self.name))?;
        }
        Ok(())
    }

    /// The largest length for [`Mapped::append`], in bytes; the present length for other mediums.
    #[must_use]
    pub fn len_max(&self) -> u64 {
        match self.map.source() {
            Source::Ranges => self.map.reserved() as u64,
            _ => self.len(),
        }
    }

    /// Makes a medium of `len` zero bytes of this process's own memory.
    ///
    /// # Errors
    /// `BadLength` unless `len` is a positive multiple of 4096; `Io` if memory is missing.
    pub fn anonymous(len: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let name = "anonymous memory".to_owned();
        check_length(&name, len, BLOCK_U64)?;
        let found = Probe {
            kind: MediaKind::Anonymous,
            persistence_domain: PersistenceDomain::Nothing,
            len,
            page: BLOCK_U64,
            flags: rustix::mm::MapFlags::PRIVATE,
            cache_persists: false,
            regular: false,
            shared_only: false,
        };
        Self::map(Source::Anonymous, name, &found, options)
    }

    /// Lengthens the medium to `new_len` bytes during use, and allocates missing parts of its file. The new
    /// bytes are zeroes, or the file's earlier contents there.
    ///
    /// # Errors
    /// `CannotGrow` if the medium is of a kind that cannot, is mapped read-only, or has reserved too little
    /// address space, or if `new_len` is less than its length; `BadLength`, `NoSpace` and `Io` as when
    /// opening. The medium is then as it was.
    pub fn grow(&self, new_len: u64) -> Result<(), OpenError> {
        self.grow_by(new_len, |file, mapped| allocate_from(file, mapped, new_len))
    }

    /// The same with `allocate`: it makes the file that long. So many bytes of the file are mapped.
    fn grow_by(
        &self,
        new_len: u64,
        allocate: impl FnOnce(&File, u64) -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let refuse = |reason: String| {
            Err(OpenError::CannotGrow { name: self.name.clone(), len: new_len, reason })
        };
        check_length(&self.name, new_len, self.page)?;
        if let Some(reason) = self.fixed {
            return refuse(reason.to_owned());
        }
        if new_len < self.len() {
            return refuse(format!("it has {} bytes already", self.len()));
        }
        if new_len > self.map.reserved() as u64 {
            let reserved = self.map.reserved();
            return refuse(format!("only {reserved} bytes of address space are reserved for it"));
        }
        let old_len = self.len();
        // The kernel reports a failed write-back once to each description of a file. A sync of the mapped
        // description would take the report from the next fence, and the fence would call everything durable.
        let file = self.reopen().map_err(OpenError::io("open", &self.name))?;
        if let Some(file) = file {
            allocate(&file, old_len)?;
        }
        self.map.extend(new_len).map_err(OpenError::io("map", &self.name))?;
        if self.populate {
            self.map.populate(old_len).map_err(OpenError::io("populate", &self.name))?;
        }
        Ok(())
    }

    /// Lines written to each frame since it was opened, summed up; `None` if they are not counted.
    #[must_use]
    pub fn wear(&self) -> Option<Wear> {
        self.wear.as_ref().map(WearCounts::sum)
    }

    /// Opens the mapped file again: another description of it, with its own locks, for other processes to
    /// map. `None` without a shareable file.
    ///
    /// # Errors
    /// The system's.
    pub fn reopen(&self) -> std::io::Result<Option<File>> {
        let Source::File { file, flags } = self.map.source() else { return Ok(None) };
        if flags.contains(rustix::mm::MapFlags::PRIVATE) {
            return Ok(None);
        }
        // The path may be gone, and need not lead to the file now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        File::options().read(true).write(self.writable).open(path).map(Some)
    }

    /// Inspects the mapped or copied file, irrespective of its path's present target. `None` without a file.
    ///
    /// # Errors
    /// The system's.
    pub fn metadata(&self) -> io::Result<Option<Metadata>> {
        match self.map.source() {
            Source::File { file, .. } => file.metadata().map(Some),
            Source::Ranges | Source::Anonymous => {
                self.copied.as_ref().map(File::metadata).transpose()
            }
        }
    }

    /// The stack of the mapped or copied file. `None` without a file.
    ///
    /// # Errors
    /// The system's.
    pub fn stack(&self) -> io::Result<Option<Stack>> {
        match self.map.source() {
            Source::File { file, .. } => Stack::of(file).map(Some),
            Source::Ranges | Source::Anonymous => self.copied.as_ref().map(Stack::of).transpose(),
        }
    }

    /// Returns true if pieces of `bytes` bytes, at multiples of as many, can be mapped a second time by
    /// `mremap`, with stores to either mapping visible in the other.
    #[must_use]
    pub fn has_pieces(&self, bytes: u64) -> bool {
        let is_shared = matches!(self.kind, MediaKind::Dax | MediaKind::Tmpfs | MediaKind::File);
        is_shared && self.writable && bytes.is_multiple_of(self.page)
    }

    /// Describes the medium's kind and its instructions.
    #[must_use]
    pub fn describe(&self) -> Description {
        Description {
            kind: self.kind,
            flush: if self.flushes { self.cpu.flush_name() } else { "none" },
            sync: self.write_back.as_ref().map(|_| "msync"),
            copy: self.cpu.vector_name(),
            emulated: self.emulated,
            persistence_domain: self.persistence_domain,
        }
    }

    /// The address of `at .. at + len`, for system calls that copy out of the medium. They neither count nor
    /// cost anything here. Valid while the medium is. Its target may change at any time, or fail, so no
    /// caller makes a reference of it.
    ///
    /// # Panics
    /// If the range leaves the medium.
    #[must_use]
    pub fn address(&self, at: PoolOffset, len: u64) -> *const u8 {
        self.place(at, len)
    }

    /// Stores `len` bytes, as [`Medium::store`] does, from memory with concurrent stores: each stored byte is
    /// then one of the source's values.
    ///
    /// # Panics
    /// If the range leaves the medium, or the medium is mapped for reading only.
    ///
    /// # Safety
    /// `from` points to `len` readable bytes outside the medium.
    pub unsafe fn store_from(&self, at: PoolOffset, from: *const u8, len: u64) {
        let place = self.place_mut(at, len);
        // SAFETY: `place` has that many mapped, writable bytes, and the caller's are elsewhere.
        unsafe { self.cpu.copy_shared(place, from, to_usize(len)) }
        self.count_store(at, len);
    }

    fn map_file(file: File, name: String, options: &MediaOptions) -> Result<Self, OpenError> {
        let found = probe(&file, &name, options)?;
        if options.private && found.shared_only {
            let copied = file.try_clone().map_err(OpenError::io("duplicate", &name))?;
            let device = Self::map_file(file, name.clone(), &MediaOptions::new().read_only(true))?;
            // Pages that are zero in the device take no memory.
            let options = options.clone().populate(false);
            let mut copy = Self::map(Source::Anonymous, name, &found, &options)?;
            copy.copy_from(&device, memory_to_spare())?;
            copy.counters = ShardedCounters::default();
            copy.copied = Some(copied);
            return Ok(copy);
        }
        Self::map(Source::File { file, flags: found.flags }, name, &found, options)
    }

    /// Copies the contents of `device`, of the same length, into this medium of zeroes. A copied block counts
    /// as a large page, because it may take one.
    fn copy_from(&self, device: &Self, bytes_max: u64) -> Result<(), OpenError> {
        const PAGE_BLOCKS: u64 = 512;
        let (mut left, mut page) = (bytes_max, None);
        let mut bytes = [0; BLOCK];
        for block in (0..device.len() / BLOCK_U64).map(BlockNo) {
            device.read(block.offset(), &mut bytes);
            if bytes == [0; BLOCK] {
                continue;
            }
            if page.replace(block.0 / PAGE_BLOCKS) != Some(block.0 / PAGE_BLOCKS) {
                let taken = PAGE_BLOCKS * BLOCK_U64;
                left = left
                    .checked_sub(taken)
                    .ok_or_else(|| OpenError::NoMemory { name: device.name.clone(), bytes_max })?;
            }
            self.store(block.offset(), &bytes);
        }
        let checked = device.check().map_err(io::Error::other);
        checked.map_err(OpenError::io("read", &device.name))
    }

    fn map(
        source: Source,
        name: String,
        found: &Probe,
        options: &MediaOptions,
    ) -> Result<Self, OpenError> {
        let anonymous = found.kind == MediaKind::Anonymous;
        let is_added_to = matches!(source, Source::Ranges);
        let writable = anonymous || options.writable();
        let map = Mapping::reserve(source, writable, found.len, options.reserve_bytes)
            .map_err(OpenError::io("reserve address space for", &name))?;
        map.extend(found.len).map_err(OpenError::io("map", &name))?;
        if options.populate {
            map.populate(0).map_err(OpenError::io("populate", &name))?;
        }
        let registration =
            Registration::new(map.base().addr(), map.reserved(), to_usize(found.page))
                .map_err(OpenError::io("catch memory errors of", &name))?
                .ok_or_else(|| OpenError::TooMany {
                    name: name.clone(),
                    limit: fault_handler::SLOTS,
                })?;
        // Again: a lock that began before the registration did not find it.
        let _best_effort = own_memory::exempt(map.base(), to_usize(map.len()));
        let fixed = match found.kind {
            MediaKind::Private => Some("it is a private copy"),
            _ if is_added_to => Some("it consists of ranges"),
            _ if !writable => Some("it is mapped for reading only"),
            _ if !(anonymous || found.regular) => Some("it is a device"),
            _ => None,
        };
        let needs_flush = found.kind == MediaKind::Dax && !found.cache_persists;
        let needs_sync = found.kind == MediaKind::File;
        Ok(Self {
            registration,
            map,
            copied: None,
            cpu: Cpu::get(),
            name,
            kind: found.kind,
            persistence_domain: found.persistence_domain,
            page: found.page,
            writable,
            populate: options.populate,
            fixed,
            flushes: needs_flush || options.force_flush || options.emulate.is_some(),
            write_back: needs_sync.then(WriteBack::new),
            emulated: options.emulate,
            wear: (options.count_wear && options.emulate.is_some())
                .then(|| WearCounts::new(found.len)),
            counters: ShardedCounters::default(),
            growing: Mutex::new(()),
            lock: None,
        })
    }

    /// The address of `at .. at + len`. Panics if the range leaves the medium.
    #[inline]
    fn place(&self, at: PoolOffset, len: u64) -> *mut u8 {
        let total = self.map.len();
        assert!(
            len <= total && at.0 <= total - len,
            "access to {len} bytes at {at} leaves the medium of {total} bytes"
        );
        self.map.base().wrapping_add(to_usize(at.0))
    }

    /// As `place`, for an access that changes the medium.
    #[inline]
    fn place_mut(&self, at: PoolOffset, len: u64) -> *mut u8 {
        assert!(self.writable, "store to a medium that is mapped for reading only");
        self.place(at, len)
    }

    #[inline]
    fn word(&self, place: *mut u8) -> &AtomicU64 {
        assert!(place.cast::<u64>().is_aligned(), "a word must be aligned to 8 bytes");
        // SAFETY: the caller got `place` for 8 bytes from `place` or `place_mut`, so it is mapped
        // for as long as `self` is; it is aligned. An atomic of a word of shared memory is the one
        // reference that stays true whatever others write. Mixed plain copies of the same word are
        // the module's head's business.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    #[inline]
    fn count_store(&self, at: PoolOffset, len: u64) {
        if len > 0 {
            self.counters.stored(len, lines_touched(at, len));
        }
    }

    #[inline]
    fn charge_reads(&self, lines: u64) {
        if let Some(technology) = self.emulated {
            self.charge(technology.cost().read_ns * lines);
        }
    }

    #[inline]
    fn charge_writes(&self, at: PoolOffset, len: u64, lines: u64) {
        if let Some(technology) = self.emulated {
            if let Some(wear) = &self.wear {
                wear.add(at, len);
            }
            self.charge(emulate::write_ns(technology, lines));
        }
    }

    fn charge(&self, ns: u64) {
        if ns > 0 {
            self.counters.modelled(ns);
            emulate::charge(ns);
        }
    }

    /// Loads a byte of every `step` bytes of the range.
    fn touch(&self, at: PoolOffset, len: u64, step: usize) {
        let start = self.place(at, len);
        if len == 0 {
            return;
        }
        let skip = at.in_block() % step;
        for place in (0..to_usize(len) + skip).step_by(step) {
            // SAFETY: inside the range, which is mapped.
            let _byte = unsafe { start.wrapping_add(place.saturating_sub(skip)).read_volatile() };
        }
    }

    /// Loads a byte of each block in the range, so that pages missing since their last store become known: if
    /// a file was truncated, the contents of its pages are lost, and neither a sync nor anything else reports
    /// it.
    fn touch_stored(&self, at: PoolOffset, len: u64) {
        self.touch(at, len, BLOCK);
    }

    /// Fails the medium if a store to the range cannot have reached it.
    #[inline]
    fn note_lost(&self, at: PoolOffset, len: u64) {
        if self.has_poison()
            && let Some(poisoned) = self.poisoned_in(at, len)
        {
            self.registration.lose(poisoned);
        }
    }

    /// The pages touched by `at .. at + len`.
    fn pages(&self, at: PoolOffset, len: u64) -> Range<usize> {
        let page = self.registration.page();
        to_usize(at.0 / page)..to_usize(at.0.saturating_add(len).div_ceil(page))
    }

    /// The start of a page.
    fn page_at(&self, page: usize) -> u64 {
        page as u64 * self.registration.page()
    }
}

impl Medium for Mapped {
    fn len(&self) -> u64 {
        self.map.len()
    }

    fn persistence_domain(&self) -> PersistenceDomain {
        self.persistence_domain
    }

    #[inline]
    fn load_word(&self, at: PoolOffset) -> u64 {
        let value = self.word(self.place(at, 8)).load(Ordering::Acquire);
        self.charge_reads(1);
        u64::from_le(value)
    }

    #[inline]
    fn read(&self, at: PoolOffset, out: &mut [u8]) {
        let len = out.len() as u64;
        let place = self.place(at, len);
        // SAFETY: `place` has that many mapped bytes; `out` is no part of the mapping, because
        // nothing makes references into it.
        unsafe { self.cpu.copy_shared(out.as_mut_ptr(), place, out.len()) }
        self.charge_reads(lines_touched(at, len));
    }

    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask {
        assert!(block.0 < self.map.len() / BLOCK_U64, "{block} leaves the medium");
        let place = self.place(block.offset(), BLOCK_U64);
        // SAFETY: the whole block is mapped, and blocks are aligned to lines.
        let mask = unsafe { self.cpu.changed(place, start, new) };
        self.charge_reads(lines_touched(PoolOffset(start as u64), new.len() as u64));
        mask
    }

    #[inline]
    fn store_word(&self, at: PoolOffset, value: u64) {
        let place = self.place_mut(at, 8);
        self.word(place).store(value.to_le(), Ordering::Release);
        self.count_store(at, 8);
    }

    fn store(&self, at: PoolOffset, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let place = self.place_mut(at, len);
        // SAFETY: `place` has that many mapped, writable bytes; `bytes` is no part of the mapping,
        // because nothing makes references into it.
        unsafe { self.cpu.copy_shared(place, bytes.as_ptr(), bytes.len()) }
        self.count_store(at, len);
    }

    #[inline]
    fn stream(&self, at: PoolOffset, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let place = self.place_mut(at, len);
        if bytes.is_empty() {
            return;
        }
        // SAFETY: `place` has that many mapped, writable bytes, and they hold no Rust object.
        unsafe { self.cpu.stream(place, bytes, self.flushes) }
        // Only now: a thread on the same shard may sync the noted ranges at any moment.
        if let Some(write_back) = &self.write_back {
            write_back.note(at, len);
        }
        self.note_lost(at, len);
        self.count_store(at, len);
        self.charge_writes(at, len, lines_touched(at, len));
    }

    #[inline]
    fn prefetch(&self, at: PoolOffset, len: usize) {
        let skew = to_usize(at.0) % LINE;
        let first = self.map.base().wrapping_add(to_usize(at.0) - skew);
        for line in 0..(skew + len).div_ceil(LINE).min(PREFETCH_LINES_MAX) {
            prefetch_line(first.wrapping_add(line * LINE));
        }
    }

    fn window(&self, regions_max: u64) -> Window {
        let window = Window::new(regions_max);
        // A store to a private copy shows in no other mapping of its file.
        let is_shared = self.kind != MediaKind::Private && self.map.file().is_some();
        if !is_shared || self.page > WINDOW_REGION_BYTES {
            return window;
        }
        match WindowSpace::reserve(regions_max, self.page) {
            Some(space) => window.with_space(space),
            None => window,
        }
    }

    fn extend_window(&self, window: &Window, run: PoolOffset) {
        let _in_the_medium = self.place(run, WINDOW_REGION_BYTES);
        window.push(run, self.map.file());
    }

    #[inline]
    fn load_word_in(&self, window: &Window, at: u64) -> u64 {
        let Some(word) = window.load_word_mapped(at) else {
            return self.load_word(window.offset_of(at, 8));
        };
        self.charge_reads(1);
        word
    }

    #[inline]
    fn read_in(&self, window: &Window, at: u64, out: &mut [u8]) {
        let len = out.len() as u64;
        if window.read_mapped(at, out) {
            self.charge_reads(lines_touched(PoolOffset(at), len));
        } else {
            self.read(window.offset_of(at, len), out);
        }
    }

    fn flush(&self, at: PoolOffset, len: u64) {
        let place = self.place(at, len);
        if len == 0 {
            return;
        }
        if let Some(write_back) = &self.write_back {
            write_back.note(at, len);
        }
        if self.flushes {
            // SAFETY: `place` has that many mapped bytes.
            unsafe { self.cpu.flush(place, to_usize(len)) }
        } else if matches!(self.kind, MediaKind::Dax | MediaKind::Tmpfs | MediaKind::Hugetlbfs) {
            // One load for each block, mostly of a line just stored to. A flush instruction would have met a
            // missing page, and for a file the fence checks the synced ranges.
            self.touch_stored(at, len);
        }
        self.note_lost(at, len);
        let lines = lines_touched(at, len);
        self.counters.flushed(lines);
        self.charge_writes(at, len, lines);
    }

    #[inline]
    fn fence(&self) -> Result<(), MediaError> {
        self.counters.fenced();
        store_fence();
        if self.emulated.is_some() {
            emulate::settle();
            emulate::fenced();
        }
        // Before the sync as well: after it has lost a store a medium syncs no more.
        self.check()?;
        if let Some(write_back) = &self.write_back {
            let lost = |range: &Range<u64>| {
                // A sync of zeroes instead of a page would succeed, and so would a sync of a missing page.
                // Compared with a sync the loads cost nothing.
                let (at, len) = (PoolOffset(range.start), range.end - range.start);
                self.touch_stored(at, len);
                self.note_lost(at, len);
            };
            write_back.fence(self.map.base(), lost)?;
        }
        self.check()
    }

    #[inline]
    fn check(&self) -> Result<(), MediaError> {
        if let Some(at) = self.registration.lost() {
            return Err(MediaError::StoreLost { at });
        }
        self.write_back.as_ref().map_or(Ok(()), WriteBack::check)
    }

    #[inline]
    fn has_poison(&self) -> bool {
        self.registration.poisoned().any()
    }

    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset> {
        if len == 0 {
            return None;
        }
        let page = self.registration.poisoned().first_in(self.pages(at, len))?;
        Some(PoolOffset(self.page_at(page).max(at.0)))
    }

    fn poisoned_ranges(&self) -> Vec<PoisonedRange> {
        let len = self.registration.page();
        let pages = self.registration.poisoned().all_in(self.pages(PoolOffset(0), self.len()));
        pages.map(|page| PoisonedRange { at: PoolOffset(self.page_at(page)), len }).collect()
    }

    fn probe(&self, at: PoolOffset, len: u64) {
        self.touch(at, len, BLOCK);
    }

    fn lend(&self, at: PoolOffset, len: u64) -> Option<*const u8> {
        let with_next = len.checked_add(BLOCK as u64)?;
        let is_inside = at.0.checked_add(with_next)? <= self.len();
        (is_inside && self.emulated.is_none()).then(|| self.address(at, len))
    }

    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
        let locate = |at, len| self.place(at, len as u64).cast_const();
        let sent = match send::send(socket, pieces, locate) {
            // The kernel returns an error where a load would have faulted. Fault now, so that
            // the page is known to be poisoned.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                for (at, len) in send::stored_ranges(pieces, usize::MAX) {
                    self.touch(at, len as u64, LINE);
                }
                return Err(error);
            }
            other => other?,
        };
        if self.emulated.is_some() {
            for (at, len) in send::stored_ranges(pieces, sent) {
                self.charge_reads(lines_touched(at, len as u64));
            }
        }
        Ok(sent)
    }

    fn counters(&self) -> Counters {
        self.counters.sum()
    }

    fn line_cost_ns(&self) -> (u32, u32) {
        let (read_ns, write_ns) = DRAM_LINE_COST_NS;
        let extra = self.emulated.map(Technology::cost);
        // Whoever weighs costs asks for those of many lines.
        let banks = self.emulated.map_or(1, Technology::banks);
        let total = |base: u32, extra: Option<u64>| {
            base.saturating_add(u32::try_from(extra.unwrap_or(0)).unwrap_or(u32::MAX))
        };
        (
            total(read_ns, extra.as_ref().map(|cost| cost.read_ns)),
            total(write_ns, extra.as_ref().map(|cost| cost.write_ns / banks)),
        )
    }
}

/// Lines prefetched together; for more the processor's own prefetcher is as good.
const PREFETCH_LINES_MAX: usize = 16;

/// About the cost of a line of a whole block in DRAM: of a read on a cache miss, and of a stream. A read
/// costs more, so comparison does not pay on DRAM itself.
const DRAM_LINE_COST_NS: (u32, u32) = (9, 5);

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;
    use crate::open::allocate_file;

    #[test]
    fn failed_msync_fails_medium() {
        let mut medium = Mapped::anonymous(BLOCK_U64, &MediaOptions::new()).unwrap();
        medium.write_back = Some(WriteBack::with_sync(|_, _| Err(io::ErrorKind::Other.into())));
        medium.store(PoolOffset(8), b"x");
        medium.check().unwrap();
        medium.fence().unwrap();
        medium.flush(PoolOffset(8), 1);
        assert!(matches!(medium.fence(), Err(MediaError::WriteBack { at: PoolOffset(0), .. })));
        assert!(matches!(medium.check(), Err(MediaError::WriteBack { len: 4096, .. })));
        assert!(medium.fence().is_err());
        let mut byte = [0];
        medium.read(PoolOffset(8), &mut byte);
        assert_eq!(&byte, b"x", "reads go on");
    }

    #[test]
    fn growth_keeps_sync_failure_for_fence() {
        let file = tempfile::tempfile().unwrap();
        allocate_file(&file, BLOCK_U64).unwrap();
        let medium = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        // A position belongs to a description, as do its reported failures.
        (&file).seek(SeekFrom::Start(7)).unwrap();
        let grown = medium.grow_by(2 * BLOCK_U64, |mut grown, mapped| {
            assert_eq!(grown.stream_position().unwrap(), 0, "it is the one that is mapped");
            assert_eq!(mapped, BLOCK_U64);
            Err(OpenError::io("sync", "it")(io::ErrorKind::Other.into()))
        });
        assert!(matches!(grown, Err(OpenError::Io { action: "sync", .. })));
        assert_eq!(medium.len(), BLOCK_U64);
        medium.grow(2 * BLOCK_U64).unwrap();
        assert_eq!((medium.len(), (&file).stream_position().unwrap()), (2 * BLOCK_U64, 7));
    }

    #[test]
    fn private_copy_is_whole_or_over_limit() {
        let len = 4 << 20;
        let medium = || Mapped::anonymous(len, &MediaOptions::new()).unwrap();
        let device = medium();
        device.store(PoolOffset(BLOCK_U64), &[7; BLOCK]);
        device.store(PoolOffset(2 * BLOCK_U64), &[8]);
        device.store(PoolOffset(len - 1), &[9]);
        let copy = medium();
        copy.copy_from(&device, len).unwrap();
        let mut bytes = vec![0; to_usize(len)];
        let mut expected = bytes.clone();
        copy.read(PoolOffset(0), &mut bytes);
        device.read(PoolOffset(0), &mut expected);
        assert_eq!(bytes, expected);
        let error = medium().copy_from(&device, len - 1).unwrap_err();
        assert!(matches!(error, OpenError::NoMemory { .. }), "{error}");
        assert!(memory_to_spare() >= BLOCK_U64);
    }

    #[test]
    fn fence_syncs_streamed_pages() {
        let mut medium = Mapped::anonymous(2 * BLOCK_U64, &MediaOptions::new()).unwrap();
        medium.write_back = Some(WriteBack::with_sync(|_, _| Err(io::ErrorKind::Other.into())));
        medium.stream(PoolOffset(BLOCK_U64 + 1), &[1; 5]);
        assert!(matches!(medium.fence(), Err(MediaError::WriteBack { at: PoolOffset(4096), .. })));
    }

    #[test]
    fn fence_without_flush_syncs_nothing() {
        let mut medium = Mapped::anonymous(BLOCK_U64, &MediaOptions::new()).unwrap();
        medium.write_back = Some(WriteBack::with_sync(|_, _| panic!("nothing was flushed")));
        medium.store(PoolOffset(0), &[1; 4096]);
        medium.fence().unwrap();
    }
}
