//! Figures of the pages: suites are run, their results kept, and every table and number of the
//! pages filled from them.
//!
//! Invariant: a page is what [`pages::fill`] makes of it and of `docs/results`; `cargo xtask tidy`
//! refuses any other. What a suite is stands in [`suites`] alone.

mod cell;
mod compare;
mod grid;
mod kinds;
pub(crate) mod pages;
mod policies;
mod results;
mod run;
mod simulation;
mod suites;
#[cfg(test)]
mod tests;
mod views;
mod whence;

pub(crate) use cell::Published;
pub(crate) use results::Results;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use run::Options;

/// Pages with marked places.
pub(crate) const PAGES: [&str; 5] =
    ["README.md", "docs/benchmarks.md", "docs/papers.md", "docs/scaling.md", "docs/simulation.md"];
/// Folder of the results, with the slash at its end.
pub(crate) const FOLDER: &str = "docs/results/";

/// Help of the command.
pub(crate) const USAGE: &str = "\
usage: cargo xtask publish [--suite NAME]... [--traces FOLDER] [--busy]
           runs suites, all by default, keeps their results in docs/results and fills the pages;
           refuses changed files and, for suites of times, a busy machine (--busy does not, and
           the heading of its tables says so)
       cargo xtask publish --suite NAME --from FILE --commit COMMIT --command WORDS [--remarks WORDS]
           takes what the suite's command wrote elsewhere
       cargo xtask publish --render            fills the pages from docs/results, without a run
       cargo xtask publish --check             tells where pages differ from that
       cargo xtask publish --list              suites, their commands and how long they take
       cargo xtask publish --where NUMBER      rows, commit and command of a number of the pages
       cargo xtask publish --compare FILE FILE tells whether two runs agree within their spread, and
           how many rows of each metric do";

/// Does what the arguments say.
///
/// # Errors
/// The arguments', a suite's, a file's; pages that differ; runs that do not agree.
pub(crate) fn publish(root: &Path, arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["help" | "--help" | "-h"] => println!("{USAGE}"),
        ["--list"] => print!("{}", list()),
        ["--render"] => render(root)?,
        ["--check"] => check(root)?,
        ["--where", number] => print!("{}", whence::tell(&read(root)?, number)?),
        ["--compare", first, second] => compare::tell(&file(first)?, &file(second)?)?,
        _ => {
            let options = Options::parse(&words)?;
            run::suites(root, &options)?;
            render(root)?;
        }
    }
    Ok(())
}

/// The pages and the results.
struct Site {
    published: Published,
    /// Paths and texts.
    pages: Vec<(&'static str, String)>,
}

fn list() -> String {
    let line = |suite: &suites::Suite| {
        let minutes = suite.minutes;
        let idle = if suite.needs_idle { ", idle" } else { "" };
        format!(
            "{:<12} {minutes:>3} min{idle:<6}  cargo run --release {}\n",
            suite.name, suite.command
        )
    };
    suites::SUITES.iter().map(line).collect()
}

fn file(path: &str) -> Result<Results> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Results::parse(&text).with_context(|| path.to_owned())
}

fn read(root: &Path) -> Result<Site> {
    let mut site = Site { published: Published::new(), pages: Vec::new() };
    for suite in &suites::SUITES {
        let path = result_path(root, suite.name);
        if path.exists() {
            let results = file(&path.display().to_string())?;
            site.published.insert(suite.name.to_owned(), results);
        }
    }
    for page in PAGES {
        let path = root.join(page);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
        site.pages.push((page, text));
    }
    Ok(site)
}

fn result_path(root: &Path, suite: &str) -> PathBuf {
    root.join(format!("{FOLDER}{suite}.json"))
}

fn render(root: &Path) -> Result<()> {
    let site = read(root)?;
    for (path, text) in &site.pages {
        let page = pages::fill(text, &site.published).with_context(|| (*path).to_owned())?;
        if page.text != *text {
            std::fs::write(root.join(path), &page.text)
                .with_context(|| format!("cannot write {path}"))?;
            println!("{path}: {} figures", page.figures.len());
        }
    }
    Ok(())
}

/// Lines of a page that differ from what its results make of it, and figures outside of places.
///
/// # Errors
/// A place cannot be filled.
pub(crate) fn faults(text: &str, published: &Published) -> Result<Vec<(usize, String)>> {
    let page = pages::fill(text, published)?;
    let mut found = Vec::new();
    let (old, new): (Vec<&str>, Vec<&str>) = (text.lines().collect(), page.text.lines().collect());
    let differs = (0..old.len().max(new.len())).find(|&at| old.get(at) != new.get(at));
    if let Some(at) = differs {
        let what = "differs from docs/results; run cargo xtask publish --render";
        found.push((at + 1, what.to_owned()));
    }
    for (line, number) in pages::unmarked(text) {
        found.push((line, format!("the figure {number} stands outside of a marked place")));
    }
    Ok(found)
}

fn check(root: &Path) -> Result<()> {
    let site = read(root)?;
    let mut count = 0;
    for (path, text) in &site.pages {
        for (line, what) in faults(text, &site.published).with_context(|| (*path).to_owned())? {
            println!("{path}:{line}: {what}");
            count += 1;
        }
    }
    if count > 0 {
        bail!("{count} faults in the pages");
    }
    Ok(())
}
