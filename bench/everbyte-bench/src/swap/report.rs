//! The figures of the swap suite, with the paper's figures beside ours.

use super::access::Pattern;
use super::allocators::Way;
use super::ft::Class;
use super::kernel::KernelSwap;
use super::serve::Program;
use super::subjects::Subject;
use super::{crowded_paging, direct, fill, paging, serving, solving, targets};
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

const PATTERNS: &str = "Memory of which half may be in DRAM. Processor time is that of the \
                        process and of the kernel's threads; dram and mmap-tmpfs page nothing and \
                        are the floor. Each page is stored to, or loaded and compared, at one word.";
const SOLVING: &str = "Seconds for FT of the NAS Parallel Benchmarks, every checksum verified. The \
                       paper's Figure 2 is FT with about 1.4 GB in 1 GB of memory (here FT.B, 1000 \
                       MiB): 1029 s with stock swap and 813 s with its own, 21% less, on another \
                       machine. region-order8 has the paper's slot tree, region-on-flash a store as \
                       slow as a flash drive.";
const SERVING: &str = "redis-server under redis-benchmark and memcached under clients of our own, with half of the \
                       memory that they take (dram: all of it). Requests a second, and microseconds. Every value \
                       that was stored is compared.";

/// Returns all figures; FT's are those of `classes`.
pub(super) fn figures(classes: &[Class]) -> Vec<Figure> {
    let mut figures = vec![slots(1), slots(2), crowded()];
    figures.extend([
        patterns("Paging: processor time of a page in and out", paging::CPU_PER_PAGE),
        patterns("Paging: processor time of an access", metric::CPU),
        patterns("Paging: time of an access", metric::TIME),
    ]);
    figures.extend(direct::Touch::BOTH.map(break_even));
    figures.push(long_loads());
    figures.extend(classes.iter().map(|class| solved(*class)));
    figures.extend([
        served("Servers: requests a second", metric::RATE),
        served("Servers: the time within which 99 of 100 requests are answered", serving::P99),
    ]);
    figures.extend([figure_2(), verdicts()]);
    figures
}

/// Names of subjects, and of the kinds of kernel swap that are always measured.
fn names(subjects: &[Subject]) -> Vec<String> {
    let kernel = KernelSwap::SOME.map(KernelSwap::name);
    subjects.iter().map(|subject| subject.name()).chain(kernel).map(str::to_owned).collect()
}

fn figure_2() -> Figure {
    let mut subjects = vec!["paper-stock-swap".to_owned(), "paper-slot-tree".to_owned()];
    subjects.extend(names(&[Subject::Sigbus, Subject::Order8]));
    Figure {
        title: "Figure 2 of the paper, remade".into(),
        explanation:
            "Seconds for FT with about 1.4 GB in 1000 MiB of memory: as published (1029 with stock \
                      swap, 813 with the slot tree, on a machine of 2010), and here."
                .into(),
        subjects,
        workloads: vec![(targets::PAPER.to_owned(), "FT, 1000 MiB of DRAM".to_owned())],
        metric: solving::SECONDS,
        shape: Shape::Bars,
        logarithmic: true,
    }
}

fn verdicts() -> Figure {
    let titles = targets::titles().into_iter();
    Figure {
        title: "Targets and claims, one by one".into(),
        explanation:
            "Each figure of ours as a multiple of the smallest of those that it is compared with, \
                      all from this run; below 1 is less."
                .into(),
        subjects: vec![targets::SUBJECT.to_owned()],
        workloads: titles.map(|title| (title.to_owned(), title.to_owned())).collect(),
        metric: targets::RATIO,
        shape: Shape::Verdicts,
        logarithmic: false,
    }
}

fn slots(threads: usize) -> Figure {
    let label = |permille: u64| format!("{}.{}%", permille / 10, permille % 10);
    Figure {
        title: format!("Time to take a slot, {threads} threads"),
        explanation: "Nanoseconds by how full the space is. Random slots are freed before.".into(),
        subjects: Way::ALL.map(|way| way.name().to_owned()).to_vec(),
        workloads: fill::FILLS.map(|fill| (fill::title(fill, threads), label(fill))).to_vec(),
        metric: metric::TIME,
        shape: Shape::Lines,
        logarithmic: true,
    }
}

