//! The text behind a command's options: its parts, and their form in `--help`.
//!
//! A command gives one text (`after_long_help`). A line without indentation belongs to a paragraph,
//! a line with two spaces is an item, and a blank line ends both. `Examples:` and other short lines
//! before items are headings. `Exit status: ...` begins its own part.
//!
//! Invariants: paragraphs are filled for the terminal's width, so the source's line breaks disappear.
//! Manual pages use the same parts.

use clap::Command;
use rustix::termios::tcgetwinsize;

/// Widest and narrowest line of a help text, in columns.
const WIDTH_MAX: usize = 100;
const WIDTH_MIN: usize = 40;
/// Headings of inline parts.
const INLINE_HEADINGS: [&str; 4] = ["Environment", "Examples", "Exit status", "Files"];
/// Words of the longest heading before items.
const HEADING_WORDS_MAX: usize = 2;
/// Spaces before an item, before a continuation line, and between columns.
const INDENT: usize = 2;
const CONTINUED: usize = 6;
const GAP: usize = 2;
/// Spaces between an example and its remark: a command may contain two in a row.
const REMARK_GAP: usize = 3;
/// Widest first column of a list.
const TERM_MAX: usize = 24;

/// A part of a text.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Section {
    pub(crate) heading: Option<String>,
    pub(crate) blocks: Vec<Block>,
}

/// A paragraph, or consecutive items.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Block {
    Paragraph(String),
    Items(Vec<Item>),
}

/// A command with a remark, a term with its meaning, or a verbatim line.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Item {
    /// Lines of one command.
    pub(crate) lines: Vec<String>,
    pub(crate) remark: Option<String>,
}

impl Section {
    pub(crate) fn is(&self, heading: &str) -> bool {
        self.heading.as_deref() == Some(heading)
    }

    fn has_commands(&self) -> bool {
        self.is("Examples") || self.is("Quick start")
    }
}

/// The parts of a command's text.
pub(crate) fn sections_of(command: &Command) -> Vec<Section> {
    let text = command.get_after_long_help().or_else(|| command.get_after_help());
    text.map_or_else(Vec::new, |text| parse(&text.to_string()))
}

/// Fits the texts of `command` and its subcommands to the terminal.
pub(crate) fn fitted(command: Command) -> Command {
    fitted_to(command, width())
}

/// As [`fitted`], for `width` columns.
pub(crate) fn fitted_to(command: Command, width: usize) -> Command {
    let sections = sections_of(&command);
    let command = match sections.is_empty() {
        true => command,
        false => command.after_long_help(rendered(&sections, width)),
    };
    command.term_width(width).mut_subcommands(|below| fitted_to(below, width))
}

/// Columns of the reader's terminal, or of `COLUMNS` without a terminal.
fn width() -> usize {
    // Standard error too: the help can go into a pager, and the terminal is still there.
    let terminal =
        tcgetwinsize(rustix::stdio::stdout()).or_else(|_| tcgetwinsize(rustix::stdio::stderr()));
    let terminal =
        terminal.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(told).unwrap_or(WIDTH_MAX).clamp(WIDTH_MIN, WIDTH_MAX)
}

/// Reads a text into its parts.
pub(crate) fn parse(text: &str) -> Vec<Section> {
    let mut parser = Parser::default();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        // A short line is a heading only if items follow it.
        let is_before_item = lines.get(at + 1).is_some_and(|next| next.starts_with(' '));
        parser.take(line, is_before_item);
    }
    // A heading without a block has nothing to show.
    parser.sections.retain(|section| !section.blocks.is_empty());
    parser.sections
}

#[derive(Default)]
struct Parser {
    sections: Vec<Section>,
    /// True if the next line can extend the last block.
    is_open: bool,
}

impl Parser {
    fn take(&mut self, line: &str, is_before_item: bool) {
        let text = line.trim();
        // A blank line ends a paragraph and an item, but not a part.
        if text.is_empty() {
            self.is_open = false;
            return;
        }
        let indent = line.len() - line.trim_start().len();
        if indent > 0 {
            return self.take_item(indent, text);
        }
        let inline = INLINE_HEADINGS.iter().find_map(|heading| {
            let rest = text.strip_prefix(heading)?.strip_prefix(':')?;
            Some((*heading, rest.trim()))
        });
        let before_items = text
            .strip_suffix(':')
            .filter(|heading| is_before_item && heading.split(' ').count() <= HEADING_WORDS_MAX);
        match (inline, before_items) {
            (Some((heading, rest)), _) => self.begin(heading, rest),
            (None, Some(heading)) => self.begin(heading, ""),
            (None, None) => self.take_prose(text),
        }
    }

