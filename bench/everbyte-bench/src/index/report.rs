//! The figures of the index suite: those of the two papers, remade, with their numbers beside ours.

use super::collected::TO_REFERENCE;
use super::directories::{IN_PROCESS, SERVERS, access_title};
use super::directory::Access;
use super::misses::{MISS_RATE, misses_title, watched_files};
use super::personality::Personality;
use super::place::Pages;
use super::sweeps::{nodes_title, sizes_of_tables_and_pages, sizes_title};
use super::{Settings, choice, title};
use crate::report::figure::{Figure, Shape};
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;

/// Subject of numbers that the paper gives.
const PAPER: &str = "paper";

fn published_row(
    workload: &str,
    metric: &'static str,
    unit: &'static str,
    value: f64,
    note: &str,
) -> Row {
    let note = Some(note.to_owned()).filter(|note| !note.is_empty());
    Row { note, ..exact(PAPER, workload, metric, unit, value) }
}

/// The paper's numbers, of the workloads that are measured.
pub(super) fn published(settings: &Settings<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for &personality in &settings.personalities {
        let Some(line) = personality.published() else { continue };
        let mut push = |metric, unit, value| {
            rows.push(published_row(personality.name(), metric, unit, value, ""));
        };
        push("file_size", "KiB", as_f64(line.file_kib));
        push("threads", "", as_f64(line.threads as u64));
        push("reads", "%", as_f64(line.reads_percent));
    }
    for (personality, files, value, note) in [
        (Personality::Createfiles, 2_560_000, 1.09, "direct mapping, over the B-tree of PMFS"),
        (Personality::Fileserver, 640_000, 1.05, "direct mapping, over the B-tree of PMFS"),
        (Personality::Webserver, 640_000, 1.0, "no difference between the structures"),
    ] {
        if settings.files_of(personality).contains(&files) {
            let workload = title(personality, files, personality.threads());
            rows.push(published_row(&workload, TO_REFERENCE, "ratio", value, note));
        }
    }
    for (personality, value, note) in [
        (Personality::Webproxy, 50.0, "over 50% with every structure"),
        (Personality::Webserver, 1.0, "under 1% with every structure"),
    ] {
        if settings.files_max() == 640_000 {
            let workload = misses_title(personality, 640_000, personality.threads());
            rows.push(published_row(&workload, MISS_RATE, "%", value, note));
        }
    }
    rows
}

/// All of them.
pub(super) fn figures(settings: &Settings<'_>) -> Vec<Figure> {
    let mut figures = vec![table_1(settings)];
    figures.extend(settings.personalities.iter().map(|&own| figure_2(settings, own)));
    figures.push(gains(settings));
    figures.push(figure_3(settings));
    figures.push(nodes(settings));
    figures.extend(settings.personalities.iter().map(|&own| sizes(settings, own)));
    figures.push(shares(settings));
    figures.push(alone(settings));
    figures.push(the_choice(settings));
    figures.push(ntl(settings));
    figures
}

fn names(settings: &Settings<'_>) -> Vec<String> {
    settings.indexes.iter().map(|index| index.name().to_owned()).collect()
}

fn names_and_paper(settings: &Settings<'_>) -> Vec<String> {
    names(settings).into_iter().chain([PAPER.to_owned()]).collect()
}

/// A figure of bars over a linear axis.
fn bars(
    title: &str,
    explanation: &str,
    subjects: Vec<String>,
    workloads: Vec<(String, String)>,
    metric: &'static str,
) -> Figure {
    Figure {
        title: title.to_owned(),
        explanation: explanation.to_owned(),
        subjects,
        workloads,
        metric,
        shape: Shape::Bars,
        logarithmic: false,
    }
}

fn table_1(settings: &Settings<'_>) -> Figure {
    Figure {
        shape: Shape::Table(&["file_size", "threads", "reads"]),
        ..bars(
            "The workloads (Table 1 of the paper)",
            "Mean file size in KiB, threads, and percent of reads among reads, writes and appends: the \
             paper's, and what our driver did with the largest file sets. The paper has no varmail.",
            vec![PAPER.to_owned(), "everbyte".to_owned()],
            settings
                .personalities
                .iter()
                .map(|own| (own.name().into(), own.name().into()))
                .collect(),
            "file_size",
        )
    }
}

fn figure_2(settings: &Settings<'_>, personality: Personality) -> Figure {
    let threads = settings.most_threads(personality);
    let groups = settings
        .files_of(personality)
        .into_iter()
        .map(|files| (title(personality, files, threads), format!("{} K", files.div_ceil(1000))));
    Figure {
        shape: Shape::Lines,
        ..bars(
            &format!("{}, by number of files (Figure 2 of the paper)", personality.name()),
            "Operations in a second by number of files, in thousands. The paper finds: the more files \
             and the more inserts, the larger the differences; direct mapping is best where inodes are \
             inserted, radix trees beat B+ trees, and the web server makes no difference.",
            names(settings),
            groups.collect(),
            metric::RATE,
        )
    }
}

/// Every workload at the largest number of files that it has.
fn largest(settings: &Settings<'_>) -> Vec<(String, String)> {
    let group = |&own: &Personality| {
        let files = settings.files_of(own).last().copied().unwrap_or_default();
        (title(own, files, settings.most_threads(own)), own.name().to_owned())
    };
    settings.personalities.iter().map(group).collect()
}