fn crowded() -> Figure {
    let label = |permille: u64| format!("{}.{}% full", permille / 10, permille % 10);
    let fills = crowded_paging::FILLS;
    Figure {
        title: "Searches for slots inside a paging load".into(),
        explanation: "Share of processor time, in percent, of random stores to memory of which half may be in \
                      DRAM. The paper found up to 50% with a linear search."
            .into(),
        subjects: Way::IN_PAGER.map(|way| way.name().to_owned()).to_vec(),
        workloads: fills.map(|fill| (crowded_paging::title(fill), label(fill))).to_vec(),
        metric: crowded_paging::SEARCH_SHARE,
        shape: Shape::Bars,
        logarithmic: false,
    }
}

fn patterns(title: &str, metric: &'static str) -> Figure {
    let group = |pattern: Pattern, threads| {
        let label = format!("{}, t{threads}", pattern.name());
        (paging::title(pattern, true, threads), label)
    };
    let groups = Pattern::ALL.into_iter().flat_map(|p| [1, 2].map(|threads| group(p, threads)));
    Figure {
        title: title.to_owned(),
        explanation: PATTERNS.to_owned(),
        subjects: names(&[&Subject::PAGING[..], &[Subject::Flash]].concat()),
        workloads: groups.collect(),
        metric,
        shape: Shape::Bars,
        logarithmic: true,
    }
}

fn long_loads() -> Figure {
    let subjects = [Subject::Dram, Subject::DirectStill, Subject::Direct];
    Figure {
        title: "Direct mode: time of a load while parts are watched".into(),
        explanation: "Random loads, half of the memory in DRAM, that last long enough for rounds: without them \
                      (region-direct-still) and with them (region-direct)."
            .into(),
        subjects: subjects.map(|subject| subject.name().to_owned()).to_vec(),
        workloads: vec![(direct::LONG_LOADS.to_owned(), "random loads".to_owned())],
        metric: metric::TIME,
        shape: Shape::Bars,
        logarithmic: false,
    }
}

fn break_even(touch: direct::Touch) -> Figure {
    let workload = |medium| (direct::title(touch, medium), medium.to_string());
    Figure {
        title: format!("Touches from which DRAM pays: {}", touch.words()),
        explanation: "Touches of a page, each of a line that no cache has, that cost in place as much beyond DRAM as \
                      moving the page there: by a fault (region), or as its share of two parts of 2 MiB that \
                      change places (region-direct). No bar: touches cost no more than in DRAM, so nothing pays."
            .into(),
        subjects: [Subject::Sigbus, Subject::Direct].map(|by| by.name().to_owned()).to_vec(),
        workloads: direct::MEDIA.map(workload).to_vec(),
        metric: direct::BREAK_EVEN,
        shape: Shape::Bars,
        logarithmic: true,
    }
}

fn served(title: &str, metric: &'static str) -> Figure {
    let loads = |program: Program| program.loads().iter().map(move |load| (program, *load));
    let workloads = Program::BOTH.into_iter().flat_map(loads).map(|(program, load)| {
        (serving::title(program, load), format!("{}: {load}", program.name()))
    });
    Figure {
        title: title.to_owned(),
        explanation: SERVING.to_owned(),
        subjects: names(&serving::SUBJECTS),
        workloads: workloads.collect(),
        metric,
        shape: Shape::Bars,
        logarithmic: true,
    }
}

fn solved(class: Class) -> Figure {
    let titles = solving::titles(class).into_iter();
    let label = |title: &str| title.trim_start_matches(&format!("FT.{class}, ")).to_owned();
    Figure {
        title: format!("FT.{class}"),
        explanation: SOLVING.to_owned(),
        subjects: names(&[&[Subject::Dram], &Subject::LIMITED[..], &Subject::CROWDED].concat()),
        workloads: titles.map(|title| (title.clone(), label(&title))).collect(),
        metric: solving::SECONDS,
        shape: Shape::Bars,
        logarithmic: true,
    }
}
