//! Hits beside whatever else goes on: other threads act in the midst of a hit, a promotion or a decision,
//! by an SCM that lets them.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everbyte_block::BlockVolume;
use everbyte_cache::plant::Bug;
use everbyte_cache::{Cache, Settings};
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, Compound, DeviceError, Fua, MemoryDevice,
    WriteRequest,
};
use everbyte_media::Mapped;
use everbyte_plant::plant;
use everbyte_pool::format::VolumeKind;

use crate::{PAGE, identity, medium, open_pool, settings};

const PAGES: u64 = 40;

/// A moment of a request to SCM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    BeforeRead,
    AfterRead,
    /// Before several writes are made as one.
    BeforeStore,
}

type Act = Box<dyn FnOnce() + Send>;

/// SCM in one moment of which somebody acts.
struct Watched {
    volume: BlockVolume<Mapped>,
    next: Mutex<Option<(Moment, Act)>>,
}

impl Watched {
    /// Has `act` done in the next such moment.
    fn at(&self, moment: Moment, act: impl FnOnce() + Send + 'static) {
        *self.next.lock().unwrap() = Some((moment, Box::new(act)));
    }

    fn comes(&self, moment: Moment) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let act = next.take_if(|(awaited, _)| *awaited == moment);
        drop(next);
        if let Some((_, act)) = act {
            act();
        }
    }
}

impl everbyte_device::Decorator for Watched {
    type Inner = BlockVolume<Mapped>;
    const COMPOUND: Compound = Compound::Split;

    fn inner(&self) -> &Self::Inner {
        &self.volume
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.comes(Moment::BeforeRead);
        let read = self.volume.read(offset, out);
        self.comes(Moment::AfterRead);
        read
    }
}

impl AtomicWrites for Watched {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.comes(Moment::BeforeStore);
        self.volume.write_atomic(requests)
    }
}

/// The bytes of a page as the backing device has them.
fn stamp(page: u64) -> [u8; 4096] {
    [u8::try_from(page + 1).unwrap(); 4096]
}

/// Opens the cache in the pool on `medium`, with an SCM that is watched.
fn open(medium: &Arc<Mapped>, backing: &Arc<MemoryDevice>) -> (Arc<Cache>, Arc<Watched>) {
    let volume = BlockVolume::open_as(&open_pool(medium).unwrap(), "c", VolumeKind::CACHE).unwrap();
    let scm = Arc::new(Watched { volume, next: Mutex::default() });
    let backing: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(backing);
    let cache = Cache::open(Arc::<Watched>::clone(&scm), backing, &identity()).unwrap();
    (Arc::new(cache), scm)
}

fn stamped() -> Arc<MemoryDevice> {
    let backing = MemoryDevice::new(PAGES * PAGE);
    (0..PAGES).for_each(|page| backing.write(page * PAGE, &stamp(page), Fua::No).unwrap());
    Arc::new(backing)
}

/// An empty cache before stamped pages.
fn cache(settings: &Settings) -> (Arc<Cache>, Arc<Watched>, Arc<MemoryDevice>, Arc<Mapped>) {
    let (backing, medium) = (stamped(), medium(512, settings));
    let (cache, scm) = open(&medium, &backing);
    (cache, scm, backing, medium)
}

fn read(cache: &Cache, page: u64) -> [u8; 4096] {
    let mut found = [0; 4096];
    cache.read(page * PAGE, &mut found).unwrap();
    found
}

/// A thread that acts in the midst of something. With sound code it may have to wait until that is over.
#[derive(Default)]
struct Other(Mutex<Option<JoinHandle<()>>>);

