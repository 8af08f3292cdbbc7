//! How long files and functions of `src` may be, and how many fields a struct may have.

use std::path::Path;

use quote::ToTokens as _;
use syn::spanned::Spanned as _;
use syn::{ImplItem, Item, ItemStruct, TraitItem};

use super::structure::root;

const LONGEST_FILE: usize = 400;
const LONGEST_FUNCTION: usize = 60;
const MOST_FIELDS: usize = 9;

/// Calls `visit` with each file of `src`, those for tests too.
pub(super) fn each_file(folder: &Path, visit: &mut impl FnMut(&str, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_file(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            visit(&name, &std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Whether a struct has a field for each key, or for each argument: those are as many as there are.
fn is_of_settings(file: &str, item: &ItemStruct) -> bool {
    let attributes: String =
        item.attrs.iter().map(|attribute| attribute.to_token_stream().to_string()).collect();
    let is_of_clap =
        ["clap :: Args", "Args)", "Args,", "Parser"].iter().any(|name| attributes.contains(name));
    is_of_clap || file.starts_with("src/config/") || item.ident.to_string().ends_with("Options")
}

fn check(file: &str, items: &[Item], wrong: &mut Vec<String>) {
    let mut function = |name: &syn::Ident, from: proc_macro2::Span, to: proc_macro2::Span| {
        let length = to.end().line - from.start().line + 1;
        if length > LONGEST_FUNCTION {
            wrong.push(format!("{file}: the function {name} has {length} lines"));
        }
    };
    for item in items {
        match item {
            Item::Fn(item) => function(&item.sig.ident, item.sig.span(), item.block.span()),
            Item::Impl(item) => item.items.iter().for_each(|item| {
                if let ImplItem::Fn(item) = item {
                    function(&item.sig.ident, item.sig.span(), item.block.span());
                }
            }),
            Item::Trait(item) => item.items.iter().for_each(|item| {
                if let TraitItem::Fn(item) = item
                    && let Some(block) = &item.default
                {
                    function(&item.sig.ident, item.sig.span(), block.span());
                }
            }),
            _ => {}
        }
    }
    for item in items {
        match item {
            Item::Struct(item) if item.fields.len() > MOST_FIELDS && !is_of_settings(file, item) => {
                wrong.push(format!("{file}: the struct {} has {} fields", item.ident, item.fields.len()));
            }
            Item::Mod(module) => {
                check(file, module.content.as_ref().map_or(&[], |(_, items)| items), wrong);
            }
            _ => {}
        }
    }
}

#[test]
fn no_file_function_or_struct_of_src_is_too_large() {
    let (mut wrong, mut files) = (Vec::new(), 0);
    each_file(&root().join("src"), &mut |file, text| {
        files += 1;
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            wrong.push(format!("{file} has {lines} lines"));
        }
        check(file, &syn::parse_file(text).unwrap().items, &mut wrong);
    });
    assert!(files > 300, "only {files} files");
    assert!(wrong.is_empty(), "{} too large:\n{}", wrong.len(), wrong.join("\n"));
}
