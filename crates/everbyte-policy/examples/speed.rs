//! Measures the simulator's speed: accesses a second for each policy over a Zipf trace, on one
//! core.
//!
//! ```text
//! cargo run -p everbyte-policy --release --example speed [ACCESSES [POLICY...]]
//! ```
//!
//! The trace has a tenth as many pages as accesses, Zipf with exponent 1, half of them writes; the
//! cache holds a tenth of the pages, then half of them. Under `valgrind --tool=callgrind`,
//! instructions an access do not depend on the machine's load.

#![allow(clippy::print_stdout, reason = "a program")]

use std::time::Instant;

use everbyte_policy::sim::{Kind, Spec, run};
use everbyte_policy::{Access, Op, PageAddress, PageNo, PageTrace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let accesses: u32 = arguments.next().map_or(Ok(10_000_000), |count| count.parse())?;
    let mut kinds = arguments.map(|name| name.parse()).collect::<Result<Vec<Kind>, _>>()?;
    if kinds.is_empty() {
        kinds = Kind::ALL.to_vec();
    }
    let trace = zipf(accesses, (accesses / 10).max(20));
    let pages = u32::try_from(trace.pages())?;
    for kind in kinds {
        for frames in [pages / 10, pages / 2] {
            let spec = Spec::new(frames)?;
            let start = Instant::now();
            let outcome = run(kind, &spec, &trace);
            let millions = f64::from(accesses) / 1e6 / start.elapsed().as_secs_f64();
            let hits = outcome.hit_ratio();
            println!(
                "{kind:16} {frames:8} frames {millions:6.1} M accesses/s, hit ratio {hits:.4}"
            );
        }
    }
    Ok(())
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
