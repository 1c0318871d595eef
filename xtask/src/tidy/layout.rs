//! The byte tables of `docs/format.md` and the layout types in the code say the same.
//!
//! A layout type is a `#[repr(C)]` struct in the folders below, with fields of plain integers,
//! their little-endian forms, and arrays of those with literal lengths. Its table follows a line
//! `<!-- layout: TypeName size=BYTES -->` and begins each row with offset, size and field. Names,
//! offsets and sizes are compared both ways; a type without a table and a table without a type
//! are findings too.

use std::collections::BTreeSet;

use syn::{Fields, Item, ItemStruct, Type};

use super::{Finding, Tree};

const DOCUMENT: &str = "docs/format.md";
const FOLDERS: [&str; 3] = [
    "crates/everbyte-pool/src/format/",
    "crates/everbyte-sqlite/src/format/",
    "crates/everbyte-fs/src/format/",
];

/// A type's bytes, as the code or the document has them.
#[derive(Debug)]
struct Layout {
    name: String,
    path: String,
    line: usize,
    size: u64,
    fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    name: String,
    offset: u64,
    size: u64,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let in_code = layouts_in_code(tree, &mut findings);
    let Some(document) = tree.get(DOCUMENT) else { return findings };
    let in_document = layouts_in_document(&document.text, &mut findings);
    for code in &in_code {
        match in_document.iter().find(|table| table.name == code.name) {
            Some(table) => compare(code, table, &mut findings),
            None => {
                let what = format!("{} has no table in {DOCUMENT}", code.name);
                findings.push(Finding::new(&code.path, code.line, what));
            }
        }
    }
    for table in in_document.iter().filter(|t| in_code.iter().all(|code| code.name != t.name)) {
        let what = format!("there is no layout type {} in the code", table.name);
        findings.push(Finding::new(DOCUMENT, table.line, what));
    }
    findings
}

fn compare(code: &Layout, table: &Layout, findings: &mut Vec<Finding>) {
    let mut report = |what: String| {
        findings.push(Finding::new(DOCUMENT, table.line, format!("{}: {what}", code.name)));
    };
    if code.size != table.size {
        report(format!("{} bytes here, {} in the code", table.size, code.size));
    }
    let names = code.fields.iter().chain(&table.fields).map(|field| &field.name);
    for name in names.collect::<BTreeSet<_>>() {
        let found = [table, code].map(|layout| layout.fields.iter().find(|f| f.name == *name));
        if found[0] != found[1] {
            let [here, there] = found.map(|field| match field {
                Some(field) => format!("{} bytes at {}", field.size, field.offset),
                None => "missing".to_owned(),
            });
            report(format!("field {name} is {here} here, {there} in the code"));
        }
    }
}

fn layouts_in_code(tree: &Tree, findings: &mut Vec<Finding>) -> Vec<Layout> {
    let mut layouts = Vec::new();
    let files = FOLDERS.iter().flat_map(|folder| tree.below(folder));
    for file in files.filter(|file| file.is_rust()) {
        // The rule on sizes reports a file that does not parse.
        let Ok(parsed) = syn::parse_file(&file.text) else { continue };
        for item in &parsed.items {
            let Item::Struct(item) = item else { continue };
            if !is_repr_c(item) {
                continue;
            }
            match layout_of(item, &file.path) {
                Ok(layout) => layouts.push(layout),
                Err(what) => {
                    let line = item.ident.span().start().line;
                    findings.push(Finding::new(&file.path, line, what));
                }
            }
        }
    }
    layouts
}

fn is_repr_c(item: &ItemStruct) -> bool {
    item.attrs.iter().any(|attribute| {
        attribute.path().is_ident("repr")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "C")
    })
}

/// Lays a struct out as C does.
fn layout_of(item: &ItemStruct, path: &str) -> Result<Layout, String> {
    let name = item.ident.to_string();
    let Fields::Named(named) = &item.fields else {
        return Err(format!("layout type {name} must have named fields"));
    };
    let (mut offset, mut align_max, mut fields) = (0_u64, 1_u64, Vec::new());
    for field in &named.named {
        let field_name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        let Some((size, align)) = size_and_align(&field.ty) else {
            return Err(format!("layout type {name}: the type of {field_name} is not plain"));
        };
        // Padding has undefined bytes, and the medium would store them.
        if offset % align != 0 {
            return Err(format!("layout type {name}: padding before {field_name}; name it"));
        }
        fields.push(Field { name: field_name, offset, size });
        offset += size;
        align_max = align_max.max(align);
    }
    if offset % align_max != 0 {
        return Err(format!("layout type {name}: padding at the end; name it"));
    }
    let line = item.ident.span().start().line;
    Ok(Layout { name, path: path.to_owned(), line, size: offset, fields })
}

/// Size and alignment of a plain type in bytes.
fn size_and_align(ty: &Type) -> Option<(u64, u64)> {
    match ty {
        Type::Path(path) => {
            // The capitals are zerocopy's little-endian integers, which need no alignment.
            match path.path.segments.last()?.ident.to_string().as_str() {
                "u8" => Some((1, 1)),
                "u16" => Some((2, 2)),
                "u32" => Some((4, 4)),
                "u64" => Some((8, 8)),
                "U16" => Some((2, 1)),
                "U32" => Some((4, 1)),
                "U64" => Some((8, 1)),
                _ => None,
            }
        }
        Type::Array(array) => {
            let (size, align) = size_and_align(&array.elem)?;
            let syn::Expr::Lit(literal) = &array.len else { return None };
            let syn::Lit::Int(length) = &literal.lit else { return None };
            Some((size * length.base10_parse::<u64>().ok()?, align))
        }
        _ => None,
    }
}

