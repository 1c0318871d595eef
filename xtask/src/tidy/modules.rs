//! The modules of a crate, as its files declare them, and where a name is defined. A folder with a library and a
//! program has two crates.
//!
//! Invariants: modules of test builds are left out, and so are the names in tests of other modules. Macros are not
//! looked into.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

use super::Tree;

/// Re-exports are followed this far.
const STEPS_MAX: usize = 16;

/// A crate's modules.
pub(super) struct Crate {
    /// Its folder, from the root of the tree.
    pub(super) folder: String,
    modules: BTreeMap<Vec<String>, Module>,
}

/// A module.
#[derive(Default)]
pub(super) struct Module {
    /// Its file, from `src/` on.
    pub(super) file: String,
    /// Names of the modules around it, and its own; empty for the crate's root.
    pub(super) place: Vec<String>,
    /// Absolute paths of its uses, without the `crate`.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// Paths of `use`, by the names they get.
    names: BTreeMap<String, Vec<String>>,
    /// Modules with a `use` of all names.
    globs: Vec<Vec<String>>,
    /// Names of its definitions.
    defined: BTreeSet<String>,
}

impl Crate {
    /// Every crate of the tree.
    pub(super) fn all(tree: &Tree) -> Vec<Self> {
        let manifests =
            tree.files().iter().filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
        let roots = manifests.flat_map(|folder| ["lib.rs", "main.rs"].map(|root| (folder, root)));
        let there =
            roots.filter(|(folder, root)| tree.get(&format!("{folder}/src/{root}")).is_some());
        there.map(|(folder, root)| Self::read(tree, folder, root)).collect()
    }

    fn read(tree: &Tree, folder: &str, root: &str) -> Self {
        let mut krate = Self { folder: folder.to_owned(), modules: BTreeMap::new() };
        krate.read_file(tree, root, "", &[]);
        krate
    }

    /// Reads the module `place` in `file`. Its own modules are in `below`.
    fn read_file(&mut self, tree: &Tree, file: &str, below: &str, place: &[String]) {
        let path = format!("{}/src/{file}", self.folder);
        let Some(parsed) = tree.get(&path).and_then(|file| syn::parse_file(&file.text).ok()) else {
            return; // the rule on sizes reports what is no Rust
        };
        self.add(tree, &parsed.items, file, below, place);
    }

    fn add(&mut self, tree: &Tree, items: &[Item], file: &str, below: &str, place: &[String]) {
        let items = || items.iter().filter(|item| !is_test(attributes(item)));
        let inner = || {
            items().filter_map(|item| if let Item::Mod(inner) = item { Some(inner) } else { None })
        };
        let mut reader = Reader {
            module: Module { file: file.to_owned(), place: place.to_vec(), ..Module::default() },
            modules: inner().map(|module| module.ident.to_string()).collect(),
        };
        // Inner modules are read on their own: their paths begin at another place.
        for item in items() {
            if !matches!(item, Item::Mod(_)) {
                reader.visit_item(item);
            }
            reader.module.defined.extend(name(item));
        }
        self.modules.insert(place.to_vec(), reader.module);
        for module in inner() {
            let name = module.ident.to_string();
            let inside: Vec<String> = place.iter().cloned().chain([name.clone()]).collect();
            let folder = format!("{below}{name}/");
            if let Some((_, items)) = &module.content {
                self.add(tree, items, file, &folder, &inside);
                continue;
            }
            // Rust permits two places of a module; only one exists.
            for file in [format!("{below}{name}.rs"), format!("{folder}mod.rs")] {
                self.read_file(tree, &file, &folder, &inside);
            }
        }
    }

    /// The modules.
    pub(super) fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.values()
    }

    /// The module with the definition of `path`.
    pub(super) fn defined_in(&self, path: &[String]) -> Option<&Module> {
        self.resolve(path, STEPS_MAX)
    }

    fn resolve(&self, path: &[String], steps: usize) -> Option<&Module> {
        // Re-exports can refer to each other, so the number of steps is bounded.
        let steps = steps.checked_sub(1)?;
        // The longest prefix that is a module owns the rest of the path.
        let depth =
            (0..=path.len()).rev().find(|depth| self.modules.contains_key(&path[..*depth]))?;
        let module = &self.modules[&path[..depth]];
        let Some(name) = path.get(depth) else { return Some(module) };
        if module.defined.contains(name) {
            return Some(module);
        }
        if let Some(target) = module.names.get(name) {
            let target: Vec<String> = target.iter().chain(&path[depth + 1..]).cloned().collect();
            return self.resolve(&target, steps);
        }
        let through = |glob: &Vec<String>| {
            let target: Vec<String> = glob.iter().chain(&path[depth..]).cloned().collect();
            self.resolve(&target, steps).filter(|found| found.defined.contains(name))
        };
        // A name that nothing here explains was made by a macro, or comes from another crate.
        module.globs.iter().find_map(through).or(Some(module))
    }
}

/// Reads one module's items.
struct Reader {
    module: Module,
    /// Names of the modules in it.
    modules: BTreeSet<String>,
}

impl Reader {
    /// The absolute path of a path with the first segment `crate`, `self` or `super`.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut place = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => self.module.place.clone(),
            _ => return None,
        };
        let mut rest = path;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "super" => drop(place.pop()?),
                "crate" | "self" => {}
                _ => break,
            }
            rest = others;
        }
        place.extend(rest.iter().cloned());
        Some(place)
    }

    /// Takes a `use`; `before` is the path up to `tree`.
    fn take_use(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.take_use(&path.tree, before);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_use(tree, before);
                }
            }
            UseTree::Glob(_) => {
                if let Some(path) = self.used(before) {
                    self.module.paths.insert(path.clone());
                    self.module.globs.push(path);
                }
            }
            UseTree::Name(name) => self.bind(&name.ident, &name.ident, before),
            UseTree::Rename(rename) => self.bind(&rename.ident, &rename.rename, before),
        }
    }

    fn bind(&mut self, ident: &syn::Ident, called: &syn::Ident, before: &[String]) {
        let mut path = before.to_vec();
        let mut called = called.to_string();
        if ident == "self" {
            called =
                if called == "self" { before.last().cloned().unwrap_or_default() } else { called };
        } else {
            path.push(ident.to_string());
        }
        if let Some(path) = self.used(&path) {
            self.module.paths.insert(path.clone());
            self.module.names.insert(called, path);
        }
    }

    /// The absolute path of an item of this crate: the path begins with `crate`, `self`, `super` or a module here.
    fn used(&self, path: &[String]) -> Option<Vec<String>> {
        // A path can also begin with a module inside this module.
        let is_here = path.first().is_some_and(|first| self.modules.contains(first));
        let below = || self.module.place.iter().chain(path).cloned().collect();
        self.absolute(path).or_else(|| is_here.then(below))
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A path with `::` in front names another crate.
        if item.leading_colon.is_none() {
            self.take_use(&item.tree, &mut Vec::new());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.module.paths.extend(self.used(&segments).filter(|_| segments.len() > 1));
        syn::visit::visit_path(self, path);
    }

    /// Visibilities are not uses.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// The attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name of an item.
pub(super) fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Returns true if the attributes limit an item to test builds.
pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let mut found = false;
        // What cannot be read this way (`feature = "x"`, `any(..)`) is no plain test.
        let _what_can_be_read = attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("test") {
                found = true;
            } else if meta.path.is_ident("all") {
                meta.parse_nested_meta(|inner| {
                    found |= inner.path.is_ident("test");
                    Ok(())
                })?;
            }
            Ok(())
        });
        found
    })
}
