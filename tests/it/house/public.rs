//! The public items of the library, held against a list: each change of them shows in a commit.

use std::collections::{BTreeMap, BTreeSet};

use quote::ToTokens;
use syn::{
    Attribute, Fields, Ident, ImplItem, Item, ItemImpl, ItemUse, Signature, TraitItem, Type, Visibility,
};

use super::structure::{Module, Names, Structure, collect, root};

/// The list, an item a line. `make generated` writes it.
const LIST: &str = "tests/it/house/public.txt";

/// The most modules through which an item is passed on.
const MOST_STEPS: usize = 8;

/// Collects the public items, by the paths at which programs find them.
struct Public<'s> {
    structure: &'s Structure,
    /// The `impl` blocks of each type, by the module and the name with which it is defined.
    impls: BTreeMap<(Names, String), Vec<&'s ItemImpl>>,
    lines: BTreeSet<String>,
}

impl<'s> Public<'s> {
    fn new(structure: &'s Structure) -> Self {
        let mut impls = BTreeMap::<_, Vec<&ItemImpl>>::new();
        for module in structure.0.values() {
            for item in &module.items {
                let Item::Impl(item) = item else { continue };
                let Type::Path(of) = &*item.self_ty else { continue };
                let path: Names = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                let path = match path.len() {
                    1 => Some([module.names.clone(), path].concat()),
                    _ => module.absolute(&path, |names| structure.0.contains_key(names)),
                };
                if let Some(home) = path.and_then(|path| resolve(structure, &path, 0)) {
                    impls.entry(home).or_default().push(item);
                }
            }
        }
        Self { structure, impls, lines: BTreeSet::new() }
    }

    /// Adds what this module has for programs that see it as `shown`.
    fn module(&mut self, names: &[String], shown: &[String]) {
        let structure = self.structure;
        let Some(module) = structure.0.get(names) else { return };
        for item in &module.items {
            match item {
                Item::Mod(inner) if is_shown(&inner.vis, &inner.attrs) => {
                    let name = inner.ident.to_string();
                    let inside = [shown, std::slice::from_ref(&name)].concat();
                    self.lines.insert(format!("mod {}{}", inside.join("::"), conditions(&inner.attrs)));
                    self.module(&[names, std::slice::from_ref(&name)].concat(), &inside);
                }
                Item::Use(item) if is_shown(&item.vis, &item.attrs) => self.passed_on(module, item, shown),
                _ => {
                    if let Some((name, visibility, attributes)) = parts(item)
                        && is_shown(visibility, attributes)
                    {
                        let name = [name.to_string()];
                        let (path, shown) = ([names, &name].concat(), [shown, &name].concat());
                        self.defined(&path, &shown, "");
                    }
                }
            }
        }
    }

    /// Adds what a `pub use` passes on.
    fn passed_on(&mut self, module: &Module, item: &ItemUse, shown: &[String]) {
        let (mut leaves, condition) = (Vec::new(), conditions(&item.attrs));
        collect(&item.tree, &mut Vec::new(), &mut leaves);
        for (path, name) in leaves {
            let target = module.absolute(&path, |names| self.structure.0.contains_key(names));
            match (target, name) {
                (Some(target), Some(name)) => {
                    self.defined(&target, &[shown, std::slice::from_ref(&name)].concat(), &condition);
                }
                (Some(target), None) => self.module(&target, shown),
                (None, name) => {
                    let name = name.unwrap_or_else(|| "*".to_owned());
                    let here = [shown, std::slice::from_ref(&name)].concat();
                    let line = format!("use {} = {}{condition}", here.join("::"), path.join("::"));
                    self.lines.insert(line);
                }
            }
        }
    }