fn layouts_in_document(text: &str, findings: &mut Vec<Finding>) -> Vec<Layout> {
    let mut layouts: Vec<Layout> = Vec::new();
    let mut in_table = false;
    for (at, line) in text.lines().enumerate() {
        let line_number = at + 1;
        if let Some(mark) = line.trim().strip_prefix("<!-- layout:") {
            let words: Vec<&str> = mark.trim_end_matches("-->").split_whitespace().collect();
            let size = words.get(1).and_then(|word| word.strip_prefix("size=")?.parse().ok());
            let (Some(name), Some(size)) = (words.first(), size) else {
                let what = "a layout mark reads `<!-- layout: TypeName size=BYTES -->`";
                findings.push(Finding::new(DOCUMENT, line_number, what));
                continue;
            };
            let (name, path) = ((*name).to_owned(), DOCUMENT.to_owned());
            layouts.push(Layout { name, path, line: line_number, size, fields: Vec::new() });
            in_table = true;
        } else if in_table && line.starts_with('|') {
            if let (Some(field), Some(layout)) = (field_in(line), layouts.last_mut()) {
                layout.fields.push(field);
            } else if !is_head_or_ruler(line) {
                let what = "a row of a layout table begins `| offset | size | field |`";
                findings.push(Finding::new(DOCUMENT, line_number, what));
            }
        // A blank line may stand between the mark and its table.
        } else if !line.trim().is_empty() {
            in_table = false;
        }
    }
    layouts
}

fn is_head_or_ruler(line: &str) -> bool {
    let first = line.trim_start_matches('|').split('|').next().unwrap_or("").trim();
    first == "offset" || first.chars().all(|c| matches!(c, '-' | ':'))
}

/// The field in a row, if it begins with two numbers and a name.
fn field_in(row: &str) -> Option<Field> {
    let mut cells = row.trim_start_matches('|').split('|').map(str::trim);
    let offset = cells.next()?.parse().ok()?;
    let size = cells.next()?.parse().ok()?;
    let name = cells.next()?.trim_matches('`').to_owned();
    (!name.is_empty()).then_some(Field { name, offset, size })
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    const CODE: &str = "//! Head.\n#[derive(Clone)]\n#[repr(C)]\npub struct Head {\n    \
        pub magic: [u8; 8],\n    pub size: u64,\n    pub kind: u32,\n    pub crc: U32,\n}\n";
    const TABLE: &str = "<!-- layout: Head size=24 -->\n\n| offset | size | field | meaning |\n\
        | ---: | ---: | --- | --- |\n| 0 | 8 | `magic` | x |\n| 8 | 8 | `size` | x |\n\
        | 16 | 4 | `kind` | x |\n| 20 | 4 | `crc` | x |\n\nText.\n\n| 1 | 2 | other |\n";

    fn found(code: &str, table: &str) -> Vec<String> {
        run(check, &[("crates/everbyte-pool/src/format/head.rs", code), (DOCUMENT, table)])
    }

    #[test]
    fn code_and_document_in_step() {
        assert_eq!(found(CODE, TABLE), Vec::<String>::new());
    }

    #[test]
    fn every_difference_is_found() {
        for (from, to) in [
            ("size=24", "size=32"),
            ("| 8 | 8 | `size`", "| 8 | 4 | `size`"),
            ("| 16 | 4 | `kind`", "| 12 | 4 | `kind`"),
            ("`crc`", "`sum`"),
            ("| 20 | 4 | `crc` | x |\n", ""),
            ("| 20 | 4 | `crc` | x |\n", "| 20 | 4 | `crc` | x |\n| 24 | 4 | `more` | x |\n"),
            ("layout: Head", "layout: Tail"),
            ("size=24", "24"),
            ("| 20 | 4 |", "| twenty | 4 |"),
        ] {
            let table = TABLE.replace(from, to);
            assert_ne!(table, TABLE);
            assert!(!found(CODE, &table).is_empty(), "{from:?} -> {to:?}");
        }
        assert!(!found(&CODE.replace("kind: u32", "kind: u16"), TABLE).is_empty());
        assert!(!found(&CODE.replace("[u8; 8]", "[u8; 4]"), TABLE).is_empty());
    }

    #[test]
    fn type_without_table_is_found() {
        let path = "crates/everbyte-pool/src/format/head.rs";
        assert_eq!(found(CODE, "none"), [format!("{path}:4: Head has no table in {DOCUMENT}")]);
    }

    #[test]
    fn fields_that_are_not_plain_and_padding_are_found() {
        for field in ["[u8; LEN]", "usize", "Option<u8>"] {
            let code = CODE.replace("pub size: u64", &format!("pub size: {field}"));
            assert!(found(&code, TABLE)[0].contains("is not plain"), "{field}");
        }
        let code = CODE.replace("[u8; 8]", "[u8; 7]");
        assert!(found(&code, TABLE)[0].contains("padding before size"));
        let code = CODE.replace("pub kind: u32", "pub kind: u8");
        assert!(found(&code, TABLE)[0].contains("padding at the end"));
    }

    #[test]
    fn other_structs_are_left_alone() {
        let code = format!("{CODE}pub struct Free {{ a: usize }}\n#[repr(u8)]\nenum E {{ A }}\n");
        assert!(found(&code, TABLE).is_empty());
    }
}
