//! Other sizes, and moved backing devices.

use std::sync::Arc;

use everbyte_block::BlockVolume;
use everbyte_cache::{Cache, CacheError, Change, Identity, Settings};
use everbyte_device::{
    BackingIdentity, BlockDevice, FaultDevice, Faults, FileIdentity, Fua, MemoryDevice,
};
use everbyte_media::Mapped;
use everbyte_pool::format::VolumeKind;

use crate::{Dice, PAGE, POLICIES, identity, medium, open, open_pool, resize, settings};

const PAGES: u64 = 64;

fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.geometry().size_bytes).unwrap()];
    device.read(0, &mut bytes).unwrap();
    bytes
}

fn backing_of(size_bytes: u64) -> MemoryDevice {
    let backing = MemoryDevice::new(size_bytes);
    let bytes = Dice(9).bytes(usize::try_from(size_bytes).unwrap());
    backing.write(0, &bytes, Fua::No).unwrap();
    backing
}

/// Writes and reads here and there, and keeps the model in step.
fn use_it(cache: &Cache, model: &mut [u8], seed: u64) {
    let mut dice = Dice(seed);
    for _ in 0..150 {
        let at = dice.below(model.len() as u64 - 5000);
        let len = usize::try_from(1 + dice.below(5000)).unwrap();
        let here = usize::try_from(at).unwrap();
        if dice.below(3) == 0 {
            let mut found = vec![0; len];
            cache.read(at, &mut found).unwrap();
            assert!(found == model[here..here + len]);
        } else {
            let data = dice.bytes(len);
            cache.write(at, &data, Fua::No).unwrap();
            model[here..here + len].copy_from_slice(&data);
        }
    }
}

fn sizes(dram_pages: u64, scm_pages: u64) -> Change {
    let (dram_bytes, scm_bytes) = (Some(dram_pages * PAGE), Some(scm_pages * PAGE));
    Change { dram_bytes, scm_bytes, follows_backing: false }
}

#[test]
fn cache_of_any_policy_shrinks_and_grows() {
    for policy in POLICIES {
        let backing = Arc::new(backing_of(PAGES * PAGE));
        let medium = medium(1024, &Settings { policy, ..settings(PAGES * PAGE, 8, 24) });
        let mut model = bytes_of(&*backing);
        for (round, (dram, scm)) in (0..).zip([(8, 24), (2, 3), (1, 40), (16, 16), (1, 1)]) {
            let shared = || Arc::<MemoryDevice>::clone(&backing) as Arc<dyn BlockDevice>;
            let resized = resize(&medium, shared(), &sizes(dram, scm)).unwrap();
            assert_eq!((resized.dram_bytes, resized.scm_bytes), (dram * PAGE, scm * PAGE));
            let cache = open(&medium, shared()).unwrap();
            assert_eq!(*cache.settings(), resized);
            let stats = cache.stats();
            assert!(stats.pages <= dram + scm, "{policy}: {stats:?}");
            assert_eq!(stats.pending_pages, 0, "{policy}");
            assert!(bytes_of(&cache) == model, "{policy}, round {round}");
            use_it(&cache, &mut model, round);
            cache.flush().unwrap();
        }
        let cache = open(&medium, Arc::<MemoryDevice>::clone(&backing)).unwrap();
        cache.drain().unwrap();
        assert!(bytes_of(&*backing) == model, "{policy}");
    }
}

#[test]
fn failing_backing_prevents_shrinking() {
    let backing = Arc::new(FaultDevice::new(Arc::new(backing_of(PAGES * PAGE))));
    let shared = || Arc::<FaultDevice>::clone(&backing) as Arc<dyn BlockDevice>;
    let medium = medium(1024, &settings(PAGES * PAGE, 8, 24));
    let cache = open(&medium, shared()).unwrap();
    let mut model = bytes_of(&cache);
    use_it(&cache, &mut model, 1);
    cache.flush().unwrap();
    drop(cache);
    backing.fail(Faults { writes: true, ..Faults::NONE });
    let error = resize(&medium, shared(), &sizes(1, 2)).unwrap_err();
    assert!(error.contains("could not be written back"), "{error}");
    let cache = open(&medium, shared()).unwrap();
    assert_eq!(cache.settings().scm_bytes, 24 * PAGE);
    drop(cache);
    // Pages fit into a larger one, so it needs no backing device.
    resize(&medium, shared(), &sizes(10, 30)).unwrap();
    backing.fail(Faults::NONE);
    resize(&medium, shared(), &sizes(1, 2)).unwrap();
    assert!(bytes_of(&open(&medium, shared()).unwrap()) == model);
}