impl Other {
    /// Starts it, and gives it `time` to end.
    fn acts(&self, time: Duration, act: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(act);
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < time {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.0.lock().unwrap() = Some(thread);
    }

    fn join(&self) {
        let thread = self.0.lock().unwrap().take();
        thread.expect("its moment has come").join().unwrap();
    }
}

/// A thread that has to wait is given this time in vain.
const IN_VAIN: Duration = Duration::from_millis(100);
/// A thread that need not wait has ended long before.
const LONG: Duration = Duration::from_secs(20);

/// Reads a page in SCM that another thread evicts meanwhile.
fn read_beside_eviction(time: Duration) -> [u8; 4096] {
    let (cache, scm, ..) = cache(&settings(PAGES * PAGE, 2, 6));
    (0..8).for_each(|page| assert_eq!(read(&cache, page), stamp(page)));
    let other = Arc::new(Other::default());
    let (evictor, thread) = (Arc::clone(&cache), Arc::clone(&other));
    scm.at(Moment::BeforeRead, move || {
        thread.acts(time, move || {
            (10..30).for_each(|page| assert_eq!(read(&evictor, page), stamp(page)))
        });
    });
    let found = read(&cache, 0);
    other.join();
    assert_eq!(cache.stats().hits_scm, 1, "page 0 was in SCM");
    found
}

#[test]
fn a_page_stays_where_it_is_until_a_hit_is_served() {
    assert_eq!(read_beside_eviction(IN_VAIN), stamp(0));
    let planted = plant(Bug::MovedUnderHit);
    let found = read_beside_eviction(LONG);
    drop(planted);
    assert_eq!(found, [0; 4096], "page 0 is read where it is not any more");
}

/// Promotes a dirty page that another thread writes to meanwhile. Returns its bytes.
fn write_beside_promotion(time: Duration) -> [u8; 4096] {
    let settings = settings(PAGES * PAGE, 2, 6);
    let (first, _, backing, medium) = cache(&settings);
    (0..8).for_each(|page| first.write(page * PAGE, &[9; 4096], Fua::No).unwrap());
    first.flush().unwrap();
    drop(first);
    // All pages are in SCM, and the policy believes the last ones to be in DRAM.
    let (cache, scm) = open(&medium, &backing);
    assert_eq!(read(&cache, 7), [9; 4096]);
    let other = Arc::new(Other::default());
    let (writer, thread) = (Arc::clone(&cache), Arc::clone(&other));
    scm.at(Moment::AfterRead, move || {
        thread.acts(time, move || writer.write(7 * PAGE, &[1; 10], Fua::No).unwrap());
    });
    assert_eq!(cache.stats().hits_dram, 1, "the policy hears of the first hit");
    other.join();
    read(&cache, 7)
}

#[test]
fn what_is_written_while_a_page_is_promoted_stays() {
    let found = write_beside_promotion(IN_VAIN);
    assert_eq!((&found[..10], &found[10..]), (&[1; 10][..], &[9; 4086][..]));
    let planted = plant(Bug::PromotedBesideWrites);
    let found = write_beside_promotion(LONG);
    drop(planted);
    assert_eq!(found, [9; 4096], "the planted mistake loses the write");
}

/// Writes to a clean page and drains the cache. Returns what the backing device has.
fn drain_after_write() -> [u8; 4096] {
    let (cache, _, backing, _) = cache(&settings(PAGES * PAGE, 2, 6));
    assert_eq!(read(&cache, 3), stamp(3));
    cache.write(3 * PAGE, &[0xaa; 4096], Fua::No).unwrap();
    cache.write(3 * PAGE, &[0xbb; 4096], Fua::No).unwrap();
    cache.drain().unwrap();
    let mut found = [0; 4096];
    backing.read(3 * PAGE, &mut found).unwrap();
    found
}

#[test]
fn a_write_that_makes_a_page_dirty_is_counted() {
    assert_eq!(drain_after_write(), [0xbb; 4096]);
    let planted = plant(Bug::DirtyUncounted);
    assert_eq!(drain_after_write(), stamp(3));
    drop(planted);
}

/// The lock of the state is held while a page is demoted, and hits need none of it. What the policy could
/// not hear of in time is counted.
#[test]
fn hits_go_on_while_another_thread_decides() {
    const HITS: u64 = 1000;
    let (cache, scm, ..) = cache(&settings(PAGES * PAGE, 4, 12));
    (0..4).for_each(|page| cache.write(page * PAGE, &stamp(page), Fua::No).unwrap());
    let other = Arc::new(Other::default());
    let (client, thread) = (Arc::clone(&cache), Arc::clone(&other));
    scm.at(Moment::BeforeStore, move || {
        thread.acts(LONG, move || {
            for turn in 0..HITS / 2 {
                let page = 1 + turn % 3;
                assert_eq!(read(&client, page), stamp(page));
                client.write(page * PAGE, &stamp(page), Fua::No).unwrap();
            }
        });
        assert!(
            thread.0.lock().unwrap().as_ref().unwrap().is_finished(),
            "hits wait for decisions"
        );
    });
    // The policy demotes page 0.
    assert_eq!(read(&cache, 20), stamp(20));
    other.join();
    let stats = cache.stats();
    assert_eq!((stats.hits(), stats.misses), (HITS, 5), "{stats:?}");
    assert_eq!(stats.hits_untold, HITS - 256, "a lane has room for 256");
    assert!(stats.hits_dram == HITS, "{stats:?}");
}

/// Each thread has pages of its own; every one meets the others in locks and in the policy's decisions.
#[test]
fn every_thread_reads_what_it_wrote() {
    const THREADS: u64 = 4;
    for (dram, scm) in [(2, 6), (8, 12), (12, 40)] {
        let (cache, _, backing, _) = cache(&settings(PAGES * PAGE, dram, scm));
        let work = |thread: u64| {
            let mut dice = crate::Dice(thread);
            let own = usize::try_from(PAGES / THREADS).unwrap();
            let mut expected: Vec<_> =
                (0..PAGES / THREADS).map(|n| stamp(n * THREADS + thread)).collect();
            for _ in 0..1500 {
                let at = usize::try_from(dice.below(own as u64)).unwrap();
                let page = at as u64 * THREADS + thread;
                match dice.below(100) {
                    0 => cache.flush().unwrap(),
                    1 => drop(cache.sweep().unwrap()),
                    2 => {
                        cache.discard(page * PAGE, PAGE, Fua::No).unwrap();
                        expected[at].fill(0);
                    }
                    3..=40 => {
                        let start = usize::try_from(dice.below(4096)).unwrap();
                        let len = usize::try_from(1 + dice.below(4096)).unwrap();
                        let data = dice.bytes(len);
                        let data = &data[..data.len().min(4096 - start)];
                        cache.write(page * PAGE + start as u64, data, Fua::No).unwrap();
                        expected[at][start..start + data.len()].copy_from_slice(data);
                    }
                    _ => assert!(read(&cache, page) == expected[at], "page {page}"),
                }
            }
            expected
        };
        let expected: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        cache.drain().unwrap();
        let mut found = [0; 4096];
        for (page, at) in (0..PAGES).zip((0..).flat_map(|at| [at; 4])) {
            backing.read(page * PAGE, &mut found).unwrap();
            let expected = &expected[usize::try_from(page % THREADS).unwrap()][at];
            assert!(found == *expected, "{dram} and {scm} pages: page {page}");
        }
        assert_eq!(cache.stats().dirty_pages, 0);
    }
}
