//! The dentry cache: recently looked-up names in DRAM with their files. It also records absent names.
//!
//! Invariants (argued in `docs/decisions/0024-names-that-were-looked-up-are-kept.md`):
//! - A note of a name happens under the lock of its directory, after a lookup or change there. A change
//!   forgets the name first, under that lock for writing. So the cache agrees with the directory, up to
//!   operations that are not answered yet.
//! - A note of an absent name is valid until any directory is removed: the directory's inode number may be
//!   reused then.
//! - Entries are bounded. A name that exceeds [`NAME_BYTES`] is not noted.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::dentry::file_name::Name;
use crate::format::number::{FileType, InodeNo};

/// Limit of entries of a file system: 1.25 MiB.
pub(crate) const DENTRIES_MAX: usize = 1 << 14;
/// Entries of a set. A name has one of them.
const WAYS: usize = 4;
/// Words of an entry's name.
const NAME_WORDS: usize = 5;
/// Longest noted name in bytes.
const NAME_BYTES: usize = 8 * NAME_WORDS;
/// Bits of the length in an entry's word for the type.
const LEN_BITS: u32 = 8;
/// Odd constants with well-spread bits: of the golden ratio and of pi.
const SPREAD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x2437_54a4_a6f0_15f7];

/// The file of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dentry {
    pub(crate) inode: InodeNo,
    pub(crate) kind: FileType,
}

/// An entry: one line.
#[derive(Default)]
#[repr(align(64))]
struct Way {
    parent: AtomicU64,
    /// The file. For an absent name, the number of removed directories at the note.
    inode: AtomicU64,
    /// Length of the name, and above it the type; no type for an absent name.
    kind: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

/// The entries for a hash.
#[derive(Default)]
#[repr(align(64))]
struct Set {
    /// A sequence lock: odd during a write to the set, and changed by each write.
    sequence: AtomicU64,
    /// The hashes of the entries; 0 for an empty one.
    tags: [AtomicU64; WAYS],
    ways: [Way; WAYS],
}

/// A name in a directory, as an entry holds it.
struct Key {
    parent: u64,
    len: u64,
    name: [u64; NAME_WORDS],
    /// The hash of parent and name, never 0.
    tag: u64,
}

/// The dentry cache of a file system.
pub(crate) struct DentryCache {
    /// A power of two of sets; empty if the cache is off.
    sets: Box<[Set]>,
    /// A random seed: names that share a set are unpredictable.
    seed: u64,
    directories_removed: AtomicU64,
}

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
    u64::try_from(low ^ high).expect("64 bits")
}

impl Key {
    fn new(parent: InodeNo, name: Name<'_>, seed: u64) -> Option<Self> {
        let bytes = name.bytes();
        let mut room = [0; NAME_BYTES];
        // Zeroes fill the rest, so names are compared by words.
        room.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let mut words = [0; NAME_WORDS];
        for (word, bytes) in words.iter_mut().zip(room.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let len = bytes.len() as u64;
        let start = mix(parent.0 ^ seed, SPREAD[0] ^ len);
        let used = &words[..bytes.len().div_ceil(8)];
        let tag = used.iter().fold(start, |hash, word| mix(hash ^ word, SPREAD[1])) | 1;
        Some(Self { parent: parent.0, len, name: words, tag })
    }
}

impl Way {
    fn is(&self, key: &Key) -> bool {
        let is_word = |(own, key): (&AtomicU64, &u64)| own.load(Ordering::Relaxed) == *key;
        self.parent.load(Ordering::Relaxed) == key.parent
            && self.kind.load(Ordering::Relaxed) & ((1 << LEN_BITS) - 1) == key.len
            && self.name.iter().zip(&key.name).all(is_word)
    }

    fn put(&self, key: &Key, inode: u64, kind: u64) {
        self.parent.store(key.parent, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        self.kind.store(kind << LEN_BITS | key.len, Ordering::Relaxed);
        for (own, key) in self.name.iter().zip(&key.name) {
            own.store(*key, Ordering::Relaxed);
        }
    }
}

impl Set {
    fn way_of(&self, key: &Key) -> Option<usize> {
        self.tags.iter().position(|tag| tag.load(Ordering::Relaxed) == key.tag)
    }