    fn begin(&mut self, heading: &str, rest: &str) {
        let blocks = match rest {
            "" => Vec::new(),
            rest => vec![Block::Paragraph(rest.to_owned())],
        };
        self.is_open = !blocks.is_empty();
        self.sections.push(Section { heading: Some(heading.to_owned()), blocks });
    }

    fn take_prose(&mut self, text: &str) {
        if self.is_open
            && let Some(Block::Paragraph(words)) = self.last_block()
        {
            words.push(' ');
            words.push_str(text);
            return;
        }
        // Prose after the items of a heading begins a new part.
        let goes_on = self.sections.last().is_some_and(|section| section.heading.is_none());
        if !goes_on {
            self.sections.push(Section::default());
        }
        self.push(Block::Paragraph(text.to_owned()));
    }

    fn take_item(&mut self, indent: usize, text: &str) {
        // Commands can have double spaces in their arguments, so their remarks need three.
        let gap = match self.sections.last().is_some_and(Section::has_commands) {
            true => REMARK_GAP,
            false => GAP,
        };
        let (words, remark) = match text.split_once(&" ".repeat(gap)) {
            Some((words, remark)) => (words.trim_end(), Some(remark.trim())),
            None => (text, None),
        };
        if indent > INDENT
            && self.is_open
            && let Some(Block::Items(items)) = self.last_block()
            && let Some(item) = items.last_mut()
        {
            match (&mut item.remark, remark) {
                (Some(meaning), _) => {
                    meaning.push(' ');
                    meaning.push_str(text);
                }
                (None, remark) => {
                    item.lines.push(words.to_owned());
                    item.remark = remark.map(str::to_owned);
                }
            }
            return;
        }
        let item = Item { lines: vec![words.to_owned()], remark: remark.map(str::to_owned) };
        match self.last_block() {
            Some(Block::Items(items)) => items.push(item),
            _ => self.push(Block::Items(vec![item])),
        }
        self.is_open = true;
    }

    fn last_block(&mut self) -> Option<&mut Block> {
        self.sections.last_mut()?.blocks.last_mut()
    }

    fn push(&mut self, block: Block) {
        if self.sections.is_empty() {
            self.sections.push(Section::default());
        }
        if let Some(section) = self.sections.last_mut() {
            section.blocks.push(block);
        }
        self.is_open = true;
    }
}

/// The text for `--help`.
fn rendered(sections: &[Section], width: usize) -> String {
    let mut parts = Vec::new();
    for section in sections {
        let mut lines = Vec::new();
        for (at, block) in section.blocks.iter().enumerate() {
            let heading = section.heading.as_deref().filter(|_| at == 0);
            match block {
                Block::Paragraph(text) => {
                    let heading =
                        heading.map_or_else(String::new, |heading| format!("{heading}: "));
                    if at > 0 {
                        lines.push(String::new());
                    }
                    lines.extend(filled(&(heading + text), width));
                }
                Block::Items(items) => {
                    lines.extend(heading.map(|heading| format!("{heading}:")));
                    lines.extend(match section.has_commands() {
                        true => commands(items, width),
                        false => list(items, width),
                    });
                }
            }
        }
        parts.push(lines.join("\n"));
    }
    parts.join("\n\n")
}

/// Fills lines of at most `width` columns with `text`. A longer word gets its own line.
fn filled(text: &str, width: usize) -> Vec<String> {
    packed(text.split_whitespace(), width)
}

/// Splits a command at spaces outside quotes.
fn words_of(command: &str) -> Vec<&str> {
    // A quoted argument must not be broken: the shown command would be another one.
    let mut quote = None;
    let is_end = |c: char| {
        match quote {
            Some(open) if open == c => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            _ => {}
        }
        c == ' ' && quote.is_none()
    };
    command.split(is_end).filter(|word| !word.is_empty()).collect()
}

fn packed<'t>(words: impl Iterator<Item = &'t str>, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

fn widest<'t>(texts: impl Iterator<Item = &'t String>) -> usize {
    texts.map(|text| columns(text)).max().unwrap_or(0)
}

