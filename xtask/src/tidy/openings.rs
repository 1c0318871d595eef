//! Doc comments lead with the noun or with a verb in the third person.
//!
//! With a question word first, the reader waits for the subject: "Whether it is free" is a clause,
//! "Returns true if it is free" is a sentence.

use super::{Finding, Tree};

/// Refused first words of doc comments.
const QUESTION_WORDS: [&str; 4] = ["What", "Whether", "Where", "Why"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        findings.extend(openings(&file.text).into_iter().map(|(line, word)| {
            let what = format!("the doc comment opens with {word:?}: lead with the noun or a verb");
            Finding::new(&file.path, line, what)
        }));
    }
    findings
}

/// Returns the doc comments of `text` with a question word first: line and word.
fn openings(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut marker_before = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker));
        // Only the first line of a comment opens it.
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
    fn question_words_first_are_found() {
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
}