    /// Adds the item of this path, which programs see as `shown`, where the condition of a `pub use` is met.
    fn defined(&mut self, path: &[String], shown: &[String], condition: &str) {
        let (structure, at) = (self.structure, shown.join("::"));
        let Some((names, name)) = resolve(structure, path, 0) else {
            self.lines.insert(format!("use {at} = {}{condition}", path.join("::")));
            return;
        };
        for item in &structure.0[&names].items {
            if let Some((ident, _, attributes)) = parts(item)
                && *ident == name
                && !is_hidden(attributes)
            {
                self.item(item, &at, &(conditions(attributes) + condition));
            }
        }
        for item in self.impls.get(&(names, name)).cloned().unwrap_or_default() {
            self.members(item, &at);
        }
    }

    fn item(&mut self, item: &Item, at: &str, condition: &str) {
        let line = match item {
            Item::Const(item) => format!("const {at}: {}", text(&item.ty)),
            Item::Static(item) => format!("static {at}: {}", text(&item.ty)),
            Item::Type(item) => format!("type {at}{} = {}", text(&item.generics), text(&item.ty)),
            Item::Fn(item) => function(at, &item.sig),
            Item::Struct(item) => {
                for (index, field) in item.fields.iter().enumerate() {
                    if is_shown(&field.vis, &field.attrs) {
                        let name = field.ident.as_ref().map_or_else(|| index.to_string(), Ident::to_string);
                        self.lines.insert(format!("{at}.{name}: {}", text(&field.ty)));
                    }
                }
                format!("struct {at}{}{}", text(&item.generics), marks(&item.attrs))
            }
            Item::Enum(item) => {
                for variant in item.variants.iter().filter(|variant| !is_hidden(&variant.attrs)) {
                    self.lines.insert(format!("{at}::{}{}", variant.ident, fields(&variant.fields)));
                }
                format!("enum {at}{}{}", text(&item.generics), marks(&item.attrs))
            }
            Item::Trait(item) => {
                self.lines.extend(item.items.iter().filter_map(|member| trait_member(member, at)));
                format!("trait {at}{}: {}", text(&item.generics), text(&item.supertraits))
            }
            _ => return,
        };
        self.lines.insert(line + condition);
    }

    /// Adds the public members of an `impl` block, or the name of its trait.
    fn members(&mut self, item: &ItemImpl, at: &str) {
        let outer = conditions(&item.attrs);
        if let Some((_, of, _)) = &item.trait_ {
            let name = of.segments.last().map(text).unwrap_or_default();
            self.lines.insert(format!("impl {name} for {at}{outer}"));
            return;
        }
        for member in &item.items {
            match member {
                ImplItem::Fn(member) if is_shown(&member.vis, &member.attrs) => {
                    let line = function(&format!("{at}::{}", member.sig.ident), &member.sig);
                    self.lines.insert(line + &conditions(&member.attrs) + &outer);
                }
                ImplItem::Const(member) if is_shown(&member.vis, &member.attrs) => {
                    let line = format!("const {at}::{}: {}", member.ident, text(&member.ty));
                    self.lines.insert(line + &conditions(&member.attrs) + &outer);
                }
                _ => {}
            }
        }
    }
}

/// Returns the module in which the item of this path is defined, and its name there; `None` for another crate's.
fn resolve(structure: &Structure, path: &[String], steps: usize) -> Option<(Names, String)> {
    let length = (0..=path.len()).rev().find(|length| structure.0.contains_key(&path[..*length]))?;
    let (names, rest) = path.split_at(length);
    let (module, name) = (&structure.0[names], rest.first()?);
    if module.defines(name) {
        return Some((names.to_vec(), name.clone()));
    }
    if steps == MOST_STEPS {
        return None;
    }
    if let Some((target, _)) = module.imports.get(name) {
        return resolve(structure, &[target.as_slice(), &rest[1..]].concat(), steps + 1);
    }
    module.globs.iter().find_map(|glob| resolve(structure, &[glob.as_slice(), rest].concat(), steps + 1))
}

