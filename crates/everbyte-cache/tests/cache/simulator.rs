//! The same requests through the simulator and through the cache: the same decisions.

use std::sync::Arc;

use everbyte_cache::Settings;
use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_policy::sim::{Spec, run};
use everbyte_policy::{Access, Op, PageAddress, PageNo, PageTrace};

use crate::{Dice, PAGE, POLICIES, medium, open, settings};

const PAGES: u64 = 300;

/// Accesses of which most go to few pages, reads and small and large writes.
fn accesses() -> Vec<Access> {
    let mut dice = Dice(11);
    let access = |_| {
        let range = if dice.below(4) == 0 { PAGES } else { 40 };
        let page = dice.below(range) * dice.below(range) / range;
        let (op, len) = match dice.below(6) {
            0..=2 => (Op::Read, 4096),
            3 | 4 => (Op::Write, 1 + dice.below(512)),
            _ => (Op::Write, 4096),
        };
        let start = dice.below(4097 - len);
        let short = |number: u64| u16::try_from(number).unwrap();
        Access {
            page: PageNo(u32::try_from(page).unwrap()),
            start: short(start),
            len: short(len),
            op,
        }
    };
    (0..6000).map(access).collect()
}

#[test]
fn the_cache_does_what_the_simulator_says() {
    let accesses = accesses();
    let addresses = (0..PAGES).map(|page| PageAddress { device: 0, page }).collect();
    let requests = accesses.len() as u64;
    let trace = PageTrace { accesses: accesses.clone(), addresses, requests };
    for policy in POLICIES {
        for pages in [16, 40, 120] {
            let spec = Spec::new(pages).unwrap();
            let said = run(policy, &spec, &trace);
            let capacity = spec.capacity();
            let settings = Settings {
                policy,
                ..settings(PAGES * PAGE, capacity.dram.into(), capacity.pram.into())
            };
            let storage = Arc::new(MemoryDevice::new(PAGES * PAGE));
            let cache = open(&medium(1024, &settings), storage).unwrap();
            let mut buffer = vec![5; 4096];
            for access in &accesses {
                let at = u64::from(access.page.0) * PAGE + u64::from(access.start);
                let bytes = &mut buffer[..usize::from(access.len)];
                match access.op {
                    Op::Read => cache.read(at, bytes).unwrap(),
                    Op::Write => cache.write(at, bytes, Fua::No).unwrap(),
                }
            }
            let done = cache.stats();
            let difference = done.hits().abs_diff(said.hits()) * 1000 / requests;
            assert!(difference <= 5, "{policy}, {pages}: {} hits said, {done:?}", said.hits());
        }
    }
}
