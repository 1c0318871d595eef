//! Commands and options: the program alone may name them. Every other crate can be embedded without a command line, so
//! its errors state facts.

use super::sizes::production_lines;
use super::{Finding, Tree};

/// The crate of the program.
const PROGRAM: &str = "crates/everbyte-cli/";
/// Openings of a command's name in a text.
const COMMANDS: [&str; 2] = ["'everbyte ", "`everbyte "];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let crates = tree.below("crates/").filter(|file| !file.path.starts_with(PROGRAM));
    for file in crates.filter(|file| file.is_rust() && !file.is_test_code()) {
        let lines = file.text.lines().take(production_lines(&file.text));
        // Comments may name commands: no user of the library reads them at run time.
        let code = lines.enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (at, line) in code {
            if COMMANDS.iter().any(|command| line.contains(command)) || has_option(line) {
                let what = "names a command or an option: state the fact here, and what to type in \
                            crates/everbyte-cli/src/advice.rs";
                findings.push(Finding::new(&file.path, at + 1, what));
            }
        }
    }
    findings
}

/// Returns true if a word of the line is a long option.
fn has_option(line: &str) -> bool {
    let words = line.split(|c: char| c.is_whitespace() || "\"'`(,".contains(c));
    // A lone `--` is an operator or a separator.
    let mut options = words.filter_map(|word| word.strip_prefix("--"));
    options.any(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn found(path: &str, line: &str) -> usize {
        run(check, &[(path, line)]).len()
    }

    #[test]
    fn commands_in_library_errors_are_found() {
        for line in
            ["\"pass --force\"", "\"see 'everbyte volume list'\"", "(`everbyte pool check`)"]
        {
            assert_eq!(found("crates/everbyte-pool/src/a.rs", line), 1, "{line}");
            assert_eq!(found("crates/everbyte-cli/src/a.rs", line), 0, "{line}");
            assert_eq!(found("crates/everbyte-pool/tests/a.rs", line), 0, "{line}");
            assert_eq!(found("crates/everbyte-pool/src/a.rs", &format!("/// {line}")), 0, "{line}");
            let tested = format!("#[cfg(test)]\nmod tests {{\n{line}\n}}\n");
            assert_eq!(found("crates/everbyte-pool/src/a.rs", &tested), 0, "{line}");
            let apart = format!("#[cfg(test)]\nmod tests;\n\n{line}\n");
            assert_eq!(found("crates/everbyte-pool/src/a.rs", &apart), 1, "{line}");
        }
        for line in ["a - -b", "\"--\"", "x--", "the everbyte program"] {
            assert_eq!(found("crates/everbyte-pool/src/a.rs", line), 0, "{line}");
        }
    }
}
