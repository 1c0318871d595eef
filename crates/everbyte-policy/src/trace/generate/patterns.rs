//! Plain patterns, for tests and measurements.

use std::io;

use super::random::{Random, Zipf};
use super::script::PAGE;
use super::{GenerateOptions, Sink};
use crate::trace::{Request, RequestOp};

/// ns between two requests.
const GAP_NS: u64 = 10_000;

/// Sizes of writes that are smaller than a page.
const PARTS: [u64; 4] = [64, 256, 512, 1024];

/// Pages by Zipf's law, the popular ones spread by chance.
pub(super) fn zipf(options: &GenerateOptions, requests: u64, sink: Sink<'_>) -> io::Result<()> {
    let mut random = Random::new(options.seed);
    let popularity = Zipf::new(u64::from(options.pages), options.skew);
    // Popularity must not follow the order of sectors, which would favour ordered policies.
    let pages = shuffled(options.pages, &mut random);
    for number in 0..requests {
        let rank = usize::try_from(popularity.rank(&mut random)).unwrap_or(0);
        let page = u64::from(pages[rank]);
        let (op, start, len) = match random.below(10) {
            0..7 => (RequestOp::Read, 0, PAGE),
            7 => (RequestOp::Write, 0, PAGE),
            _ => {
                let len = PARTS[usize::try_from(random.below(4)).unwrap_or(0)];
                (RequestOp::Write, random.below(PAGE / len) * len, len)
            }
        };
        let offset = page * PAGE + start;
        sink(&Request { time_ns: number * GAP_NS, op, file: 0, offset, len }, "zipf")?;
    }
    Ok(())
}

/// Returns the numbers below `end` in a random order (Durstenfeld, CACM 7(7), 1964).
fn shuffled(end: u32, random: &mut Random) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..end).collect();
    for last in (1..numbers.len()).rev() {
        let other = usize::try_from(random.below(last as u64 + 1)).unwrap_or(0);
        numbers.swap(last, other);
    }
    numbers
}

/// Reads pages in order: the same round over and over, or pages beyond the last one.
pub(super) fn in_order(
    options: &GenerateOptions,
    requests: u64,
    is_loop: bool,
    sink: Sink<'_>,
) -> io::Result<()> {
    let name = if is_loop { "loop" } else { "scan" };
    for number in 0..requests {
        let page = if is_loop { number % u64::from(options.pages) } else { number };
        let (time_ns, offset) = (number * GAP_NS, page * PAGE);
        sink(&Request { time_ns, op: RequestOp::Read, file: 0, offset, len: PAGE }, name)?;
    }
    Ok(())
}
