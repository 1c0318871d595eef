//! A page: headings, paragraphs, charts, tables and a footer.

use crate::chart::Chart;
use crate::date::utc;
use crate::escape::escaped;
use crate::look;

const STYLE: &str = include_str!("page.css");

/// A page that is being written.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: String,
    /// Looks of its charts.
    looks: usize,
}

/// A table of texts and numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Headings of the columns; a table without them has no head.
    pub head: Vec<Cell>,
    /// Rows of cells.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cell {
    /// Words, on the left.
    Words(String),
    /// A number with its unit, on the right.
    Number(String),
}

/// Facts with which others can cite a page, and make it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Provenance {
    /// Date and time, in seconds since 1970.
    pub unix_s: u64,
    /// Program and version.
    pub version: String,
    /// Words of the command line.
    pub command: Vec<String>,
    /// Further facts, each with its name.
    pub facts: Vec<(String, String)>,
}

impl Page {
    /// Begins a page.
    #[must_use]
    pub fn new(title: &str) -> Self {
        let title = escaped(title);
        Self { body: format!("<h1>{title}</h1>"), title, looks: 0 }
    }

    /// Writes a heading of `level` 2 or 3.
    pub fn heading(&mut self, level: u8, text: &str) {
        self.body += &format!("<h{level}>{}</h{level}>", escaped(text));
    }

    /// Writes a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.body += &format!("<p>{}</p>", escaped(text));
    }

    /// Writes a paragraph that warns.
    pub fn warning(&mut self, text: &str) {
        self.body += &format!("<p class=\"warn\">{}</p>", escaped(text));
    }

    /// Writes a chart. Returns false, and writes nothing, if it has no value.
    pub fn chart(&mut self, chart: &Chart) -> bool {
        let Some(html) = chart.html() else { return false };
        self.body += &html;
        // The style at the end has only the colors that the page uses.
        self.looks = self.looks.max(chart.looks());
        true
    }

    /// Writes a heading, an explanation and a chart; nothing if the chart has no value.
    pub fn section(&mut self, level: u8, heading: &str, explanation: &str, chart: &Chart) -> bool {
        let before = self.body.len();
        self.heading(level, heading);
        self.paragraph(explanation);
        let is_written = self.chart(chart);
        // A heading above nothing would look like a mistake.
        if !is_written {
            self.body.truncate(before);
        }
        is_written
    }

    /// Writes a table.
    pub fn table(&mut self, table: &Table) {
        self.body += &table.html();
    }

    /// Writes a table that a reader unfolds.
    pub fn folded(&mut self, summary: &str, table: &Table) {
        let (summary, table) = (escaped(summary), table.html());
        self.body += &format!("<details><summary>{summary}</summary>{table}</details>");
    }

    /// Writes the footer.
    pub fn footer(&mut self, provenance: &Provenance) {
        let Provenance { unix_s, version, command, facts } = provenance;
        let date = format!("{} UTC", utc(i64::try_from(*unix_s).unwrap_or(i64::MAX)));
        // Quoted for a shell, so that a reader can run it again.
        let command = command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        self.body += "<footer><h2>About this page</h2><dl>";
        let first = [("Date", &date), ("Version", version), ("Command", &command)];
        let first = first.into_iter().map(|(name, fact)| (name, fact.as_str()));
        let others = facts.iter().map(|(name, fact)| (name.as_str(), fact.as_str()));
        for (name, fact) in first.chain(others) {
            self.body += &format!("<dt>{}<dd>{}", escaped(name), escaped(fact));
        }
        self.body += "</dl></footer>";
    }

    /// Ends the page and returns it.
    #[must_use]
    pub fn finish(self) -> String {
        let Self { title, body, looks, .. } = self;
        let looks = look::style(looks);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
             <style>{STYLE}{looks}</style></head><body>{body}</body></html>\n"
        )
    }
}

impl Table {
    fn html(&self) -> String {
        let mut html = "<div class=\"scroll\"><table>".to_owned();
        if !self.head.is_empty() {
            html += "<thead><tr>";
            html.extend(self.head.iter().map(|cell| cell.html("th")));
            html += "</tr></thead>";
        }
        html += "<tbody>";
        for row in &self.rows {
            html += "<tr>";
            html.extend(row.iter().map(|cell| cell.html("td")));
            html += "</tr>";
        }
        html + "</tbody></table></div>"
    }
}

impl Cell {
    /// Words, on the left.
    pub fn words(text: impl Into<String>) -> Self {
        Self::Words(text.into())
    }

    /// A number, on the right.
    pub fn number(text: impl Into<String>) -> Self {
        Self::Number(text.into())
    }

    fn html(&self, tag: &str) -> String {
        match self {
            Self::Words(text) => format!("<{tag}>{}", escaped(text)),
            Self::Number(text) => format!("<{tag} class=\"n\">{}", escaped(text)),
        }
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "</title><script>alert(1)</script>";

    #[test]
    fn hostile_text_stays_text_everywhere() {
        let mut page = Page::new(HOSTILE);
        page.heading(2, HOSTILE);
        page.paragraph(HOSTILE);
        page.warning(HOSTILE);
        let cell = || vec![Cell::words(HOSTILE), Cell::number(HOSTILE)];
        let table = Table { head: cell(), rows: vec![cell()] };
        page.table(&table);
        page.folded(HOSTILE, &table);
        let text = HOSTILE.to_owned();
        page.footer(&Provenance {
            unix_s: 0,
            version: text.clone(),
            command: vec![text.clone()],
            facts: vec![(text.clone(), text)],
        });
        let page = page.finish();
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("&lt;script").count(), 18);
    }

    #[test]
    fn page_needs_nothing_else_and_has_both_modes() {
        let page = Page::new("x").finish();
        for outside in ["<script", "<link", "src=", "url(", "href=", "http"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme:dark") && page.contains("name=\"viewport\""));
    }

    #[test]
    fn command_can_be_pasted_into_a_shell() {
        let words = ["everbyte", "a b", "it's", "", "10%,20%"].map(quoted);
        assert_eq!(words, ["everbyte", "'a b'", "'it'\\''s'", "''", "10%,20%"]);
    }
}
