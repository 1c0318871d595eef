//! `everbyte man`: a manual page for each command, from the same text as its `--help`.
//!
//! Owns the sections unknown to clap: `EXIT STATUS`, `ENVIRONMENT`, `FILES`, `NOTES`, `EXAMPLES` and
//! `SEE ALSO`. Each page has all of them except `ENVIRONMENT` and `NOTES`: defaults come from the
//! arguments of the command and its place in the tree.

use std::any::TypeId;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::help::{Block, Item, Section, sections_of};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte man | man -l -
  everbyte man --dir ~/.local/share/man/man1     one page for each command

Files:
  ~/.local/share/man/man1   pages in this directory are found by man";

/// Default exit status of a command.
const EXIT_STATUS: [(&str, &str); 3] = [
    ("0", "The command succeeded."),
    ("1", "The command failed. Standard error names the cause."),
    ("2", "The command line is wrong."),
];
/// Longest line of a page's source.
const LINE_BYTES: usize = 78;
/// The manual's section: programs.
const SECTION: &str = "1";
const MANUAL: &str = "Everbyte Manual";
/// Pages of other commands at most, in `SEE ALSO`.
const SIBLINGS_MAX: usize = 24;

/// Print the manual page, or write one for each command.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory to write the pages of all commands to. It is made if need be.
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, command: Command) -> anyhow::Result<ExitCode> {
    let pages = pages(command)?;
    // Without a directory there is one standard output, and room for one page.
    let Some(dir) = &args.dir else {
        let first = pages.first().context("there is no page")?;
        output::bytes(first.text.as_bytes());
        return Ok(ExitCode::SUCCESS);
    };
    everbyte_path::make_dirs(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for page in pages {
        write_page(dir, &page)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_page(dir: &Path, page: &Page) -> anyhow::Result<()> {
    let file = dir.join(format!("{}.{SECTION}", page.name));
    let written = everbyte_path::create(&file, false)
        .and_then(|mut out| std::io::Write::write_all(&mut out, page.text.as_ref()));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// A page's name, such as `everbyte-pool-create`, and its source.
struct Page {
    name: String,
    text: String,
}

/// The pages of `command`, first, and of its subcommands.
fn pages(command: Command) -> anyhow::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    // Builds the names of subcommands and the inherited options, which pages show.
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, None, &date(), &mut pages)?;
    Ok(pages)
}

fn add_pages(
    command: &Command,
    parent: Option<&Command>,
    date: &str,
    pages: &mut Vec<Page>,
) -> anyhow::Result<()> {
    pages.push(Page { name: name_of(command).to_owned(), text: page(command, parent, date)? });
    shown(command).try_for_each(|below| add_pages(below, Some(command), date, pages))
}

/// The date of the pages: `SOURCE_DATE_EPOCH` for reproducible builds, else today.
fn date() -> String {
    // Packagers set SOURCE_DATE_EPOCH: the same source then gives the same bytes.
    let told = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let seconds: u64 = told.unwrap_or_else(now);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    everbyte_report::utc(seconds).chars().take("2000-01-01".len()).collect()
}

fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

fn page(command: &Command, parent: Option<&Command>, date: &str) -> anyhow::Result<String> {
    let name = name_of(command);
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    let title = name.to_uppercase();
    let source = format!("Everbyte {}", env!("CARGO_PKG_VERSION"));
    man.title(title)
        .section(SECTION)
        .date(date)
        .source(source)
        .manual(MANUAL)
        .render_title(&mut page)?;
    let man = Man::new(command.clone());
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::default();
    own_sections(&mut roff, command);
    see_also(&mut roff, command, parent);
    page.extend(roff.render().into_bytes());
    Ok(tidied(&String::from_utf8(page)?))
}

/// Writes the sections in the order of man-pages(7), with defaults for missing parts of the text.
fn own_sections(roff: &mut Roff, command: &Command) {
    let sections = sections_of(command);
    let find = |heading: &str| sections.iter().find(|section| section.is(heading));
    let known = ["Environment", "Examples", "Exit status", "Files", "Quick start"];
    let others = sections.iter().filter(|section| section.heading.is_some());
    for section in others.filter(|section| !known.iter().any(|known| section.is(known))) {
        write(roff, &section.heading.as_deref().unwrap_or_default().to_uppercase(), &[section]);
    }
    match find("Exit status") {
        Some(section) => write(roff, "EXIT STATUS", &[section]),
        None => write(roff, "EXIT STATUS", &[&section(&EXIT_STATUS)]),
    }
    if let Some(section) = find("Environment") {
        write(roff, "ENVIRONMENT", &[section]);
    }
    let files = files(command);
    write(roff, "FILES", &find("Files").into_iter().chain([&files]).collect::<Vec<_>>());
    let notes: Vec<_> = sections.iter().filter(|section| section.heading.is_none()).collect();
    if !notes.is_empty() {
        write(roff, "NOTES", &notes);
    }
    let examples = find("Examples").or_else(|| find("Quick start")).cloned();
    let examples = examples.unwrap_or_else(|| first_examples(command));
    roff.control("SH", ["EXAMPLES"]);
    for block in &examples.blocks {
        match block {
            Block::Items(items) => items.iter().for_each(|item| example(roff, item)),
            Block::Paragraph(words) => paragraph(roff, words),
        }
    }
}

fn section(items: &[(&str, &str)]) -> Section {
    let item = |(term, meaning): &(&str, &str)| Item {
        lines: vec![(*term).to_owned()],
        remark: Some((*meaning).to_owned()),
    };
    Section { heading: None, blocks: vec![Block::Items(items.iter().map(item).collect())] }
}

/// The first example of each subcommand, for a command without examples.
fn first_examples(command: &Command) -> Section {
    let first = |below: &Command| {
        let sections = sections_of(below);
        let examples = sections.into_iter().find(|section| section.is("Examples"))?;
        examples.blocks.into_iter().find_map(|block| match block {
            Block::Items(items) => items.into_iter().next(),
            Block::Paragraph(_) => None,
        })
    };
    let items = shown(command).filter_map(first).collect();
    Section { heading: None, blocks: vec![Block::Items(items)] }
}

/// The files in the command's arguments, and the control socket of a pool.
fn files(command: &Command) -> Section {
    let mut files: Vec<(&str, String)> = Vec::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let names = argument.get_value_names().unwrap_or_default();
        let Some(name) = names.first().map(clap::builder::Str::as_str) else { continue };
        let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let is_pool = name.contains("POOL");
        if is_path || is_pool {
            let help = argument.get_long_help().or_else(|| argument.get_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            let option = argument.get_long().map(|long| format!("--{long}: ")).unwrap_or_default();
            files.push((name, format!("{option}{help}")));
        }
        if is_pool {
            files.push(("POOL.sock", "The control socket of the server that has the pool.".into()));
        }
    }
    if files.is_empty() && shown(command).next().is_some() {
        files.push(("POOL", "A pool: a file or a device.".into()));
        files.push(("POOL.sock", "The control socket of the server that has the pool.".into()));
    }
    if files.is_empty() {
        let none = "No argument of this command names a file.";
        return Section { heading: None, blocks: vec![Block::Paragraph(none.to_owned())] };
    }
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, help)| (*name, help.as_str())).collect();
    section(&files)
}

