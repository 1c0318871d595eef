//! Rates of words in prose: in Markdown, in doc comments and texts of errors, and in test names.
//!
//! Code, tables and headings do not count. A sentence ends at a period, question mark or exclamation mark before a
//! capital letter; sentences of two words and less do not count. The limits lie above the rates of redb,
//! mountpoint-s3, foyer, lsm-tree, moka and object_store.

use super::super::rules::RULES;
use super::lines::as_f64;

/// Longest short sentence, in words.
const WORDS_MAX: usize = 35;
/// Longest good name of a test, in characters.
const NAME_MAX: usize = 50;

/// Sums over sentences.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Prose {
    pub(crate) sentences: usize,
    pub(crate) words: usize,
    relative: usize,
    what: usize,
    long: usize,
    idioms: usize,
}

impl Prose {
    /// Adds the sentences of a page in Markdown.
    pub(crate) fn add_markdown(&mut self, text: &str) {
        for paragraph in markdown(text) {
            self.add(&paragraph);
        }
    }

    /// Adds the doc comments and the texts of errors of a file.
    pub(crate) fn add_rust(&mut self, text: &str) {
        for paragraph in doc_comments(text).iter().chain(&errors(text)) {
            self.add(paragraph);
        }
    }

    fn add(&mut self, paragraph: &str) {
        for sentence in sentences(paragraph) {
            let words = sentence.split_whitespace().count();
            // Labels such as "See also" are not sentences.
            if words <= 2 {
                continue;
            }
            let small = sentence.to_lowercase();
            let count = |word: &str| whole_words(&small).filter(|found| *found == word).count();
            self.sentences += 1;
            self.words += words;
            self.relative += RULES.prose.relative.iter().map(|word| count(word)).sum::<usize>();
            self.what += count("what");
            self.long += usize::from(words > WORDS_MAX);
            self.idioms += idioms(&small);
        }
    }

    /// Names, values and limits of the rates.
    pub(crate) fn rates(&self) -> [(&'static str, f64, f64); 4] {
        let per_sentence = |count: usize| as_f64(count) / as_f64(self.sentences.max(1));
        let idioms = 10_000.0 * as_f64(self.idioms) / as_f64(self.words.max(1));
        [
            ("relative", per_sentence(self.relative), 0.25),
            ("what", per_sentence(self.what), 0.015),
            ("long", 100.0 * per_sentence(self.long), 5.0),
            ("idioms", idioms, 12.0),
        ]
    }
}

/// Names of tests.
#[derive(Clone, Default, Debug)]
pub(crate) struct TestNames {
    lengths: Vec<usize>,
    bad: usize,
}

impl TestNames {
    /// Adds the tests of a file: functions below an attribute like `#[test]`.
    pub(crate) fn add(&mut self, text: &str) {
        for (at, _) in text.match_indices("#[") {
            if let Some(name) = test_name(&text[at + 2..]) {
                self.lengths.push(name.chars().count());
                let is_led = RULES.prose.leaders.iter().any(|leader| name.starts_with(leader));
                self.bad += usize::from(is_led || name.chars().count() > NAME_MAX);
            }
        }
    }

