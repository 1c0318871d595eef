//! Figures of the documentation: suites are run, their results kept, and every plot, table and number made from them.
//!
//! Invariant: [`Site::outputs`] makes pages, plots and tables of `docs/results` and `xtask/suites`; `cargo xtask tidy`
//! refuses any other.

mod compare;
mod comparison;
mod format;
mod grid;
mod html;
mod pages;
mod pattern;
mod provenance;
mod results;
mod run;
mod suite;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tidy::Tree;
use format::Published;
use results::Results;
use suite::Suites;

/// Folder of the results, with the slash at its end.
const FOLDER: &str = "docs/results/";
/// Folder of the pages of suites and their plots, with the slash at its end.
const PLOTS: &str = "docs/benchmarks/";
/// Other pages with all figures in marked places.
const PAGES: [&str; 4] =
    ["README.md", "docs/benchmarks.md", "docs/papers.md", "docs/simulation.md"];

/// Arguments of the command.
#[derive(clap::Args, Default)]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    run: run::Options,
    #[command(flatten)]
    other: Option<Other>,
}

/// Tasks without a run.
#[derive(clap::Args)]
#[group(multiple = false, conflicts_with_all = ["suites", "traces", "busy", "from"])]
struct Other {
    /// Make plots, tables and figures from docs/results
    #[arg(long)]
    render: bool,
    /// List differences from docs/results
    #[arg(long)]
    check: bool,
    /// List suites, their commands and durations
    #[arg(long)]
    list: bool,
    /// List rows, commit and command of a number of the documentation
    #[arg(long = "where", value_name = "NUMBER", allow_hyphen_values = true)]
    number: Option<String>,
    /// Compare two runs by their spreads, and count the rows that agree
    #[arg(long, num_args = 2, value_name = "FILE")]
    compare: Vec<String>,
    /// Make a page of each document of everbyte-bench or file of docs/results, on any machine
    #[arg(long, num_args = 2.., value_names = ["FOLDER", "FILE"])]
    to: Vec<String>,
}

/// Executes the arguments.
///
/// # Errors
/// Errors of arguments, suites and files; outdated pages; runs without agreement.
pub(crate) fn publish(root: &Path, args: &PublishArgs) -> Result<()> {
    let tree = Tree::read(root)?;
    let site = Site::of(&tree)?;
    match &args.other {
        None => {
            run::run_all(root, &site.suites, &args.run)?;
            // The run has changed the files of results.
            render(root, &Site::of(&Tree::read(root)?)?)?;
        }
        Some(other) if other.render => render(root, &site)?,
        Some(other) if other.check => check(&tree, &site)?,
        Some(other) if other.list => print!("{}", list(&site.suites)),
        Some(Other { number: Some(number), .. }) => {
            print!("{}", provenance::describe(&site, number)?);
        }
        Some(Other { compare, to, .. }) => match (&compare[..], &to[..]) {
            ([first, second], _) => compare::report(&site.suites, &file(first)?, &file(second)?)?,
            (_, [folder, files @ ..]) => draw(&site.suites, Path::new(folder), files)?,
            _ => bail!("no task"),
        },
    }
    Ok(())
}

/// Suites, results and pages of a checkout.
pub(crate) struct Site {
    suites: Suites,
    published: Published,
    /// Paths and texts of pages with marked places.
    pages: Vec<(String, String)>,
}

impl Site {
    /// Reads a checkout.
    ///
    /// # Errors
    /// A file of suites or results has another form; with its path.
    pub(crate) fn of(tree: &Tree) -> Result<Self> {
        let files = tree.below(suite::FOLDER).map(|file| (file.path.as_str(), file.text.as_str()));
        let mut site =
            Self { suites: Suites::parse(files)?, published: Published::new(), pages: Vec::new() };
        for file in tree.below(FOLDER).filter(|file| file.path.ends_with(".json")) {
            let results = Results::parse(&file.text).with_context(|| file.path.clone())?;
            site.published.insert(results.suite.clone(), results);
        }
        for file in tree.files().iter().filter(|file| file.path.ends_with(".md")) {
            // A page without a mark must be checked as well if it may contain figures.
            if has_figures(&file.path) || file.text.contains(pages::NUMBER) {
                site.pages.push((file.path.clone(), file.text.clone()));
            }
        }
        Ok(site)
    }