/// Commands with their remarks, on the same line if the width allows.
fn commands(items: &[Item], width: usize) -> Vec<String> {
    let with_remark = items.iter().filter(|item| item.remark.is_some());
    let column = widest(with_remark.flat_map(|item| item.lines.last()));
    let remarks = widest(items.iter().filter_map(|item| item.remark.as_ref()));
    // Remarks share lines with their commands only if all of them fit.
    let is_beside = INDENT + column + REMARK_GAP + remarks <= width;
    let mut lines = Vec::new();
    for Item { lines: command, remark } in items {
        for (at, line) in command.iter().enumerate() {
            let indent = if at == 0 { INDENT } else { 2 * INDENT };
            let is_last = at + 1 == command.len();
            match remark.as_ref().filter(|_| is_last && is_beside) {
                Some(remark) => {
                    let column = column + INDENT - indent;
                    let gap = " ".repeat(REMARK_GAP);
                    lines.push(format!("{:indent$}{line:<column$}{gap}{remark}", ""));
                }
                None => lines.extend(continued(line, indent, width)),
            }
        }
        if let Some(remark) = remark.as_ref().filter(|_| !is_beside) {
            let below = filled(remark, width - CONTINUED);
            lines.extend(below.iter().map(|line| format!("{:CONTINUED$}{line}", "")));
        }
    }
    lines
}

/// Breaks a long command with backslashes.
fn continued(command: &str, indent: usize, width: usize) -> Vec<String> {
    if indent + columns(command) <= width {
        return vec![format!("{:indent$}{command}", "")];
    }
    // Two columns are left for the backslash.
    let parts = packed(words_of(command).into_iter(), width - CONTINUED - 2);
    let last = parts.len() - 1;
    let line = |(at, part): (usize, &String)| {
        let indent = if at == 0 { indent } else { CONTINUED };
        let end = if at == last { "" } else { " \\" };
        format!("{:indent$}{part}{end}", "")
    };
    parts.iter().enumerate().map(line).collect()
}