fn gains(settings: &Settings<'_>) -> Figure {
    bars(
        "The indexes beside the one of PMFS",
        "Rates with the most files as multiples of those with the radix tree of PMFS. The paper's bar \
         is its direct mapping: 1.09 at createfiles with 2.56 M files, 1.05 at fileserver with 640 K.",
        names_and_paper(settings),
        largest(settings),
        TO_REFERENCE,
    )
}

fn figure_3(settings: &Settings<'_>) -> Figure {
    let workloads = [Personality::Webproxy, Personality::Webserver].map(|own| {
        let threads = settings.most_threads(own);
        (misses_title(own, watched_files(settings, own), threads), own.name().to_owned())
    });
    bars(
        "Misses of the last-level cache (Figure 3 of the paper)",
        "Percent of the references to data that reach the last-level cache and miss it, with the most \
         files, as cachegrind simulates the paper's 15 MiB. The paper counts those of the kernel with \
         perf: over 50% for webproxy and under 1% for webserver, with every structure.",
        names_and_paper(settings),
        workloads.to_vec(),
        MISS_RATE,
    )
}

/// Words for sizes of tables and pages, in this order.
fn label_of_sizes(large_tables: bool, pages: Pages) -> String {
    let size = |is_large| if is_large { "2 MiB" } else { "4 KiB" };
    format!("{}, {}", size(large_tables), size(pages == Pages::Large))
}

fn nodes(settings: &Settings<'_>) -> Figure {
    let own = Personality::Fileserver;
    let (files, threads) = (settings.files_max(), settings.most_threads(own));
    let groups = settings.node_bytes.iter();
    let groups = groups.map(|&bytes| (nodes_title(files, threads, bytes), format!("{bytes} B")));
    let trees = settings.indexes.iter().filter(|index| index.is_tree());
    Figure {
        shape: Shape::Lines,
        ..bars(
            "Sizes of nodes",
            "Operations in a second at fileserver with the most files. So the paper chose its nodes: \
             4 KiB for PMFS, 2 KiB for the page cache's tree, 256 B for B+, 128 B for CSB+.",
            trees.map(|index| index.name().to_owned()).collect(),
            groups.collect(),
            metric::RATE,
        )
    }
}

fn sizes(settings: &Settings<'_>, personality: Personality) -> Figure {
    let threads = settings.most_threads(personality);
    let workload = title(personality, settings.files_min(), threads);
    let groups = sizes_of_tables_and_pages().map(|(large_tables, pages)| {
        (sizes_title(&workload, large_tables, pages), label_of_sizes(large_tables, pages))
    });
    bars(
        &format!("{}, by sizes of tables and pages", personality.name()),
        "Operations in a second with the fewest files, by size of inode tables, then of pages. PMFS \
         takes tables of 2 MiB on volumes of 512 MiB and more, and so has few of them to find.",
        names(settings),
        groups.to_vec(),
        metric::RATE,
    )
}

fn shares(settings: &Settings<'_>) -> Figure {
    let groups = settings
        .personalities
        .iter()
        .map(|&own| (title(own, settings.files_max(), 1), own.name().to_owned()));
    bars(
        "Share of the index",
        "Percent of an operation's time, one thread, most files, that its look-ups of inode tables take \
         when they are made again alone: at least so much. It bounds what any index could gain.",
        names(settings),
        groups.collect(),
        "index_share",
    )
}

fn alone(settings: &Settings<'_>) -> Figure {
    let groups = ["find", "chain"].into_iter().flat_map(|workload| {
        sizes_of_tables_and_pages().map(|(large_tables, pages)| {
            let label = format!("{workload} {}", label_of_sizes(large_tables, pages));
            (sizes_title(workload, large_tables, pages), label)
        })
    });
    Figure {
        logarithmic: true,
        ..bars(
            "Look-ups alone",
            "Nanoseconds of a look-up, and of one in a chain in which what was found says what to find \
             next, by size of tables, then of pages; logarithmic. The floor is an array in DRAM.",
            ["floor".to_owned()].into_iter().chain(names(settings)).collect(),
            groups.collect(),
            metric::TIME,
        )
    }
}

fn the_choice(settings: &Settings<'_>) -> Figure {
    bars(
        "The choice for the whole file system",
        "Geometric means over all workloads of the rates beside those with the radix tree of PMFS. The \
         table below says with which nodes, tables and pages the best one is best.",
        names(settings),
        vec![(choice::WORKLOAD.to_owned(), "all workloads".to_owned())],
        TO_REFERENCE,
    )
}

fn ntl(settings: &Settings<'_>) -> Figure {
    let accesses = [(Access::Buffered, "buffered"), (Access::Direct, "direct")];
    let groups = SERVERS.into_iter().flat_map(|own| {
        accesses.map(|(access, label)| {
            let threads = settings.most_threads(own);
            let workload = title(own, settings.directory_files, threads);
            (access_title(&workload, access), format!("{}, {label}", own.name()))
        })
    });
    let places = settings.places.iter().map(|place| place.name.clone());
    Figure {
        logarithmic: true,
        ..bars(
            "Page cache or none (Figure 5 of the NTL paper)",
            "Operations in a second of a file server, a mail server and a web server in directories, \
             through the page cache and past it, and of our library, which has none; logarithmic. The \
             paper finds that the cache wins on a disk, and that on memory its absence wins or ties.",
            [IN_PROCESS.to_owned()].into_iter().chain(places).collect(),
            groups.collect(),
            metric::RATE,
        )
    }
}
