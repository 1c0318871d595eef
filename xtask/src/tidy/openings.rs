//! Doc comments lead with the noun or with a verb in the third person.
//!
//! One that opens with a question word makes its reader wait for the subject: "Whether it is free"
//! is a clause, "Returns true if it is free" is a sentence.

use super::{Finding, Tree};

/// First words that no doc comment has.
const QUESTION_WORDS: [&str; 4] = ["What", "Whether", "Where", "Why"];

/// Paths whose doc comments have not been rewritten yet. None is ever added.
const PENDING: [&str; 3] =
    ["crates/everbyte-block/", "crates/everbyte-extent/", "crates/everbyte-plant/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut pending = PENDING.map(|path| (path, Progress::NoFile));
    for file in tree.rust() {
        let found = openings(&file.text);
        let path = pending.iter_mut().find(|(path, _)| file.path.starts_with(path));
        match path {
            Some((_, progress)) if !found.is_empty() => *progress = Progress::Pending,
            Some((_, progress)) => *progress = (*progress).max(Progress::Done),
            None => findings.extend(found.into_iter().map(|(line, word)| {
                let what =
                    format!("the doc comment opens with {word:?}: lead with the noun or a verb");
                Finding::new(&file.path, line, what)
            })),
        }
    }
    let done = pending.iter().filter(|(_, progress)| *progress == Progress::Done);
    findings.extend(done.map(|(path, _)| {
        Finding::new(file!(), 0, format!("{path} is done: take it out of the pending paths"))
    }));
    findings
}

/// State of a pending path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    NoFile,
    Done,
    Pending,
}

/// Returns the doc comments of `text` that open with a question word: line and word.
fn openings(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut marker_before = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker));
        if let Some(marker) = marker.filter(|_| marker != marker_before) {
            let first = line[marker.len()..].split_whitespace().next().unwrap_or("");
            let first = first.trim_end_matches([',', '.', ':', ';']);
            found.extend(QUESTION_WORDS.iter().find(|word| **word == first).map(|w| (at + 1, *w)));
        }
        marker_before = marker;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        run(check, &[(path, text)])
    }

    #[test]
    fn doc_comments_that_open_with_a_question_word_are_found() {
        for word in QUESTION_WORDS {
            for marker in ["///", "//!", "    ///"] {
                let text = format!("{marker} {word} it is.\n{marker} More of it.\nfn a() {{}}\n");
                assert_eq!(found("crates/a/src/lib.rs", &text).len(), 1, "{text}");
            }
        }
        assert_eq!(found("xtask/src/a.rs", "//! A file.\n/// Why.\nfn a() {}").len(), 1);
    }

    #[test]
    fn question_words_elsewhere_are_no_findings() {
        for text in [
            "// What it is.",
            "/// Bytes.\n/// What follows is a sentence of its own.",
            "/// Whatever it takes.",
            "/// Returns where it is.",
        ] {
            assert_eq!(found("crates/a/src/lib.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_pending_path_is_spared_until_it_is_done() {
        let path = format!("{}src/lib.rs", PENDING[1]);
        assert_eq!(found(&path, "/// What it is."), [""; 0]);
        assert_eq!(found(&path, "/// The thing.").len(), 1);
    }
}
