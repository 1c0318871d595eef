//! Refused words: reminders, unfinished code, paths of one machine.
//!
//! The words are concatenated from halves here, so this file passes its own rules.

use super::{Finding, Tree};

const REMINDERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
const UNFINISHED: [&str; 3] =
    [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("db", "g!(")];
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().iter().filter(|file| file.path != "Cargo.lock") {
        for (at, line) in file.text.lines().enumerate() {
            let mut report = |what: String| findings.push(Finding::new(&file.path, at + 1, what));
            for word in REMINDERS.iter().filter(|word| has_word(line, word)) {
                report(format!("{word}: do it now or write an issue"));
            }
            for path in MACHINE_PATHS.iter().filter(|path| has_path(line, path)) {
                report(format!("{path} is a path of one machine"));
            }
            if file.is_rust() {
                for call in UNFINISHED.iter().filter(|call| has_word_start(line, call)) {
                    report(format!("{call}..): finish it"));
                }
            }
        }
    }
    findings
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
    })
}

fn has_word_start(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(is_word))
}

/// An absolute path: not the middle of a relative one, nor a variable's tail.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|c: char| is_word(c) || matches!(c, '.' | '}' | '-' | '*' | '/'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn found(path: &str, line: &str) -> usize {
        run(check, &[(path, line)]).len()
    }

    #[test]
    fn reminders_are_found_as_whole_words() {
        for word in REMINDERS {
            assert_eq!(found("a.md", &format!("// {word}: later")), 1, "{word}");
            assert_eq!(found("a.md", &format!("x{word}x mktemp.{word}{word}")), 0, "{word}");
        }
    }

    #[test]
    fn unfinished_code_is_found_in_rust_only() {
        for call in UNFINISHED {
            assert_eq!(found("a.rs", &format!("    {call});")), 1, "{call}");
            assert_eq!(found("a.rs", &format!("    my_{call});")), 0, "{call}");
            assert_eq!(found("a.md", call), 0, "{call}");
        }
    }

    #[test]
    fn absolute_paths_of_one_machine_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(found("a.sh", &format!("cd {path}x")), 1, "{path}");
            assert_eq!(found("a.sh", &format!("\"{path}x\"")), 1, "{path}");
            assert_eq!(found("a.sh", &format!("cd $top{path}x ./a{path}x")), 0, "{path}");
        }
    }

    #[test]
    fn two_findings_on_two_lines_are_two() {
        let line = format!("{}\n{}\n", REMINDERS[0], REMINDERS[1]);
        assert_eq!(found("a.sh", &line), 2);
    }
}
