//! Measures the costs of policies: processor time an access in the simulator, and bytes of DRAM of
//! their tables for each page of a cache.
//!
//! ```text
//! cargo run -p everbyte-policy --release --example speed [ACCESSES [POLICY...]]
//! ```
//!
//! The trace has a tenth as many pages as accesses, Zipf with exponent 1, half of them writes. The
//! cache holds a tenth of the pages, then half of them. Times are processor times of the
//! simulation, independent of other programs. Under `valgrind --tool=callgrind`, instructions an
//! access do not depend on the machine's load at all.
//!
//! DRAM is the growth of the process from no cache to a full cache of a million pages: tables of a
//! cache in use, with its shadows, and without the bytes of the pages. At 2^20 pages hash tables
//! have just been doubled, the worst case; a little below they take half. Each policy runs in a
//! separate process.

#![allow(clippy::print_stdout, reason = "a program")]

use std::process::Command;
use std::time::Instant;

use everbyte_policy::policy::{
    Arc, Capacity, Clock, ClockDwf, ClockMigration, Everbyte, FourQueue, Hybrid, HybridConfig, Lru,
    MClock, Pdram, Policy, S3Fifo, Sieve, Sparse, Spitfire, SpitfireConfig, WTinyLfu,
};
use everbyte_policy::sim::{Costs, Kind, Spec, run};
use everbyte_policy::{Access, Op, PageAddress, PageNo, PageTrace};

type Error = Box<dyn std::error::Error>;

/// Option with which the program asks itself for the DRAM of one policy.
const DRAM: &str = "--dram";
/// Pages of the cache whose DRAM is measured.
const CACHE_PAGES: u32 = 1 << 20;
/// Bytes of a page of the process's memory.
const MEMORY_PAGE_BYTES: u64 = 4096;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|argument| argument == DRAM).is_some() {
        let kind = arguments.next().ok_or("a policy is missing")?.parse()?;
        println!("{:.1}", dram_bytes_a_page(kind)?);
        return Ok(());
    }
    let accesses: u32 = arguments.next().map_or(Ok(10_000_000), |count| count.parse())?;
    let mut kinds = arguments.map(|name| name.parse()).collect::<Result<Vec<Kind>, _>>()?;
    if kinds.is_empty() {
        kinds = Kind::ALL.to_vec();
    }
    let trace = zipf(accesses, (accesses / 10).max(20));
    let pages = u32::try_from(trace.pages())?;
    for kind in kinds {
        let mut line = format!("{kind:18}");
        for frames in [pages / 10, pages / 2] {
            let spec = Spec::new(frames)?;
            let start = processor_ns()?;
            let outcome = run(kind, &spec, &trace);
            let ns = (processor_ns()? - start) / f64::from(accesses);
            let hits = outcome.hit_ratio();
            line += &format!(" {frames} frames: {ns:6.1} ns an access, hit ratio {hits:.4};");
        }
        println!("{line} {} bytes of DRAM a page", asked_for_dram(kind)?);
    }
    Ok(())
}

/// Returns the processor time of this thread; if the system does not report it, the elapsed time.
fn processor_ns() -> Result<f64, Error> {
    thread_local!(static BEGIN: Instant = Instant::now());
    match std::fs::read_to_string("/proc/thread-self/schedstat") {
        Ok(text) => Ok(text.split(' ').next().unwrap_or_default().parse()?),
        Err(_) => Ok(BEGIN.with(|begin| begin.elapsed().as_secs_f64() * 1e9)),
    }
}

/// Asks a new process, whose memory nothing was freed in yet.
fn asked_for_dram(kind: Kind) -> Result<String, Error> {
    if kind == Kind::Belady {
        return Ok("-".to_owned());
    }
    let output = Command::new(std::env::current_exe()?).args([DRAM, kind.name()]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn resident_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).ok_or("no size of memory")?.parse()?;
    Ok(pages * MEMORY_PAGE_BYTES)
}

