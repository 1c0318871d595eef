//! Hits concurrent with other work: other threads act during a hit, a promotion or a decision, by
//! an SCM that lets them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use everbyte_cache::plant::Bug;
use everbyte_cache::{Cache, Settings};
use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_media::Mapped;
use everbyte_plant::plant;

use crate::watched::{IN_VAIN, LONG, Moment, Other, Watched, open};
use crate::{PAGE, medium, settings};

const PAGES: u64 = 40;

/// The bytes of a page as the backing device has them.
fn stamp(page: u64) -> [u8; 4096] {
    [u8::try_from(page + 1).unwrap(); 4096]
}

fn stamped() -> Arc<MemoryDevice> {
    let backing = MemoryDevice::new(PAGES * PAGE);
    (0..PAGES).for_each(|page| backing.write(page * PAGE, &stamp(page), Fua::No).unwrap());
    Arc::new(backing)
}

/// An empty cache before stamped pages.
fn cache(settings: &Settings) -> (Arc<Cache>, Arc<Watched>, Arc<MemoryDevice>, Arc<Mapped>) {
    let (backing, medium) = (stamped(), medium(512, settings));
    let (cache, scm) = open(&medium, Arc::<MemoryDevice>::clone(&backing));
    (cache, scm, backing, medium)
}

fn read(cache: &Cache, page: u64) -> [u8; 4096] {
    let mut found = [0; 4096];
    cache.read(page * PAGE, &mut found).unwrap();
    found
}

/// Reads a page in SCM during its eviction by another thread.
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
fn page_keeps_its_place_during_a_hit() {
    assert_eq!(read_beside_eviction(IN_VAIN), stamp(0));
    let planted = plant(Bug::MovedUnderHit);
    let found = read_beside_eviction(LONG);
    drop(planted);
    assert_eq!(found, [0; 4096], "page 0 is read where it is not any more");
}

/// Promotes a dirty page during a write of another thread. Returns its bytes.
fn write_beside_promotion() -> [u8; 4096] {
    let settings = settings(PAGES * PAGE, 2, 6);
    let (first, _, backing, medium) = cache(&settings);
    (0..8).for_each(|page| first.write(page * PAGE, &[9; 4096], Fua::No).unwrap());
    first.flush().unwrap();
    drop(first);
    // All pages are in SCM, and the policy believes the last ones to be in DRAM.
    let (cache, scm) = open(&medium, backing);
    assert_eq!(read(&cache, 7), [9; 4096]);
    let other = Arc::new(Other::default());
    let (writer, thread) = (Arc::clone(&cache), Arc::clone(&other));
    scm.at(Moment::AfterRead, move || {
        thread.acts(IN_VAIN, move || writer.write(7 * PAGE, &[1; 10], Fua::No).unwrap());
    });
    assert_eq!(cache.stats().hits_dram, 1, "the policy hears of the first hit");
    other.join();
    read(&cache, 7)
}

#[test]
fn write_during_promotion_stays() {
    let found = write_beside_promotion();
    assert_eq!((&found[..10], &found[10..]), (&[1; 10][..], &[9; 4086][..]));
}

/// Writes to a clean page and drains the cache. Returns the backing device's bytes.
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
fn write_that_dirties_a_page_is_counted() {
    assert_eq!(drain_after_write(), [0xbb; 4096]);
}

/// The lock of the state is held during a demotion, and hits need none of it. Hits that were not
/// reported in time are counted.
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
        assert!(thread.has_ended(), "hits wait for decisions");
    });
    // The policy demotes page 0.
    assert_eq!(read(&cache, 20), stamp(20));
    other.join();
    let stats = cache.stats();
    assert_eq!((stats.hits(), stats.misses), (HITS, 5), "{stats:?}");
    assert_eq!(stats.hits_dropped, HITS - 256, "a lane has room for 256");
    assert!(stats.hits_dram == HITS, "{stats:?}");
}

/// The lock of the state is not held until the last page of a large trim has left SCM, clean or dirty.
#[test]
fn large_trim_delays_no_other_request() {
    const TRIMMED: u64 = 150;
    for is_dirty in [false, true] {
        let settings = settings(2 * TRIMMED * PAGE, 2, TRIMMED);
        let backing = Arc::new(MemoryDevice::new(2 * TRIMMED * PAGE));
        let (cache, scm) = open(&medium(1024, &settings), Arc::<MemoryDevice>::clone(&backing));
        for page in 0..TRIMMED {
            cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
        }
        cache.flush().unwrap();
        if !is_dirty {
            cache.drain().unwrap();
        }
        assert_eq!(cache.stats().pages, TRIMMED);
        let (other, seen) = (Arc::new(Other::default()), Arc::new(AtomicU64::new(0)));
        let (client, thread, found) = (Arc::clone(&cache), Arc::clone(&other), Arc::clone(&seen));
        let (begins, has_begun) = mpsc::channel();
        scm.at(Moment::BeforeDiscard, move || {
            thread.acts(Duration::ZERO, move || {
                begins.send(()).unwrap();
                found.store(client.stats().pages, Ordering::SeqCst);
            });
            // However late it begins, it then waits for the lock, and is the next to have it.
            has_begun.recv().unwrap();
            std::thread::sleep(IN_VAIN);
        });
        cache.discard(0, TRIMMED * PAGE, Fua::No).unwrap();
        other.join();
        let seen = seen.load(Ordering::SeqCst);
        assert!((1..TRIMMED).contains(&seen), "{seen} pages, dirty: {is_dirty}");
        assert_eq!(cache.stats().pages, 0);
        assert_eq!(read(&cache, TRIMMED - 1), [0; 4096]);
        let mut found = [1; 4096];
        backing.read(0, &mut found).unwrap();
        assert_eq!(found, [0; 4096]);
    }
}

/// Each thread has separate pages. Every one meets the others in locks and in the policy's
/// decisions.
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