    /// Names, values and limits: the median length, and the share of long names and names with an article.
    pub(crate) fn rates(&self) -> [(&'static str, f64, f64); 2] {
        let mut lengths = self.lengths.clone();
        lengths.sort_unstable();
        let count = lengths.len();
        let median = match count {
            0 => 0.0,
            _ => as_f64(lengths[(count - 1) / 2] + lengths[count / 2]) / 2.0,
        };
        let bad = 100.0 * as_f64(self.bad) / as_f64(count.max(1));
        [("test_name_median", median, 35.0), ("test_names_bad", bad, 5.0)]
    }

    /// Number of tests.
    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }
}

/// The name of the test below an attribute; `after` is the text behind its `#[`.
fn test_name(after: &str) -> Option<&str> {
    let (attribute, mut rest) = after.split_once(']')?;
    let last = attribute.split('(').next()?.rsplit("::").next()?;
    let is_path = attribute.starts_with(|first: char| first.is_alphabetic());
    if !(is_path && last.starts_with("test")) {
        return None;
    }
    rest = rest.trim_start();
    // Attributes such as `#[ignore]` can follow.
    while let Some(next) = rest.strip_prefix("#[") {
        rest = next.split_once(']')?.1.trim_start();
    }
    rest = rest.strip_prefix("pub ").unwrap_or(rest);
    rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
    let end = rest.find(|letter: char| !is_word(letter)).unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// Paragraphs and list items, without code, comments, tables and headings.
fn markdown(text: &str) -> Vec<String> {
    let text = without(&without(text, "```", "```"), "<!--", "-->");
    let (mut found, mut paragraph) = (Vec::new(), String::new());
    for line in text.lines() {
        let begin = line.trim_start();
        if begin.starts_with(['|', '#']) {
            continue;
        }
        // An item starts a paragraph without a blank line before it.
        if begin.is_empty() || is_item(begin) {
            found.push(std::mem::take(&mut paragraph));
        }
        paragraph.push_str(line);
        paragraph.push(' ');
    }
    found.push(paragraph);
    found
}

/// A text without the parts between two marks.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, inside)) = rest.split_once(open) {
        let Some((_, after)) = inside.split_once(close) else { break };
        done.push_str(before);
        rest = after;
    }
    done + rest
}

/// Returns true for the first line of an item of a list.
fn is_item(line: &str) -> bool {
    let number = line.trim_start_matches(|first: char| first.is_ascii_digit());
    let mark = match number.len() < line.len() {
        true => number.strip_prefix('.'),
        false => line.strip_prefix(['-', '*']),
    };
    mark.is_some_and(|rest| rest.starts_with(' '))
}

/// Paragraphs of doc comments. Each item of a list is a paragraph.
fn doc_comments(text: &str) -> Vec<String> {
    let (mut found, mut paragraph, mut in_code) = (Vec::new(), Vec::new(), false);
    for line in text.lines() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(body) = doc.map(|doc| doc.strip_prefix(' ').unwrap_or(doc)) else {
            found.push(std::mem::take(&mut paragraph).join(" "));
            in_code = false;
            continue;
        };
        let begin = body.trim_start();
        if begin.starts_with("```") {
            in_code = !in_code;
            continue;
        }
        let is_number = || {
            let rest = begin.trim_start_matches(|first: char| first.is_ascii_digit());
            rest.len() < begin.len() && rest.starts_with('.')
        };
        let is_mark = begin.starts_with(['-', '*', '#', '|']) || is_number();
        if in_code || begin.is_empty() || is_mark {
            found.push(std::mem::take(&mut paragraph).join(" "));
            if is_mark && !in_code && !begin.starts_with(['#', '|']) {
                let item = begin.trim_start_matches(|first: char| first.is_ascii_digit());
                paragraph.push(item.strip_prefix(['-', '*', '.']).unwrap_or(item).trim_start());
            }
        } else {
            paragraph.push(body);
        }
    }
    found.push(paragraph.join(" "));
    found.retain(|paragraph| !paragraph.is_empty());
    found
}