/// Terms and their meanings in two columns.
fn list(items: &[Item], width: usize) -> Vec<String> {
    let terms = items.iter().filter(|item| item.remark.is_some());
    let term = widest(terms.flat_map(|item| item.lines.last())).min(TERM_MAX);
    let column = INDENT + term + GAP;
    let mut lines = Vec::new();
    for item in items {
        let words = item.lines.join(" ");
        let Some(meaning) = &item.remark else {
            let parts = filled(&words, width - INDENT);
            lines.extend(parts.iter().map(|part| format!("{:INDENT$}{part}", "")));
            continue;
        };
        let mut meanings =
            filled(meaning, width.saturating_sub(column).max(WIDTH_MIN / 2)).into_iter();
        if columns(&words) > term {
            lines.push(format!("{:INDENT$}{words}", ""));
        } else if let Some(first) = meanings.next() {
            lines.push(format!("{:INDENT$}{words:<term$}{:GAP$}{first}", "", ""));
        }
        lines.extend(meanings.map(|part| format!("{:column$}{part}", "")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Calls `each` with the path and the help of every command.
    fn each_help(width: usize, each: &mut dyn FnMut(&str, &str)) {
        fn walk(path: &str, command: &mut Command, each: &mut dyn FnMut(&str, &str)) {
            each(path, &command.render_long_help().to_string());
            for below in command.get_subcommands_mut() {
                walk(&format!("{path} {}", below.get_name()), below, each);
            }
        }
        let mut command = fitted_to(crate::Cli::command(), width);
        command.build();
        walk("everbyte", &mut command, each);
    }

    /// The indentation of a line of prose, in a text or in the help of an option.
    fn prose_indent(line: &str) -> Option<usize> {
        let indent = line.len() - line.trim_start().len();
        let is_item = line.trim_start().starts_with(['[', '-']);
        let is_prose = (indent == 0 || indent == 10) && !is_item;
        (is_prose && !line.trim().is_empty() && !line.ends_with(':')).then_some(indent)
    }

    #[test]
    fn help_is_filled_once_at_every_width() {
        let mut pages = 0;
        for width in [60, 80, WIDTH_MAX] {
            each_help(width, &mut |path, help| {
                let lines: Vec<&str> = help.lines().collect();
                let long = lines.iter().find(|line| columns(line) > WIDTH_MAX);
                assert_eq!(long, None, "{path}");
                for pair in lines.windows(2) {
                    let [indent, next] = [0, 1].map(|at| prose_indent(pair[at]));
                    if indent.is_none() || indent != next || pair[1].starts_with("Usage") {
                        continue;
                    }
                    let word = pair[1].split_whitespace().next().unwrap_or_default();
                    let is_full = columns(pair[0].trim_end()) + 1 + columns(word) > width;
                    assert!(is_full, "{path}, {width} columns: {pair:#?}");
                }
                pages += 1;
            });
        }
        assert!(pages > 100, "{pages}");
    }

    #[test]
    fn common_options_stand_below_no_heading() {
        fn walk(path: &str, command: &Command, found: &mut Vec<String>) {
            for argument in command.get_arguments() {
                let name = argument.get_long().unwrap_or_default();
                let is_common = ["json", "verbose", "help", "size", "kind"].contains(&name);
                if argument.get_help_heading().is_some() && is_common {
                    found.push(format!("{path} --{name}"));
                }
            }
            for below in command.get_subcommands() {
                walk(&format!("{path} {}", below.get_name()), below, found);
            }
        }
        let mut found = Vec::new();
        walk("everbyte", &crate::Cli::command(), &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn volume_options_stand_below_their_kind() {
        let command = crate::Cli::command();
        let create = command.find_subcommand("volume").unwrap().find_subcommand("create").unwrap();
        let heading = |long: &str| {
            let argument = create.get_arguments().find(|arg| arg.get_long() == Some(long));
            argument.unwrap().get_help_heading()
        };
        for (options, expected) in [
            (&["checksum"][..], Some("Block volumes and caches")),
            (&["wipe"], Some("Swap volumes")),
            (&["backing", "scm", "dram", "mode", "policy"], Some("Caches")),
            (&["index"], Some("File systems")),
            (&["size", "kind", "options", "json"], None),
        ] {
            for option in options {
                assert_eq!(heading(option), expected, "--{option}");
            }
        }
    }

    const TEXT: &str = "\
Examples:
  everbyte pool check P &&
    everbyte serve P     then serve it
  0 3 * * 0  root  everbyte pool scrub P

Prose that was cut
by hand, and goes on.
Exit status: 0 if all
is well.

Lists have a lead:
  one   the first
        of them
  two   2";

    #[test]
    fn text_has_parts_and_no_line_ends() {
        let sections = parse(TEXT);
        let headings: Vec<_> = sections.iter().map(|part| part.heading.as_deref()).collect();
        assert_eq!(headings, [Some("Examples"), None, Some("Exit status"), None]);
        let Block::Items(items) = &sections[0].blocks[0] else { panic!("{sections:?}") };
        assert_eq!(items[0].lines, ["everbyte pool check P &&", "everbyte serve P"]);
        assert_eq!(items[0].remark.as_deref(), Some("then serve it"));
        assert_eq!(items[1].lines, ["0 3 * * 0  root  everbyte pool scrub P"]);
        let words = "Prose that was cut by hand, and goes on.";
        assert_eq!(sections[1].blocks, [Block::Paragraph(words.into())]);
        let Block::Items(items) = &sections[3].blocks[1] else { panic!("{sections:?}") };
        assert_eq!(items[0].remark.as_deref(), Some("the first of them"));
    }

    #[test]
    fn narrow_text_keeps_commands_whole() {
        let sections = parse(TEXT);
        for width in WIDTH_MIN..=WIDTH_MAX {
            let text = rendered(&sections, width);
            assert!(text.lines().all(|line| columns(line) <= width), "{width}:\n{text}");
            let joined = text.replace(" \\\n     ", "");
            assert!(joined.contains("0 3 * * 0") && joined.contains("everbyte pool scrub P"));
        }
        let long = format!("everbyte {}", "--option value ".repeat(12));
        let parts = continued(long.trim(), INDENT, 80);
        assert!(parts.len() > 2 && parts[0].ends_with(" \\"), "{parts:?}");
        let shell: Vec<&str> =
            parts.iter().map(|part| part.trim().trim_end_matches(" \\")).collect();
        assert_eq!(shell.join(" "), long.trim());
        assert_eq!(words_of("jq '.a | .b' \"c d\""), ["jq", "'.a | .b'", "\"c d\""]);
    }
}