#[test]
fn cache_grows_with_backing_on_request() {
    for (old, new) in [(20 * PAGE, 50 * PAGE), (20 * PAGE + 700, 5000 * PAGE + 1)] {
        let medium = medium(8192, &settings(old, 4, 12));
        let small = Arc::new(MemoryDevice::new(old));
        let full = backing_of(new);
        small.write(0, &bytes_of(&full)[..usize::try_from(old).unwrap()], Fua::No).unwrap();
        let cache = open(&medium, small).unwrap();
        // The last page enters the cache, with its existing part.
        let mut model = bytes_of(&cache);
        use_it(&cache, &mut model, 3);
        cache.write(old - 1, &[77], Fua::No).unwrap();
        *model.last_mut().unwrap() = 77;
        cache.flush().unwrap();
        drop(cache);
        let full = Arc::new(full);
        let shared = || Arc::<MemoryDevice>::clone(&full) as Arc<dyn BlockDevice>;
        let error = open(&medium, shared()).unwrap_err();
        assert!(error.contains("bytes and has"), "{error}");
        let error = resize(&medium, shared(), &sizes(4, 8)).unwrap_err();
        assert!(error.contains("bytes and has"), "{error}");
        let follow = Change { follows_backing: true, ..Change::default() };
        resize(&medium, shared(), &follow).unwrap();
        let cache = open(&medium, shared()).unwrap();
        let expected = [&model[..], &bytes_of(&backing_of(new))[model.len()..]].concat();
        assert!(bytes_of(&cache) == expected);
        cache.write(new - 1, &[88], Fua::No).unwrap();
        cache.drain().unwrap();
        assert_eq!(bytes_of(&*full).last(), Some(&88));
        let error = resize(&medium, Arc::new(MemoryDevice::new(old)), &follow).unwrap_err();
        assert!(error.contains("bytes and has"), "{error}");
    }
}

/// Moves the cache to `backing`, found as an identity. Returns the outcome.
fn moved(
    medium: &Arc<Mapped>,
    backing: &dyn BlockDevice,
    found: &Identity,
) -> Result<Settings, CacheError> {
    let pool = open_pool(medium).unwrap();
    let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
    Cache::move_backing(volume, backing, found)
}

fn there(serial: &str) -> Identity {
    Identity { kind: "memory".into(), name: "there".into(), serial: serial.into(), backing: None }
}

/// A cache with a serial, some clean pages and a dirty one.
fn used(clean_pages: u64) -> (Arc<Mapped>, Arc<MemoryDevice>) {
    let here = Identity { serial: "7".into(), ..identity() };
    let medium = medium(1024, &Settings { backing: here.clone(), ..settings(PAGES * PAGE, 1, 30) });
    let backing = Arc::new(backing_of(PAGES * PAGE));
    let pool = open_pool(&medium).unwrap();
    let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
    let cache = Cache::open(volume, Arc::<MemoryDevice>::clone(&backing) as _, &here).unwrap();
    let mut dice = Dice(3);
    for page in 0..clean_pages {
        cache.write(page * PAGE, &dice.bytes(300), Fua::Yes).unwrap();
    }
    cache.drain().unwrap();
    cache.write(40 * PAGE, &[1; 4096], Fua::No).unwrap();
    cache.write(41 * PAGE, &[1; 4096], Fua::No).unwrap();
    cache.flush().unwrap();
    drop(cache);
    (medium, backing)
}

#[test]
fn serial_or_bytes_prove_moved_backing() {
    let (medium, backing) = used(0);
    assert_eq!(moved(&medium, &*backing, &there("7")).unwrap().backing, there("7"));
    let error = moved(&medium, &*backing, &there("8")).unwrap_err();
    assert!(matches!(error, CacheError::NoProof { .. }), "{error}");
    let error = moved(&medium, &MemoryDevice::new(PAGES * PAGE + 1), &there("7")).unwrap_err();
    assert!(matches!(error, CacheError::OtherSize { .. }), "{error}");

    let (medium, backing) = used(20);
    for (changed, serial) in [(2, "7"), (2, "8"), (19, "8")] {
        let other = MemoryDevice::new(PAGES * PAGE);
        other.write(0, &bytes_of(&*backing), Fua::No).unwrap();
        other.write(changed * PAGE + 5, &[0], Fua::No).unwrap();
        let error = moved(&medium, &other, &there(serial)).unwrap_err();
        assert!(matches!(error, CacheError::OtherBytes { .. }), "{error}");
        assert!(error.to_string().contains(&format!("byte {}", changed * PAGE)), "{error}");
    }
    // A copy of another kind in another place.
    let copy = MemoryDevice::new(PAGES * PAGE);
    copy.write(0, &bytes_of(&*backing), Fua::No).unwrap();
    let place = Identity { kind: "nbd".into(), ..there("") };
    assert_eq!(moved(&medium, &copy, &place).unwrap().backing, place);
    let pool = open_pool(&medium).unwrap();
    let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
    let copy = Arc::new(copy);
    let cache = Cache::open(volume, Arc::<MemoryDevice>::clone(&copy) as _, &place).unwrap();
    cache.drain().unwrap();
    assert_eq!(bytes_of(&*copy)[40 * 4096..41 * 4096], [1; 4096]);
}