/// Texts of `#[error("...")]`.
fn errors(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The text before the first mark belongs to no error.
    for part in text.split("#[error(").skip(1) {
        let Some(literal) = part.trim_start().strip_prefix('"') else { continue };
        let mut escaped = false;
        let end = literal.find(|letter: char| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        found.extend(end.map(|end| literal[..end].to_owned()));
    }
    found
}

/// Sentences of a paragraph. Links are their words, and code is one word.
fn sentences(paragraph: &str) -> Vec<String> {
    let joined = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = with_plain_code(&with_plain_links(&joined));
    let (mut found, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices(' ') {
        let begins = |next: char| next.is_ascii_uppercase() || "*\"(".contains(next);
        // A period before a small letter ends an abbreviation.
        if text[..at].ends_with(['.', '!', '?']) && text[at + 1..].starts_with(begins) {
            found.push(text[start..at].to_owned());
            start = at + 1;
        }
    }
    found.push(text[start..].to_owned());
    found
}

fn with_plain_links(text: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, inside)) = rest.split_once('[') {
        let Some((words, after)) = inside.split_once(']') else { break };
        done.push_str(before);
        done.push_str(words);
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    done + rest
}

fn with_plain_code(text: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, inside)) = rest.split_once('`') {
        let Some((_, after)) = inside.split_once('`') else { break };
        done.push_str(before);
        done.push('X');
        rest = after;
    }
    done + rest
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn whole_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter| !is_word(letter)).filter(|word| !word.is_empty())
}

/// Counts the idioms of a sentence in small letters.
fn idioms(text: &str) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < text.len() {
        // An idiom begins at the beginning of a word: `retold` does not contain `told`.
        let is_start = !text[..at].ends_with(is_word);
        let length = RULES.prose.idioms.iter().find_map(|idiom| idiom_at(&text[at..], idiom));
        match length.filter(|_| is_start) {
            Some(length) => {
                count += 1;
                at += length;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    count
}

/// The length of an idiom at the beginning of a text.
fn idiom_at(text: &str, idiom: &str) -> Option<usize> {
    if let Some(idiom) = idiom.strip_suffix('*') {
        let rest = text.strip_prefix(idiom)?;
        let word = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
        return (word > 0).then_some(idiom.len() + word);
    }
    text.strip_prefix(idiom).filter(|rest| !rest.starts_with(is_word)).map(|_| idiom.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_page(text: &str) -> Prose {
        let mut prose = Prose::default();
        prose.add_markdown(text);
        prose
    }

    #[test]
    fn markdown_counts_paragraphs_and_items() {
        let text = "# What it is\n\nA pool that works. It has\n`which` volumes.\n\n\
                    | what | who |\n```\nwhat is this\n```\n- One item here\n2. Two items here\n";
        let prose = of_page(text);
        assert_eq!((prose.sentences, prose.words, prose.relative), (4, 15, 1));
        assert_eq!(of_page("<!-- what is\nthis now -->\n").sentences, 0);
    }

    #[test]
    fn rates_count_relative_words_idioms_and_length() {
        let prose = of_page("What is no pool goes on at once. See [the page](what.md) of it.");
        assert_eq!((prose.sentences, prose.relative, prose.what, prose.idioms), (2, 1, 1, 3));
        let long = "word ".repeat(36);
        assert_eq!(of_page(&long).long, 1);
        assert_eq!(of_page(&long[5..]).long, 0);
        assert_eq!(idioms("tellers mended a meanwhiles, told_it and told"), 2);
    }

    #[test]
    fn rust_counts_doc_comments_and_errors() {
        let text = "//! A head that\n//! goes on.\n//!\n//! - an item of it\n//! ```\n//! what is it\n\
                    //! ```\n// what is not counted\n#[error(\"a \\\"name\\\" which fails\")]\nstruct A;\n";
        let mut prose = Prose::default();
        prose.add_rust(text);
        assert_eq!((prose.sentences, prose.relative, prose.idioms), (3, 2, 1));
    }

    #[test]
    fn test_names_are_those_below_test_attributes() {
        let mut names = TestNames::default();
        let long = "x".repeat(51);
        names.add("#[test]\nfn a_pool() {}\n#[tokio::test]\n#[ignore]\nasync fn pool_opens() {}\n");
        names.add(&format!("#[cfg(test)]\nmod tests {{}}\n#[test] pub fn {long}() {{}}\n"));
        assert_eq!((names.len(), names.bad), (3, 2));
        assert!((names.rates()[0].1 - 10.0).abs() < 1e-9, "{:?}", names.rates());
    }
}