    /// Starts a write, unless another thread writes. Returns the previous sequence number.
    fn try_begin(&self) -> Option<u64> {
        // An even number: the exchange fails while another thread writes.
        let before = self.sequence.load(Ordering::Relaxed) & !1;
        let begun = self.sequence.compare_exchange(
            before,
            before + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        // Makes the odd number visible before the stores of the write.
        fence(Ordering::Release);
        begun.ok()
    }

    fn end(&self, before: u64) {
        // The stores of the entry become visible before the even number.
        self.sequence.store(before + 2, Ordering::Release);
    }
}

impl DentryCache {
    /// A cache for about `entries` names, at most [`DENTRIES_MAX`]. With 0 the cache is off.
    pub(crate) fn new(entries: u64, seed: u64) -> Self {
        let entries = usize::try_from(entries).map_or(DENTRIES_MAX, |all| all.min(DENTRIES_MAX));
        let sets = if entries == 0 { 0 } else { entries.div_ceil(WAYS).next_power_of_two() };
        let sets = (0..sets).map(|_| Set::default()).collect();
        Self { sets, seed, directories_removed: AtomicU64::new(0) }
    }

    fn place_of(&self, parent: InodeNo, name: Name<'_>) -> Option<(&Set, Key)> {
        if self.sets.is_empty() {
            return None;
        }
        let key = Key::new(parent, name, self.seed)?;
        // The lowest bit of all tags is equal.
        let place = usize::try_from(key.tag >> 32).expect("32 bits") & (self.sets.len() - 1);
        Some((&self.sets[place], key))
    }

    /// The file of `name` in `parent`; `Some(None)` for a known absent name, `None` for an unknown one. Takes
    /// no lock, and discards a read that overlaps a write.
    pub(crate) fn get(&self, parent: InodeNo, name: Name<'_>) -> Option<Option<Dentry>> {
        let (set, key) = self.place_of(parent, name)?;
        let before = set.sequence.load(Ordering::Acquire);
        let way = &set.ways[set.way_of(&key)?];
        let is_it = way.is(&key);
        let inode = way.inode.load(Ordering::Relaxed);
        let kind = way.kind.load(Ordering::Relaxed);
        // Orders all reads before the second read of the number.
        fence(Ordering::Acquire);
        // A write overlapped the read, so the read values may be mixed.
        if !is_it || before % 2 == 1 || set.sequence.load(Ordering::Relaxed) != before {
            return None;
        }
        let mode = u32::try_from(kind >> LEN_BITS).ok()? << 12;
        if mode == 0 {
            let removed = self.directories_removed.load(Ordering::Acquire);
            // A directory was removed since the note, so the parent's number may be reused.
            return (inode == removed).then_some(None);
        }
        Some(Some(Dentry { inode: InodeNo(inode), kind: FileType::from_mode(mode)? }))
    }

    /// Notes the file of `name` in `parent`. Skips the note if another thread writes to the set. The caller
    /// holds the lock of `parent`, a directory that was not removed.
    pub(crate) fn note(&self, parent: InodeNo, name: Name<'_>, found: Option<Dentry>) {
        let Some((set, key)) = self.place_of(parent, name) else { return };
        // A note is optional, so it does not wait.
        let Some(before) = set.try_begin() else { return };
        let empty = || set.tags.iter().position(|tag| tag.load(Ordering::Relaxed) == 0);
        // Round robin: the number grows with each note.
        let oldest = || usize::try_from(before / 2 % WAYS as u64).expect("less than there are");
        let way = set.way_of(&key).or_else(empty).unwrap_or_else(oldest);
        // The count is read under the directory's lock, so a removal of the directory comes later.
        let removed = || self.directories_removed.load(Ordering::Acquire);
        let inode = found.map_or_else(removed, |found| found.inode.0);
        let kind = found.map_or(0, |found| found.kind.mode_bits() >> 12);
        // Within the odd sequence, so a reader discards a mixed entry.
        set.ways[way].put(&key, inode, u64::from(kind));
        set.tags[way].store(key.tag, Ordering::Relaxed);
        set.end(before);
    }

    /// Forgets `name` in `parent`. Returns true if the name was known to be absent; it stays so until the
    /// caller changes it. Waits for a write of another thread to the set. The caller holds the lock of
    /// `parent` for writing.
    pub(crate) fn forget(&self, parent: InodeNo, name: Name<'_>) -> bool {
        let Some((set, key)) = self.place_of(parent, name) else { return false };
        // The caller's lock excludes a note of this name.
        if set.way_of(&key).is_none() {
            return false;
        }
        let before = loop {
            match set.try_begin() {
                Some(before) => break before,
                // Another thread writes a line.
                None => std::thread::yield_now(),
            }
        };
        let mut is_absent = false;
        if let Some(place) = set.way_of(&key) {
            let way = &set.ways[place];
            let is_file = way.kind.load(Ordering::Relaxed) >> LEN_BITS != 0;
            let removed = self.directories_removed.load(Ordering::Acquire);
            is_absent = way.is(&key) && !is_file && way.inode.load(Ordering::Relaxed) == removed;
            set.tags[place].store(0, Ordering::Relaxed);
        }
        set.end(before);
        is_absent
    }

