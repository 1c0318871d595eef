//! The version of the simulator. It distinguishes outcomes of different programs.

/// Version of the simulator. It must be raised with every change of a policy, the counting, the
/// costs or a trace reader that changes an outcome of some trace, so that stored outcomes can be
/// distinguished from those of later versions.
pub const SIMULATOR_VERSION: u32 = 2;

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::io::Cursor;
    use std::path::Path;

    use super::*;
    use crate::access::PageTrace;
    use crate::sim::{Kind, Outcome, Spec, run};
    use crate::trace::{PageLimits, ReadOptions, TraceReader, read_pages};

    /// Requests of the trace.
    const REQUESTS: u64 = 20_000;
    /// Pages of the caches.
    const SIZES: [u32; 2] = [100, 700];

    /// The output function of `SplitMix64`.
    fn mixed(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A trace of pages that are used often, a loop, a scan and chance, with gaps between some, made without
    /// fractions.
    fn trace() -> PageTrace {
        let mut text = String::new();
        for number in 0..REQUESTS {
            let chance = mixed(number);
            let page = match chance % 10 {
                0..5 => (chance >> 8) % 60,
                5 | 6 => 100 + number % 300,
                7 => 500 + number / 20,
                _ => (chance >> 8) % 1500,
            };
            let op = if (chance >> 20) % 9 < 4 { 'W' } else { 'R' };
            let file = if page < 800 { 'a' } else { 'b' };
            let page = page + page / 4 * 50;
            let (offset, len) = match (chance >> 32) % 4 {
                0 => (page * 4096, 4096),
                1 => (page * 4096 + 3000, 5000),
                _ => (page * 4096 + (chance >> 40) % 3000, 1 + (chance >> 50) % 900),
            };
            writeln!(text, "{number},{op},{file},{offset},{len}").unwrap();
        }
        let source = Cursor::new(text.into_bytes());
        let mut reader = TraceReader::new("trace", source, &ReadOptions::default()).unwrap();
        read_pages(&mut reader, PageLimits::default()).unwrap()
    }

    /// Fowler, Noll, Vo: FNV-1a of 64 bits.
    fn hash(text: &str) -> u64 {
        text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        })
    }

    /// Returns a line of an outcome: the main figures, and a hash of all of it.
    fn line(outcome: &Outcome) -> String {
        let (scm, backing) = (&outcome.scm, &outcome.backing);
        format!(
            "{} {} hits={} fetched={} written={} scm_bytes={} wear_max={} time_ns={:.0} all={:016x}\n",
            outcome.policy,
            outcome.spec.pages,
            outcome.hits(),
            backing.pages_read,
            backing.pages_written,
            scm.bytes,
            outcome.wear.bytes_max,
            outcome.elapsed_with_drain_ns,
            hash(&format!("{outcome:?}"))
        )
    }

    #[test]
    fn outcomes_are_those_of_this_version() {
        let trace = trace();
        let mut text = format!("version {SIMULATOR_VERSION}\n");
        for kind in Kind::ALL {
            for pages in SIZES {
                text += &line(&run(kind, &Spec::new(pages).unwrap(), &trace));
            }
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sim/outcomes.txt");
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        if text == stored {
            return;
        }
        let is_raised = text.lines().next() != stored.lines().next();
        if is_raised && std::env::var_os("EVERBYTE_BLESS").is_some() {
            std::fs::write(&path, text).unwrap();
            return;
        }
        let mut lines = text.lines().zip(stored.lines().chain(std::iter::repeat("nothing")));
        let (found, was) = lines.find(|(found, was)| found != was).unwrap_or_default();
        panic!(
            "outcomes of the simulator differ from the stored ones:\n  {found}\n  {was}\nIf this is intended, raise SIMULATOR_VERSION in {}, so that no sweep mixes old and new results, and then run\n  EVERBYTE_BLESS=1 cargo test -p everbyte-policy outcomes",
            file!()
        );
    }
}