    /// Paths and texts of all pages, plots and tables.
    ///
    /// # Errors
    /// A marked place cannot be filled; with the path.
    fn outputs(&self) -> Result<Vec<(String, String)>> {
        let mut outputs = Vec::new();
        for (path, text) in &self.pages {
            let (text, _) = pages::fill(text, &self.published).with_context(|| path.clone())?;
            outputs.push((path.clone(), text));
        }
        for suite in self.suites.iter() {
            // A suite without a published run has no page yet.
            let Some(results) = self.published.get(&suite.name) else { continue };
            let page = html::page(&[suite], results, false);
            outputs.push((format!("{FOLDER}{}.html", suite.name), page));
            if let Some(svg) = suite.plots.first().and_then(|plot| html::chart(plot, results).svg())
            {
                outputs.push((format!("{PLOTS}{}.svg", suite.name), svg));
            }
        }
        Ok(outputs)
    }

    /// Differences from the results, and figures outside of marked places: path, line, fault.
    ///
    /// # Errors
    /// A marked place cannot be filled.
    pub(crate) fn faults(&self, tree: &Tree) -> Result<Vec<(String, usize, String)>> {
        let mut found = Vec::new();
        for (path, new) in self.outputs()? {
            let old = tree.get(&path).map_or("", |file| file.text.as_str());
            if old != new {
                // The first difference is enough: the remedy is the same for all.
                let same = old.lines().zip(new.lines()).take_while(|(old, new)| old == new);
                let fault = "differs from docs/results; run cargo xtask publish --render";
                found.push((path, same.count() + 1, fault.to_owned()));
            }
        }
        for (path, text) in self.pages.iter().filter(|(path, _)| has_figures(path)) {
            for (line, number) in pages::unmarked(text) {
                let fault = format!("the figure {number} stands outside of a marked place");
                found.push((path.clone(), line, fault));
            }
        }
        Ok(found)
    }
}

fn has_figures(path: &str) -> bool {
    PAGES.contains(&path) || path.starts_with(PLOTS)
}

fn list(suites: &Suites) -> String {
    let line = |suite: &suite::Suite| {
        let minutes = suite.minutes;
        let idle = if suite.needs_idle { ", idle" } else { "" };
        let (name, command) = (&suite.name, &suite.command);
        format!("{name:<14} {minutes:>3} min{idle:<6}  cargo run --release {command}\n")
    };
    suites.iter().map(line).collect()
}

fn file(path: &str) -> Result<Results> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Results::of_any(&text).with_context(|| path.to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

fn render(root: &Path, site: &Site) -> Result<()> {
    for (path, text) in site.outputs()? {
        let path = root.join(path);
        // Unchanged files keep their times, so git and make see no change.
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            write(&path, &text)?;
        }
    }
    Ok(())
}

fn check(tree: &Tree, site: &Site) -> Result<()> {
    let faults = site.faults(tree)?;
    for (path, line, fault) in &faults {
        println!("{path}:{line}: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults in the pages", faults.len());
    }
    Ok(())
}

/// Makes a page and plots of each file.
fn draw(suites: &Suites, folder: &Path, files: &[String]) -> Result<()> {
    for path in files {
        let results = file(path)?;
        let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
        // Several suites use one command with different parts, and a document contains the rows of each.
        let own = |suite: &&suite::Suite| {
            suite.name == results.suite || suite.bench_suite() == results.suite
        };
        let suites: Vec<&suite::Suite> = suites.iter().filter(own).collect();
        write(&folder.join(format!("{name}.html")), &html::page(&suites, &results, true))?;
        let plots = suites.iter().flat_map(|suite| &suite.plots);
        let drawn = plots.filter_map(|plot| html::chart(plot, &results).svg());
        for (number, svg) in (1..).zip(drawn) {
            write(&folder.join(format!("{name}-{number}.svg")), &svg)?;
        }
    }
    Ok(())
}
