//! Names of types without a noun: a participle or an adjective alone. A type is a noun.

use syn::Item;

/// Names without the ending of a regular participle.
const IRREGULAR: [&str; 24] = [
    "Able", "Alone", "Begun", "Bound", "Busy", "Done", "Found", "Fresh", "Given", "Gone", "Held",
    "Kept", "Known", "Lent", "Lost", "Made", "Open", "Said", "Seen", "Spent", "Sent", "Shown",
    "Taken", "Told",
];
/// Nouns with that ending.
const NOUNS: [&str; 5] = ["Feed", "Need", "Seed", "Shed", "Speed"];

/// Names of a file's types, at the top and in inline modules without tests.
pub(super) fn participles(text: &str) -> Vec<String> {
    let Ok(parsed) = syn::parse_file(text) else { return Vec::new() };
    parsed.items.iter().filter_map(name).filter(|name| is_participle(name)).collect()
}

fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Enum(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn is_participle(name: &str) -> bool {
    let is_one_word = !name[1..].contains(|letter: char| letter.is_ascii_uppercase());
    let is_regular = name.ends_with("ed") && !NOUNS.contains(&name);
    is_one_word && (is_regular || IRREGULAR.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_participles_are_found() {
        let text = "struct Held; enum Noted {} struct HeldBlock; struct Seed; type Alone = u8; fn Done() {}";
        assert_eq!(participles(text), ["Held", "Noted", "Alone"]);
    }
}
