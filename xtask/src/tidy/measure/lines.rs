//! Lines of production code, and comment lines in functions.
//!
//! A line counts as code if a token of Rust stands on it. The lexer of rustc's grammar finds the tokens, so comments,
//! blank lines and the inside of strings are exact. Items for tests do not count: see [`is_test`].

use std::collections::BTreeSet;
use std::ops::AddAssign;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::Visit;

use super::super::Tree;
use super::super::modules::{attributes, is_test};
use super::super::tree::File;

/// Sums over files.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Lines {
    /// Lines of code.
    pub(crate) code: usize,
    /// Lines of code in bodies of functions.
    pub(crate) in_functions: usize,
    /// Lines in bodies of functions with nothing but a comment.
    pub(crate) comments: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.in_functions += other.in_functions;
        self.comments += other.comments;
    }
}

impl Lines {
    /// Comment lines in functions per line of code.
    pub(crate) fn comment_rate(self) -> f64 {
        as_f64(self.comments) / as_f64(self.code.max(1))
    }
}

/// Converts a count below four billion.
pub(crate) fn as_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::NAN, f64::from)
}

/// Counts the production lines of a file; `None` if the text does not parse.
pub(crate) fn count(text: &str) -> Option<Lines> {
    // One lexer run serves both passes: spans of the items and of the tokens have the same lines.
    let tokens: TokenStream = text.parse().ok()?;
    let parsed: syn::File = syn::parse2(tokens.clone()).ok()?;
    if is_test(&parsed.attrs) {
        return Some(Lines::default());
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut file = Marks {
        code: vec![false; lines.len() + 1],
        tests: vec![false; lines.len() + 1],
        bodies: vec![false; lines.len() + 1],
    };
    mark_tokens(tokens, &lines, &mut file.code);
    file.visit_file(&parsed);
    let mut sum = Lines::default();
    for (at, line) in lines.iter().enumerate().filter(|(at, _)| !file.tests[at + 1]) {
        let (code, body) = (file.code[at + 1], file.bodies[at + 1]);
        // Only whole lines count: a comment behind code mostly names a unit.
        let is_comment = !code && line.trim_start().starts_with("//");
        sum.code += usize::from(code);
        sum.in_functions += usize::from(code && body);
        sum.comments += usize::from(is_comment && body);
    }
    Some(sum)
}

/// Marks the lines of tokens. The lexer yields a doc comment as an attribute with the span of the comment.
fn mark_tokens(tokens: TokenStream, lines: &[&str], code: &mut [bool]) {
    for token in tokens {
        let span = token.span();
        let start = span.start();
        let rest = lines.get(start.line - 1).and_then(|line| {
            let at = line.char_indices().nth(start.column).map_or(line.len(), |(at, _)| at);
            line.get(at..)
        });
        // The token of a doc comment has the source text of the comment.
        if rest.is_some_and(|rest| rest.starts_with("//") || rest.starts_with("/*")) {
            continue;
        }
        if let TokenTree::Group(group) = token {
            // A group alone would mark the comments and blank lines inside it.
            mark(group.span_open(), code);
            mark_tokens(group.stream(), lines, code);
            mark(group.span_close(), code);
        } else {
            mark(span, code);
        }
    }
}

fn mark(span: Span, lines: &mut [bool]) {
    for line in span.start().line..=span.end().line {
        if let Some(line) = lines.get_mut(line) {
            *line = true;
        }
    }
}

/// Lines by their numbers from 1 on.
struct Marks {
    code: Vec<bool>,
    tests: Vec<bool>,
    bodies: Vec<bool>,
}

impl<'ast> Visit<'ast> for Marks {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match is_test(attributes(item)) {
            true => mark(item.span(), &mut self.tests),
            false => syn::visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        match is_test(&function.attrs) {
            true => mark(function.span(), &mut self.tests),
            false => syn::visit::visit_impl_item_fn(self, function),
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        mark(block.span(), &mut self.bodies);
        syn::visit::visit_block(self, block);
    }
}

/// Files of test builds only: folders of tests, benches, examples and fuzz targets, files named `tests.rs`, and
/// modules behind `#[cfg(test)]`.
pub(crate) struct TestFiles {
    files: BTreeSet<String>,
    /// With the slash at the end.
    folders: Vec<String>,
}

impl TestFiles {
    /// Finds the modules behind `#[cfg(test)]`.
    pub(crate) fn of(tree: &Tree) -> Self {
        let mut found = Self { files: BTreeSet::new(), folders: Vec::new() };
        for file in tree.rust().filter(|file| file.text.contains("cfg(")) {
            let Ok(parsed) = syn::parse_file(&file.text) else { continue };
            let stem = file.path.trim_end_matches(".rs");
            let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
            // These three names put their modules next to themselves.
            let below = match name {
                "lib" | "main" | "mod" => format!("{folder}/"),
                _ => format!("{stem}/"),
            };
            for item in &parsed.items {
                if let syn::Item::Mod(module) = item
                    && module.content.is_none()
                    && is_test(&module.attrs)
                {
                    found.files.insert(format!("{below}{}.rs", module.ident));
                    // A module in a file can have inner modules in a folder of its name.
                    found.folders.push(format!("{below}{}/", module.ident));
                }
            }
        }
        found
    }

    /// Returns true for a file of tests.
    pub(crate) fn contains(&self, file: &File) -> bool {
        file.is_test_code()
            || self.files.contains(&file.path)
            || self.folders.iter().any(|folder| file.path.starts_with(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(text: &str) -> [usize; 3] {
        let lines = count(text).unwrap();
        [lines.code, lines.in_functions, lines.comments]
    }

    #[test]
    fn comments_and_blanks_are_not_code() {
        let text = "//! Head.\n\n/// Doc.\nfn a() {\n    // Reason.\n    b(); // trailing\n\n    /* c\n    */\n}\n";
        assert_eq!(sum(text), [3, 3, 1]);
        assert_eq!(sum("const A: &str = \"\n// in a string\n\";\n"), [3, 0, 0]);
        assert_eq!(sum("/** Doc\nof two lines. */\nstruct A;\n"), [1, 0, 0]);
    }

    #[test]
    fn test_items_are_not_production_code() {
        let module = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        assert_eq!(sum(module)[0], 1);
        let method = "impl A {\n    #[cfg(test)]\n    fn b() {}\n    fn c() {}\n}\n";
        assert_eq!(sum(method)[0], 3);
        let both = "#[cfg(all(test, not(loom)))]\nuse a::B;\nuse a::C;\n";
        assert_eq!(sum(both)[0], 1);
        assert_eq!(sum("#![cfg(test)]\nfn a() {}\n")[0], 0);
    }

    #[test]
    fn modules_behind_cfg_test_are_test_files() {
        let tree = Tree::planted(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod oracle;\nmod b;\n"),
            ("crates/a/src/oracle.rs", ""),
            ("crates/a/src/oracle/inner.rs", ""),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod c;\n"),
            ("crates/a/src/b/c.rs", ""),
        ]);
        let tests = TestFiles::of(&tree);
        let found: Vec<&str> =
            tree.rust().filter(|file| tests.contains(file)).map(|file| &*file.path).collect();
        let wanted =
            ["crates/a/src/oracle.rs", "crates/a/src/oracle/inner.rs", "crates/a/src/b/c.rs"];
        assert_eq!(found, wanted);
    }
}