    /// Forgets all absent names. The caller holds the lock of a directory during its removal.
    pub(crate) fn forget_absent(&self) {
        // One count for all directories: a search for the names of one directory would visit all
        // sets.
        self.directories_removed.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn file(inode: u64) -> Option<Dentry> {
        Some(Dentry { inode: InodeNo(inode), kind: FileType::Regular })
    }

    #[test]
    fn noted_name_lasts_until_forgotten() {
        let dentries = DentryCache::new(64, SEED);
        let dir = InodeNo(3);
        assert_eq!(dentries.get(dir, name("a")), None);
        dentries.note(dir, name("a"), file(9));
        dentries.note(dir, name("b"), None);
        assert_eq!(dentries.get(dir, name("a")), Some(file(9)));
        assert_eq!(dentries.get(dir, name("b")), Some(None));
        assert_eq!(dentries.get(InodeNo(4), name("a")), None, "it is another directory's");
        dentries.note(dir, name("b"), file(10));
        assert_eq!(dentries.get(dir, name("b")), Some(file(10)), "a name has one entry");
        for name in [name("a"), name("b"), name("c")] {
            dentries.forget(dir, name);
            assert_eq!(dentries.get(dir, name), None);
        }
        for (found, is_absent) in [(file(9), false), (None, true)] {
            dentries.note(dir, name("a"), found);
            assert_eq!(dentries.forget(dir, name("a")), is_absent);
            assert!(!dentries.forget(dir, name("a")), "it is not known any more");
        }
    }

    #[test]
    fn absent_name_lasts_until_a_rmdir() {
        let dentries = DentryCache::new(64, SEED);
        dentries.note(InodeNo(3), name("a"), None);
        dentries.note(InodeNo(3), name("b"), file(9));
        dentries.forget_absent();
        assert_eq!(dentries.get(InodeNo(3), name("a")), None);
        assert_eq!(dentries.get(InodeNo(3), name("b")), Some(file(9)));
        assert!(!dentries.forget(InodeNo(3), name("a")));
        dentries.note(InodeNo(3), name("a"), None);
        assert_eq!(dentries.get(InodeNo(3), name("a")), Some(None));
    }

    #[test]
    fn dentry_cache_is_bounded() {
        let dentries = DentryCache::new(60, SEED);
        for number in 0..1000 {
            dentries.note(InodeNo(number), name("some name"), file(number));
            assert_eq!(dentries.get(InodeNo(number), name("some name")), Some(file(number)));
        }
        let known = |number| dentries.get(InodeNo(number), name("some name")).is_some();
        let known = (0..1000).filter(|&number| known(number)).count();
        assert!((40..=64).contains(&known), "{known}");
        let long = "n".repeat(NAME_BYTES + 1);
        for (len, is_kept) in [(NAME_BYTES, true), (NAME_BYTES + 1, false)] {
            dentries.note(InodeNo(1), name(&long[..len]), file(2));
            assert_eq!(dentries.get(InodeNo(1), name(&long[..len])).is_some(), is_kept);
        }
        let none = DentryCache::new(0, SEED);
        none.note(InodeNo(1), name("a"), file(2));
        none.forget(InodeNo(1), name("a"));
        assert_eq!(none.get(InodeNo(1), name("a")), None);
    }

    /// Two threads write to one set while two read it.
    #[test]
    fn concurrent_dentry_reads_are_never_torn() {
        let dentries = DentryCache::new(1, SEED);
        let kinds = [FileType::Regular, FileType::Directory];
        std::thread::scope(|scope| {
            for parent in [1, 2] {
                let dentries = &dentries;
                scope.spawn(move || {
                    for round in 0..20_000_u64 {
                        let kind = kinds[usize::from(round % 2 == 1)];
                        let inode = InodeNo(round << 2 | parent);
                        dentries.note(InodeNo(parent), name("n"), Some(Dentry { inode, kind }));
                        if round % 3 == 0 {
                            dentries.forget(InodeNo(parent), name("n"));
                            assert_eq!(dentries.get(InodeNo(parent), name("n")), None);
                        }
                    }
                });
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let found = dentries.get(InodeNo(parent), name("n")).flatten();
                        let Some(Dentry { inode, kind }) = found else { continue };
                        assert_eq!(inode.0 & 3, parent);
                        assert_eq!(kind, kinds[usize::from(inode.0 >> 2 & 1 == 1)]);
                    }
                });
            }
        });
    }
}