fn see_also(roff: &mut Roff, command: &Command, parent: Option<&Command>) {
    let parents = parent.into_iter().map(name_of).chain(["everbyte"]);
    let siblings = parent.into_iter().flat_map(shown).map(name_of).take(SIBLINGS_MAX);
    let mut names: Vec<&str> = parents.chain(shown(command).map(name_of)).chain(siblings).collect();
    // The top page has `everbyte` as its own parent.
    names.retain(|name| *name != name_of(command));
    names.sort_unstable();
    // A parent can be among the fixed names as well.
    names.dedup();
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let end = if at + 1 == names.len() { "" } else { ", " };
        line.extend([bold(*name), roman(format!("({SECTION}){end}"))]);
    }
    roff.text(line);
}

fn write(roff: &mut Roff, heading: &str, sections: &[&Section]) {
    roff.control("SH", [heading]);
    let mut is_first = true;
    for block in sections.iter().flat_map(|section| &section.blocks) {
        match block {
            Block::Paragraph(words) if is_first => {
                roff.text([roman(words)]);
            }
            Block::Paragraph(words) => paragraph(roff, words),
            Block::Items(items) => items.iter().for_each(|item| definition(roff, item)),
        }
        is_first = false;
    }
}

fn paragraph(roff: &mut Roff, words: &str) {
    roff.control("PP", []);
    roff.text([roman(words)]);
}

/// Writes a term and its meaning, or a verbatim line.
fn definition(roff: &mut Roff, item: &Item) {
    match &item.remark {
        Some(meaning) => {
            roff.control("TP", []);
            roff.text([bold(item.lines.join(" "))]);
            roff.text([roman(meaning)]);
        }
        None => verbatim(roff, &item.lines),
    }
}