/// Opens the cache of `used` before `backing`, found as `identity`.
fn opened(
    medium: &Arc<Mapped>,
    backing: &Arc<MemoryDevice>,
    identity: &Identity,
) -> Result<Cache, CacheError> {
    let pool = open_pool(medium).unwrap();
    let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
    Cache::open(volume, Arc::<MemoryDevice>::clone(backing) as _, identity)
}

fn file(inode: u64, born_ns: Option<u64>) -> Option<BackingIdentity> {
    Some(BackingIdentity::File(FileIdentity { device: 1, file_system: 1, inode, born_ns }))
}

#[test]
fn bytes_detect_replaced_backing() {
    let here = Identity { serial: "7".into(), ..identity() };
    let (medium, backing) = used(20);
    let cache = opened(&medium, &backing, &here).unwrap();
    assert_eq!(cache.stats().unproven_pages, 0, "twenty clean pages agree");
    drop(cache);
    let other = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let error = opened(&medium, &other, &here).unwrap_err();
    assert!(matches!(error, CacheError::OtherBytes { .. }), "{error}");
    let error = resize(&medium, other, &sizes(2, 20)).unwrap_err();
    assert!(error.contains("belongs to") || error.contains("other bytes"), "{error}");
    // Unreadable bytes prove nothing, and prevent no opening of a cache.
    let faulty = Arc::new(FaultDevice::new(backing));
    faulty.fail(Faults { reads: true, ..Faults::NONE });
    let pool = open_pool(&medium).unwrap();
    let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
    let cache = Cache::open(volume, faulty, &here).unwrap();
    assert_eq!(cache.stats().unproven_pages, 2);
}

#[test]
fn unproven_backing_device_is_reported() {
    let here = Identity { serial: "7".into(), ..identity() };
    let (medium, backing) = used(0);
    let cache = opened(&medium, &backing, &here).unwrap();
    assert_eq!(cache.stats().unproven_pages, 2);
}

#[test]
fn file_with_reused_inode_is_refused() {
    let here = |born_ns| Identity { backing: file(7, born_ns), ..identity() };
    let settings = Settings { backing: here(Some(1)), ..settings(PAGES * PAGE, 1, 30) };
    let medium = medium(1024, &settings);
    let backing = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let cache = opened(&medium, &backing, &here(Some(1))).unwrap();
    cache.write(0, &[1; 4096], Fua::Yes).unwrap();
    drop(cache);
    let cache = opened(&medium, &backing, &here(Some(1))).unwrap();
    assert_eq!(cache.stats().unproven_pages, 0, "a birth time proves it");
    drop(cache);
    let error = opened(&medium, &backing, &here(Some(2))).unwrap_err();
    assert!(matches!(error, CacheError::OtherBacking { .. }), "{error}");
    let moved = Identity { name: "there".into(), ..here(Some(1)) };
    assert!(opened(&medium, &backing, &moved).is_ok(), "another name of the same file");
    let unknown = opened(&medium, &backing, &here(None)).unwrap();
    assert_eq!(unknown.stats().unproven_pages, 1);
    drop(unknown);
    // As XFS has it, whose identifier is made of the device's number.
    let renumbered = FileIdentity { device: 2, file_system: 2, inode: 7, born_ns: Some(1) };
    let renumbered = Identity { backing: Some(BackingIdentity::File(renumbered)), ..identity() };
    let cache = opened(&medium, &backing, &renumbered).unwrap();
    assert_eq!(cache.stats().unproven_pages, 1);
}

#[test]
fn uniform_bytes_prove_nothing() {
    let medium = medium(1024, &settings(PAGES * PAGE, 1, 30));
    let cache = open(&medium, Arc::new(MemoryDevice::new(PAGES * PAGE))).unwrap();
    for page in 0..20 {
        cache.write(page * PAGE, &[0; 100], Fua::No).unwrap();
    }
    cache.drain().unwrap();
    drop(cache);
    let other = MemoryDevice::new(PAGES * PAGE);
    let error = moved(&medium, &other, &there("")).unwrap_err();
    assert!(matches!(error, CacheError::NoProof { matched: 0, .. }), "{error}");
}