fn dram_bytes_a_page(kind: Kind) -> Result<f64, Error> {
    let capacity = Spec::new(CACHE_PAGES)?.capacity();
    let config = HybridConfig::default();
    match kind {
        Kind::Everbyte => {
            grown(|| Everbyte::new(Sparse, capacity, config.small_write_bytes, Costs::default()))
        }
        Kind::Hybrid | Kind::HybridDrop | Kind::HybridDropUnused => {
            grown(|| Hybrid::new(Sparse, capacity, config))
        }
        Kind::ClockMigration => grown(|| ClockMigration::new(Sparse, capacity)),
        Kind::ClockDwf => grown(|| ClockDwf::new(Sparse, capacity)),
        Kind::MClock => grown(|| MClock::new(Sparse, capacity)),
        Kind::FourQueue => grown(|| FourQueue::new(Sparse, capacity)),
        Kind::Pdram => grown(|| Pdram::new(Sparse, capacity)),
        Kind::Spitfire => grown(|| Spitfire::new(Sparse, capacity, SpitfireConfig::default())),
        Kind::Lru => grown(|| Lru::new(Sparse, capacity)),
        Kind::Clock => grown(|| Clock::new(Sparse, capacity)),
        Kind::Sieve => grown(|| Sieve::new(Sparse, capacity)),
        Kind::S3Fifo => grown(|| S3Fifo::new(Sparse, capacity)),
        Kind::Arc => grown(|| Arc::new(Sparse, capacity)),
        Kind::WTinyLfu => grown(|| WTinyLfu::new(Sparse, capacity)),
        Kind::Belady => Err("it is for simulations only".into()),
    }
}

/// Fills a cache that `make` makes, with reads and writes of pages all over a device eight times as
/// large, some of them again.
fn grown<P: Policy>(make: impl FnOnce() -> P) -> Result<f64, Error> {
    let before = resident_bytes()?;
    let mut policy = make();
    let Capacity { dram, scm } = policy.directory().capacity();
    let mut actions = Vec::new();
    for number in 0..CACHE_PAGES * 3 {
        // Every fourth access is to a page of a short while ago.
        let number = if number % 4 == 3 { number - 1000.min(number) } else { number };
        let page = PageNo(number.wrapping_mul(2_654_435_761) % (CACHE_PAGES * 8));
        let op = if number % 3 == 0 { Op::Write } else { Op::Read };
        policy.access(Access { page, start: 0, len: 512, op }, &mut actions);
        actions.clear();
    }
    let grown = resident_bytes()?.saturating_sub(before);
    #[allow(clippy::cast_precision_loss, reason = "an average")]
    Ok(grown as f64 / f64::from(dram + scm))
}

/// Makes a trace with popularity by rank to the power of -1, ranks scattered over the pages.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ranks are below the number of pages"
)]
fn zipf(accesses: u32, pages: u32) -> PageTrace {
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let draw = |random: &mut dyn FnMut() -> u64| {
        // The inverse of the harmonic numbers' integral: rank = pages^u - 1.
        let uniform = f64::from((random() >> 32) as u32) / f64::from(u32::MAX);
        let rank = (f64::from(pages).powf(uniform) - 1.0) as u32;
        (u64::from(rank.min(pages - 1)) * 2_654_435_761 % u64::from(pages)) as u32
    };
    let access = |_| {
        let page = PageNo(draw(&mut random));
        let bits = random();
        let len = if bits & 2 == 0 { 4096 } else { 256 };
        Access { page, start: 0, len, op: if bits & 1 == 0 { Op::Read } else { Op::Write } }
    };
    PageTrace {
        accesses: (0..accesses).map(access).collect(),
        addresses: (0..u64::from(pages)).map(|page| PageAddress { device: 0, page }).collect(),
        requests: u64::from(accesses),
    }
}
