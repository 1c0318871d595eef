//! Limits on the length of files and functions.
//!
//! A file counts up to the text of its test module; a function counts from its `fn` line to its closing brace.
//! Test code is free.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::Visit;

use super::measure::lines;
use super::modules::is_test;
use super::{Finding, Tree};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// The policy `everbyte` stays small: lines of code, of these files together. They leave out `modes.rs` with the
/// shadows for the choice of a mode.
const POLICY_LINES_MAX: usize = 550;
const POLICY_FILES: [&str; 3] = [
    "crates/everbyte-policy/src/policy/everbyte/mod.rs",
    "crates/everbyte-policy/src/policy/everbyte/tiers.rs",
    "crates/everbyte-policy/src/policy/everbyte/worth.rs",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.is_test_code()) {
        let lines = production_lines(&file.text);
        if lines > FILE_LINES_MAX {
            let what = format!("{lines} production lines; at most {FILE_LINES_MAX}: split it");
            findings.push(Finding::new(&file.path, 0, what));
        }
        // This rule alone reports a file that does not parse. The others skip it.
        match syn::parse_file(&file.text) {
            Ok(parsed) => {
                let mut meter = Meter::default();
                meter.visit_file(&parsed);
                for (name, line, lines) in meter.long {
                    let what = format!("function {name} has {lines} lines; at most 70");
                    findings.push(Finding::new(&file.path, line, what));
                }
            }
            Err(error) => {
                let line = error.span().start().line;
                findings.push(Finding::new(&file.path, line, format!("cannot parse: {error}")));
            }
        }
    }
    findings.extend(policy_findings(tree));
    findings
}

fn policy_findings(tree: &Tree) -> Option<Finding> {
    let lines: usize = POLICY_FILES
        .iter()
        .filter_map(|path| lines::count(&tree.get(path)?.text))
        .map(|lines| lines.code)
        .sum();
    (lines > POLICY_LINES_MAX).then(|| {
        let what = format!("the policy has {lines} lines of code; at most {POLICY_LINES_MAX}");
        Finding::new(POLICY_FILES[0], 0, what)
    })
}

/// Lines before the file's test module. A test module in another file counts as one line.
pub(super) fn production_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let is_test_module = |at: usize| {
        lines[at].trim() == "#[cfg(test)]"
            && lines[at + 1..]
                .iter()
                .map(|line| line.trim())
                .find(|line| !line.starts_with("#["))
                .is_some_and(|line| line.starts_with("mod ") && !line.ends_with(';'))
    };
    (0..lines.len()).find(|&at| is_test_module(at)).unwrap_or(lines.len())
}

/// Finds long functions outside of test modules.
#[derive(Default)]
struct Meter {
    long: Vec<(String, usize, usize)>,
}

impl Meter {
    fn measure(&mut self, name: &syn::Ident, from: Span, to: Span) {
        let (first, last) = (from.start().line, to.end().line);
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX {
            self.long.push((name.to_string(), first, lines));
        }
    }
}

impl<'ast> Visit<'ast> for Meter {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig.ident, function.sig.span(), function.block.span());
        // A function can contain functions.
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig.ident, function.sig.span(), function.block.span());
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.measure(&function.sig.ident, function.sig.span(), body.span());
        }
        syn::visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn function(lines: usize) -> String {
        format!("//! x\nfn long() {{\n{}}}\n", "    call();\n".repeat(lines - 2))
    }

    #[test]
    fn function_above_limit_is_found() {
        assert!(run(check, &[("crates/a/src/lib.rs", &function(70))]).is_empty());
        let found = run(check, &[("crates/a/src/lib.rs", &function(71))]);
        assert_eq!(found, ["crates/a/src/lib.rs:2: function long has 71 lines; at most 70"],);
    }

    #[test]
    fn methods_and_trait_defaults_count_too() {
        let body = "    call();\n".repeat(70);
        let text = format!(
            "impl A {{ fn one() {{\n{body}}} }}\ntrait B {{ fn two() {{\n{body}}} fn three(); }}\n"
        );
        assert_eq!(run(check, &[("crates/a/src/lib.rs", &text)]).len(), 2);
    }

    #[test]
    fn test_code_may_be_long() {
        let inside =
            format!("#[cfg(test)]\nmod tests {{\n{}\n}}\n", function(90).replace("//!", "//"));
        assert!(run(check, &[("crates/a/src/lib.rs", &inside)]).is_empty());
        assert!(run(check, &[("crates/a/src/tests.rs", &function(90))]).is_empty());
        assert!(run(check, &[("crates/a/tests/it.rs", &function(90))]).is_empty());
    }

    #[test]
    fn file_above_limit_is_found_without_tests() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// y\n".repeat(500));
        let fits = format!("{}{tests}", "// x\n".repeat(800));
        assert!(run(check, &[("crates/a/src/lib.rs", &fits)]).is_empty());
        let long = format!("{}{tests}", "// x\n".repeat(801));
        assert_eq!(
            run(check, &[("crates/a/src/lib.rs", &long)]),
            ["crates/a/src/lib.rs: 801 production lines; at most 800: split it"],
        );
    }

    #[test]
    fn test_module_in_other_file_is_one_line() {
        let head = "#[cfg(test)]\nmod tests;\n";
        let fits = format!("{head}{}", "// x\n".repeat(798));
        assert!(run(check, &[("crates/a/src/lib.rs", &fits)]).is_empty());
        let tests = "#[cfg(test)]\n#[allow(a)]\nmod more {\n// y\n}\n";
        let long = format!("{head}{}{tests}", "// x\n".repeat(799));
        let found = run(check, &[("crates/a/src/lib.rs", &long)]);
        assert_eq!(found, ["crates/a/src/lib.rs: 801 production lines; at most 800: split it"]);
    }

    #[test]
    fn policy_above_limit_is_found() {
        let lines = |count| format!("//! x\n\n// y\n{}", "static X: u8 = 0;\n".repeat(count));
        let (one, two) = (lines(200), lines(350));
        let files = [(POLICY_FILES[0], one.as_str()), (POLICY_FILES[1], two.as_str())];
        assert!(run(check, &files).is_empty());
        let more = lines(1);
        let found = run(check, &[files[0], files[1], (POLICY_FILES[2], more.as_str())]);
        let what = "the policy has 551 lines of code; at most 550";
        assert_eq!(found, [format!("{}: {what}", POLICY_FILES[0])]);
    }

    #[test]
    fn broken_source_is_a_finding() {
        assert_eq!(run(check, &[("crates/a/src/lib.rs", "fn {")]).len(), 1);
    }
}
