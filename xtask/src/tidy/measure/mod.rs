//! Sizes and prose of a tree, by package and page, and their limits.
//!
//! A package or page above a general limit has its limit in `xtask/limits.toml`. Those limits may only fall: `cargo
//! xtask tidy --tighten` lowers them, and nothing raises them.

mod limits;
pub(super) mod lines;
mod prose;
mod type_names;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::Tree;
use lines::{Lines, TestFiles};
use prose::{Prose, TestNames};

pub(super) use limits::check;
pub(crate) use limits::{PATH, tightened};

/// Pages with limits of prose, in addition to those of packages.
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// Folders of many pages, measured together.
const FOLDERS: [&str; 2] = ["docs/decisions/", "docs/benchmarks/"];
/// Folders of packages with limits.
const PACKAGES: [&str; 3] = ["crates/", "bench/", "xtask/"];

/// A package, a page or a folder of pages.
#[derive(Default)]
struct Part {
    lines: Lines,
    prose: Prose,
    tests: TestNames,
}

impl Part {
    /// Names, values and limits. A rate without a sentence or a test has no value.
    fn rates(&self) -> Vec<(&'static str, f64, f64)> {
        let prose = self.prose.rates().into_iter().filter(|_| self.prose.sentences > 0);
        prose.chain(self.tests.rates().into_iter().filter(|_| self.tests.len() > 0)).collect()
    }
}

/// Measures of a tree.
pub(crate) struct Measures {
    parts: BTreeMap<String, Part>,
    /// Names of types that are participles or adjectives.
    participles: BTreeSet<String>,
    markdown_words: usize,
}

impl Measures {
    /// Measures a tree.
    pub(crate) fn of(tree: &Tree) -> Self {
        let tests = TestFiles::of(tree);
        let mut found =
            Self { parts: BTreeMap::new(), participles: BTreeSet::new(), markdown_words: 0 };
        for file in tree.files() {
            if file.path.ends_with(".md") {
                found.markdown_words += file.text.split_whitespace().count();
            }
            // Scripts, data and pages of other folders have no limits.
            let Some(part) = part(tree, &file.path) else { continue };
            let part = found.parts.entry(part).or_default();
            if file.is_rust() {
                part.prose.add_rust(&file.text);
                part.tests.add(&file.text);
                // Tests count for prose and names, and not for lines of code.
                if !tests.contains(file) {
                    part.lines += lines::count(&file.text).unwrap_or_default();
                    found.participles.extend(type_names::participles(&file.text));
                }
            } else {
                part.prose.add_markdown(&file.text);
            }
        }
        found
    }

    /// The sum over packages whose folders begin with one of `folders`.
    fn sum(&self, folders: &[&str]) -> Lines {
        let mut sum = Lines::default();
        let parts = self.parts.iter();
        for (_, part) in parts.filter(|(name, _)| folders.iter().any(|f| name.starts_with(f))) {
            sum += part.lines;
        }
        sum
    }

    /// Sums and shares of the whole tree: name, value, limit.
    fn sums(&self) -> [(&'static str, f64, f64); 4] {
        let crates = self.sum(&["crates/"]);
        let tools = self.sum(&["bench/", "xtask"]);
        let mut all = crates;
        all += tools;
        [
            ("crates_lines", lines::as_f64(crates.code), 83_500.0),
            ("bench_and_xtask_lines", lines::as_f64(tools.code), 18_500.0),
            ("markdown_words", lines::as_f64(self.markdown_words), 75_000.0),
            // A rate that must not fall: the negative one must not rise.
            ("comments", -all.comment_rate(), -0.04),
        ]
    }

    /// The sums in one line.
    pub(crate) fn summary(&self) -> String {
        let [crates, tools, words, comments] = self.sums().map(|(_, value, _)| value);
        format!(
            "{crates} lines of code in crates, {tools} in bench and xtask, {words} words of Markdown, \
             {:.3} comment lines per line",
            -comments
        )
    }

    /// A table with a line for each package and page, and the sums.
    pub(crate) fn table(&self) -> String {
        let head = "code  comments sentences  relative   what  long  idioms  tests  median   bad";
        let mut text = format!("{:<32}   {head}\n", "");
        for (name, part) in &self.parts {
            let rate = |of: &str, decimals: usize| {
                let found = part.rates().into_iter().find(|(name, ..)| *name == of);
                found.map_or(String::new(), |(_, value, limit)| {
                    let over = if value > limit { "!" } else { "" };
                    format!("{value:.decimals$}{over}")
                })
            };
            let _ = writeln!(
                text,
                "{name:<32} {:>6} {:>9.3} {:>9} {:>9} {:>6} {:>5} {:>7} {:>6} {:>7} {:>5}",
                part.lines.code,
                part.lines.comment_rate(),
                part.prose.sentences,
                rate("relative", 2),
                rate("what", 3),
                rate("long", 0),
                rate("idioms", 0),
                part.tests.len(),
                rate("test_name_median", 0),
                rate("test_names_bad", 0),
            );
        }
        text + &self.summary() + "\n"
    }
}

/// The package, page or folder of pages that a file belongs to, if it has limits.
fn part(tree: &Tree, path: &str) -> Option<String> {
    let in_package = PACKAGES.iter().any(|folder| path.starts_with(folder));
    if path.ends_with(".md") {
        if let Some(folder) = FOLDERS.iter().find(|folder| path.starts_with(**folder)) {
            return Some(folder.trim_end_matches('/').to_owned());
        }
        let is_page = PAGES.contains(&path) || path.starts_with("docs/") || in_package;
        return is_page.then(|| path.to_owned());
    }
    if !(in_package && path.ends_with(".rs")) {
        return None;
    }
    let ends = path.match_indices('/').map(|(at, _)| &path[..at]);
    // The innermost manifest owns the file: a package can contain another one.
    let folder = ends.rev().find(|folder| tree.get(&format!("{folder}/Cargo.toml")).is_some());
    folder.map(str::to_owned)
}
