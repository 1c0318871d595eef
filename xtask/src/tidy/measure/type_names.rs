//! Names of types without a noun: a participle or an adjective alone. A type is a noun.

use syn::Item;

use super::super::modules;
use super::super::rules::RULES;

/// Names of a file's types, at the top and in inline modules without tests.
pub(super) fn participles(text: &str) -> Vec<String> {
    let Ok(parsed) = syn::parse_file(text) else { return Vec::new() };
    let is_type = |item: &&Item| {
        matches!(item, Item::Enum(_) | Item::Struct(_) | Item::Trait(_) | Item::Type(_))
    };
    let types = parsed.items.iter().filter(is_type);
    types.filter_map(modules::name).filter(is_participle).collect()
}

fn is_participle(name: &String) -> bool {
    let is_one_word = !name[1..].contains(|letter: char| letter.is_ascii_uppercase());
    let is_regular = name.ends_with("ed") && !RULES.names.nouns.contains(name);
    is_one_word && (is_regular || RULES.names.participles.contains(name))
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