/// The name, the visibility and the attributes of an item that has a name of its own.
fn parts(item: &Item) -> Option<(&Ident, &Visibility, &[Attribute])> {
    Some(match item {
        Item::Const(item) => (&item.ident, &item.vis, item.attrs.as_slice()),
        Item::Enum(item) => (&item.ident, &item.vis, item.attrs.as_slice()),
        Item::Fn(item) => (&item.sig.ident, &item.vis, item.attrs.as_slice()),
        Item::Static(item) => (&item.ident, &item.vis, item.attrs.as_slice()),
        Item::Struct(item) => (&item.ident, &item.vis, item.attrs.as_slice()),
        Item::Trait(item) => (&item.ident, &item.vis, item.attrs.as_slice()),
        Item::Type(item) => (&item.ident, &item.vis, item.attrs.as_slice()),
        _ => return None,
    })
}

fn is_shown(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !is_hidden(attributes)
}

/// Whether the documentation leaves it out, or only tests have it.
fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let attribute = text(attribute);
        attribute.contains("doc(hidden") || attribute.contains("failpoints")
    })
}

/// The attributes that change what programs may do with a type.
fn marks(attributes: &[Attribute]) -> String {
    let marks = attributes.iter().filter_map(|attribute| match &*text(attribute.path()) {
        "derive" => Some(text(&attribute.meta)),
        name @ ("non_exhaustive" | "must_use") => Some(name.to_owned()),
        _ => None,
    });
    marks.map(|mark| format!(" #[{mark}]")).collect()
}

/// The features without which there is no such item.
fn conditions(attributes: &[Attribute]) -> String {
    let all = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    all.map(|attribute| format!(" #[{}]", text(&attribute.meta))).collect()
}

/// The line of a member of a trait.
fn trait_member(member: &TraitItem, at: &str) -> Option<String> {
    Some(match member {
        TraitItem::Fn(member) if !is_hidden(&member.attrs) => {
            function(&format!("{at}::{}", member.sig.ident), &member.sig)
        }
        TraitItem::Type(member) if !is_hidden(&member.attrs) => {
            format!("type {at}::{}{}: {}", member.ident, text(&member.generics), text(&member.bounds))
        }
        TraitItem::Const(member) if !is_hidden(&member.attrs) => {
            format!("const {at}::{}: {}", member.ident, text(&member.ty))
        }
        _ => return None,
    })
}

/// The fields of a variant.
fn fields(fields: &Fields) -> String {
    let all = fields.iter().map(|field| match &field.ident {
        Some(name) => format!("{name}: {}", text(&field.ty)),
        None => text(&field.ty),
    });
    let all = all.collect::<Vec<_>>().join(", ");
    match fields {
        Fields::Named(_) => format!(" {{ {all} }}"),
        Fields::Unnamed(_) => format!("({all})"),
        Fields::Unit => String::new(),
    }
}

/// The signature of a function that programs see at this path.
fn function(at: &str, signature: &Signature) -> String {
    text(signature).replacen(&format!("fn {}", signature.ident), &format!("fn {at}"), 1)
}

/// The code of this, with spaces only where a reader or the compiler needs them.
fn text(code: impl ToTokens) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '\'';
    let code = code.to_token_stream().to_string();
    let (mut text, mut letters) = (String::new(), code.chars().peekable());
    while let Some(letter) = letters.next() {
        if !letter.is_whitespace() {
            text.push(letter);
        } else if text.ends_with(is_word) && letters.peek().copied().is_some_and(is_word) {
            text.push(' ');
        }
    }
    text.replace(',', ", ").replace("->", " -> ")
}

#[test]
fn the_public_items_are_those_of_the_list() {
    let structure = Structure::read();
    let mut public = Public::new(&structure);
    public.module(&[], &[]);
    let items = public.lines;
    assert!(items.len() > 200, "only {} public items", items.len());
    let path = root().join(LIST);
    if std::env::var_os("PACED_WRITE_GENERATED").is_some() {
        let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
        return std::fs::write(path, lines).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    let listed: BTreeSet<String> = stored.lines().map(str::to_owned).collect();
    let (gone, added): (Vec<_>, Vec<_>) =
        (listed.difference(&items).collect(), items.difference(&listed).collect());
    assert!(
        gone.is_empty() && added.is_empty(),
        "{LIST} is not what `src` makes public; run `make generated`. Gone: {gone:#?}, added: {added:#?}"
    );
}
