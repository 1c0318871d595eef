//! Files of a crate form no cycles: shared code moves below its users.
//!
//! A file depends on another file if it has a path to an item of that file. The path begins with `crate`, `super`,
//! `self` or a module, in a `use` or elsewhere. Names are followed through re-exports to their definitions. A module
//! and the modules inside it may use each other: the outer module is their interface. Tests and arguments of macros
//! are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::Crate;
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for krate in Crate::all(tree) {
        let graph = dependencies(&krate);
        for circle in circles(&graph) {
            let files: Vec<&str> = circle.iter().map(String::as_str).collect();
            let what = format!(
                "the files {} depend on each other, as in {}: move what they share below them",
                files.join(", "),
                way_round(&graph, files[0]).join(" -> ")
            );
            findings.push(Finding::new(format!("{}/src/{}", krate.folder, files[0]), 0, what));
        }
    }
    findings
}

/// The dependencies of each file.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn dependencies(krate: &Crate) -> Graph {
    let mut graph = Graph::new();
    for module in krate.modules() {
        let uses = module.paths.iter().filter_map(|path| krate.defined_in(path));
        // An outer module is the interface of its inner modules: that edge is not a dependency.
        let outside = uses.filter(|used| !used.place.starts_with(&module.place));
        // Inline modules share the file of their outer module.
        let others = outside.filter(|used| used.file != module.file).map(|used| used.file.clone());
        graph.entry(module.file.clone()).or_default().extend(others);
    }
    graph
}

/// The sets of two files and more with mutual dependencies.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|file| (file, reachable(graph, file))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for file in graph.keys() {
        // Each file of a cycle would report the same cycle again.
        if found.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        // Two files with a way in both directions are in one cycle.
        let returns = |other: &&String| reached.get(other).is_some_and(|back| back.contains(file));
        let circle: BTreeSet<String> = reached[file].iter().filter(returns).cloned().collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

/// The files below `from`, itself included if it is in a cycle.
fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for next in graph.get(file).into_iter().flatten() {
            // A file that was reached before is not followed again, so a cycle ends the walk.
            if reached.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    reached
}

/// A shortest way from `from` back to itself.
fn way_round<'a>(graph: &'a Graph, from: &'a str) -> Vec<&'a str> {
    let mut ways = VecDeque::from([vec![from]]);
    let mut seen = BTreeSet::new();
    // The queue has the ways by their lengths, so the first one back is a shortest one.
    while let Some(way) = ways.pop_front() {
        for next in way.last().and_then(|last| graph.get(*last)).into_iter().flatten() {
            let longer = [&way[..], &[next.as_str()]].concat();
            if next == from {
                return longer;
            }
            if seen.insert(next) {
                ways.push_back(longer);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let mut planted = vec![("crates/a/Cargo.toml", "")];
        planted.extend(files.iter().map(|(path, text)| (path.as_str(), *text)));
        run(check, &planted)
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\npub use b::B;");

    #[test]
    fn cycle_of_three_is_found_in_all_spellings() {
        for use_a in [
            "use crate::a::A;",
            "use super::a::A as Other;",
            "fn f(_: crate::a::A) {}",
            "use crate::A;",
            "use crate::{a::{A, X}};",
            "mod inner { use super::super::a::A; }",
            "use crate::a::*;",
            "impl crate::a::A for u8 {}",
        ] {
            let files = [
                ROOT,
                ("a.rs", "use crate::B;\npub struct A;"),
                ("b.rs", "use super::c::C; pub struct B;"),
                ("c.rs", use_a),
            ];
            let found = found(&files);
            assert_eq!(found.len(), 1, "{use_a}: {found:?}");
            assert!(found[0].contains("a.rs -> b.rs -> c.rs -> a.rs"), "{found:?}");
        }
    }

    #[test]
    fn cycles_below_both_roots_are_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "use crate::a::A;\npub struct B;"),
            ("main.rs", "mod c;\nmod d;\nuse a::A;\nstruct Own;"),
            ("c.rs", "use crate::d::D;\npub struct C;"),
            ("d.rs", "use crate::c::C;\npub struct D;"),
        ];
        let all = found(&files);
        assert!(all.len() == 2 && all[0].contains("a.rs, b.rs"), "{all:?}");
        assert!(all[1].contains("c.rs, d.rs"), "{all:?}");
        assert_eq!(found(&files[3..]), all[1..], "a program alone");
    }

    #[test]
    fn downward_paths_form_no_cycle() {
        let files = [
            ROOT,
            ("a.rs", "use crate::B; use std::fmt;\npub struct A;"),
            ("b.rs", "use crate::c; pub struct B;"),
            ("c.rs", "pub struct C;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn module_and_inner_modules_may_use_each_other() {
        let root = ("lib.rs", "mod a;\nuse a::A;\npub struct Own(A);");
        let inner = ("a/b.rs", "use super::A;\npub struct B;");
        let module = ("a/mod.rs", "mod b;\nuse b::B;\nuse crate::Own;\npub struct A(B, Own);");
        assert_eq!(found(&[root, module, inner]), Vec::<String>::new());
    }

    #[test]
    fn cycle_through_inner_module_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod c;"),
            ("a/mod.rs", "mod b;\npub struct A;\nuse crate::c::C;"),
            ("a/b.rs", "use super::A;\npub struct B;"),
            ("c.rs", "use crate::a::b::B;\npub struct C;"),
        ];
        let found = found(&files);
        assert!(found.len() == 1 && found[0].contains("a/b.rs, a/mod.rs, c.rs"), "{found:?}");
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let back = "#[cfg(test)]\nmod tests { use crate::a::A; }\n#[cfg(test)]\nuse crate::a::A;";
        let files =
            [ROOT, ("a.rs", "use crate::b::B;\npub struct A;"), ("b.rs", back), ("c.rs", "")];
        assert_eq!(found(&files), Vec::<String>::new());
        let root = ("lib.rs", "mod a;\n#[cfg(test)]\nmod reference;");
        let files = [
            root,
            ("a.rs", "use crate::reference::R; pub struct A;"),
            ("reference.rs", "use crate::a::A;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