/// Writes a command with its remark before it.
fn example(roff: &mut Roff, item: &Item) {
    if let Some(remark) = &item.remark {
        paragraph(roff, &format!("{}:", remark.trim_end_matches([':', '.'])));
    }
    verbatim(roff, &item.lines);
}

fn verbatim(roff: &mut Roff, lines: &[String]) {
    roff.control("PP", []);
    roff.control("RS", ["4"]);
    roff.control("nf", []);
    for (at, line) in lines.iter().enumerate() {
        let indent = if at == 0 { "" } else { "  " };
        roff.text([roman(format!("{indent}{line}"))]);
    }
    roff.control("fi", []);
    roff.control("RE", []);
}

/// Removes causes of lint warnings: empty lines, trailing spaces, double paragraph breaks, and long
/// lines of filled text.
fn tidied(source: &str) -> String {
    // clap breaks lines twice for an empty paragraph, which linters of manual pages report.
    let source = source.replace("\n.br\n\n.br\n", "\n.sp\n");
    let mut tidy = String::new();
    let (mut is_filled, mut before) = (true, "");
    for line in source.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        match line {
            ".nf" => is_filled = false,
            ".fi" => is_filled = true,
            // A heading also begins a paragraph.
            ".PP" if before.starts_with(".SH") => continue,
            _ => {}
        }
        before = line;
        if line.starts_with('.') || !is_filled {
            tidy += line;
            tidy.push('\n');
            continue;
        }
        let mut length = 0;
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            if length > 0 && length + 1 + word.len() > LINE_BYTES {
                tidy.push('\n');
                length = 0;
            }
            // The first character would make the line a request.
            let mark = if length == 0 && word.starts_with(['.', '\'']) { "\\&" } else { "" };
            let gap = if length == 0 { "" } else { " " };
            tidy += gap;
            tidy += mark;
            tidy += word;
            length += gap.len() + mark.len() + word.len();
        }
        tidy.push('\n');
    }
    tidy
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command as Program, Stdio};

    use clap::CommandFactory;

    use super::*;

    fn all() -> Vec<Page> {
        pages(crate::Cli::command()).unwrap()
    }

    fn headings(page: &Page) -> Vec<String> {
        let lines = page.text.lines().filter_map(|line| line.strip_prefix(".SH "));
        lines.map(|heading| heading.trim_matches('"').to_owned()).collect()
    }

    #[test]
    fn pages_have_all_sections_in_order() {
        let pages = all();
        assert!(pages.len() > 35, "{}", pages.len());
        for page in &pages {
            let found = headings(page);
            let wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "FILES"];
            let places = wanted.iter().chain(&["EXAMPLES", "SEE ALSO"]).map(|wanted| {
                let place = found.iter().position(|heading| heading == wanted);
                place.unwrap_or_else(|| panic!("{} lacks {wanted}: {found:?}", page.name))
            });
            assert!(places.is_sorted(), "{}: {found:?}", page.name);
            assert!(!found.iter().any(|heading| heading == "EXTRA"), "{}", page.name);
            let mut once = found.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), found.len(), "{}: {found:?}", page.name);
        }
    }

    #[test]
    fn examples_are_commands_and_not_prose() {
        for page in all() {
            let (_, rest) = page.text.split_once("\n.SH EXAMPLES\n").unwrap();
            let (examples, _) = rest.split_once("\n.SH ").unwrap();
            assert!(examples.contains(".nf\n") && examples.contains("everbyte"), "{}", page.name);
        }
    }

    #[test]
    fn pages_name_pages_that_exist() {
        let pages = all();
        for page in &pages {
            let (_, others) = page.text.split_once("\n.SH \"SEE ALSO\"\n").unwrap();
            let others = others.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
            for other in others.split(',').map(|other| other.trim().trim_end_matches("(1)")) {
                assert!(pages.iter().any(|page| page.name == other), "{}: {other}", page.name);
            }
        }
    }

    #[test]
    fn linter_of_manual_pages_is_silent() {
        for page in all() {
            let mut linter = Program::new("mandoc");
            linter.args(["-T", "lint"]).stdin(Stdio::piped());
            let Ok(mut linter) = linter.stdout(Stdio::piped()).spawn() else {
                everbyte_testkit::not_run("mandoc is not installed");
                return;
            };
            linter.stdin.take().unwrap().write_all(page.text.as_bytes()).unwrap();
            let output = linter.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{}", page.name);
        }
    }
}
