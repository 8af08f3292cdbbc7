//! The structure of `src`, read from its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a module, or of an item in one, from the root on, such as `store`, `redis`.
pub(super) type Names = Vec<String>;

/// The modules that a module uses, each with the paths that say so.
pub(super) struct Uses {
    pub(super) names: Names,
    pub(super) file: PathBuf,
    pub(super) uses: BTreeMap<Names, BTreeSet<String>>,
}

/// What each module uses, without what is for tests. To read it takes seconds, so that it is read once.
pub(super) static USES: LazyLock<Vec<Uses>> = LazyLock::new(|| {
    let structure = Structure::read();
    let uses = |module: &Module| Uses {
        names: module.names.clone(),
        file: module.file.clone(),
        uses: structure.uses(module),
    };
    structure.0.values().map(uses).collect()
});

/// A file, without what is for tests.
pub(super) struct Module {
    pub(super) names: Names,
    file: PathBuf,
    pub(super) items: Vec<Item>,
    /// What the names that it imports or passes on stand for, and whether it passes them on.
    pub(super) imports: BTreeMap<String, (Names, bool)>,
    /// The modules of which it imports or passes on everything.
    pub(super) globs: Vec<Names>,
}

/// All modules that are not for tests. The library and the binary are one tree.
pub(super) struct Structure(pub(super) BTreeMap<Names, Module>);

/// Returns the folder of the project.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether an item is for tests.
fn is_for_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    };
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string().replace(' ', "");
        text == "#[cfg(test)]" || text.starts_with("#[cfg(all(test,")
    })
}

impl Structure {
    /// Reads all files, from the two roots on.
    pub(super) fn read() -> Self {
        let mut all = BTreeMap::new();
        let mut waiting =
            vec![(Vec::new(), root().join("src/lib.rs")), (Vec::new(), root().join("src/main.rs"))];
        while let Some((names, file)) = waiting.pop() {
            let text = std::fs::read_to_string(&file).unwrap();
            let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let items: Vec<Item> = parsed.items.into_iter().filter(|item| !is_for_tests(item)).collect();
            for item in &items {
                if let Item::Mod(module) = item
                    && module.content.is_none()
                {
                    let names = [names.as_slice(), &[module.ident.to_string()]].concat();
                    let path = root().join("src").join(names.join("/"));
                    let file = [path.with_extension("rs"), path.join("mod.rs")];
                    waiting.push((names, file.into_iter().find(|file| file.exists()).unwrap()));
                }
            }
            // The binary has no module of a name that the library has, so that its root alone is there twice.
            let module = all.entry(names.clone()).or_insert_with(|| Module {
                names,
                file,
                items: Vec::new(),
                imports: BTreeMap::new(),
                globs: Vec::new(),
            });
            module.items.extend(items);
        }
        assert!(all.len() > 200, "only {} modules", all.len());
        let known: BTreeSet<Names> = all.keys().cloned().collect();
        all.values_mut().for_each(|module| module.read_imports(&known));
        Self(all)
    }

    /// Returns the modules that this one uses, each with the paths that say so. What a module only passes on counts as
    /// a use of the module where it is defined, by those who take it.
    fn uses(&self, module: &Module) -> BTreeMap<Names, BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        for item in &module.items {
            if !matches!(item, Item::Use(_)) {
                find_paths(item.to_token_stream(), &mut paths);
            }
        }
        let mentioned: BTreeSet<&String> = paths.iter().filter_map(|path| path.first()).collect();
        let mut used: BTreeSet<Names> = paths.iter().filter_map(|path| self.absolute(module, path)).collect();
        let taken =
            module.imports.iter().filter(|(name, (_, passes_on))| !passes_on || mentioned.contains(name));
        // A module that is imported is used by the paths that begin with it.
        used.extend(taken.map(|(_, (names, _))| names.clone()).filter(|names| !self.0.contains_key(names)));
        let mut uses = BTreeMap::<Names, BTreeSet<String>>::new();
        for path in used {
            let home = self.home_of(&path, 0);
            if home != module.names {
                uses.entry(home).or_default().insert(path.join("::"));
            }
        }
        uses
    }

    /// Returns a path from the root on; `None` if it leads to another crate or to something of the module itself.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        if let Some((names, _)) = module.imports.get(first) {
            return (!rest.is_empty()).then(|| [names, rest].concat());
        }
        module.absolute(path, |names| self.0.contains_key(names)).filter(|_| !rest.is_empty())
    }

    /// Returns the module in which the item of this path is defined.
    fn home_of(&self, path: &[String], depth: usize) -> Names {
        assert!(depth < 20, "{path:?} is passed on in a circle");
        let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length])).unwrap();
        let (names, rest) = path.split_at(length);
        let (module, Some(first)) = (&self.0[names], rest.first()) else { return names.to_vec() };
        if let Some((target, _)) = module.imports.get(first) {
            return self.home_of(&[target, &rest[1..]].concat(), depth + 1);
        }
        let globbed =
            module.globs.iter().find(|glob| self.0.get(*glob).is_some_and(|glob| glob.defines(first)));
        globbed.cloned().unwrap_or_else(|| names.to_vec())
    }
}

impl Module {
    fn read_imports(&mut self, known: &BTreeSet<Names>) {
        let items = std::mem::take(&mut self.items);
        for item in &items {
            let Item::Use(item) = item else { continue };
            let passes_on = !matches!(item.vis, Visibility::Inherited);
            let mut leaves = Vec::new();
            collect(&item.tree, &mut Vec::new(), &mut leaves);
            for (path, name) in leaves {
                let Some(path) = self.absolute(&path, |names| known.contains(names)) else { continue };
                match name {
                    Some(name) => drop(self.imports.insert(name, (path, passes_on))),
                    None => self.globs.push(path),
                }
            }
        }
        self.items = items;
    }

    pub(super) fn absolute(&self, path: &[String], is_module: impl Fn(&[String]) -> bool) -> Option<Names> {
        let (first, mut rest) = path.split_first()?;
        let mut names = self.names.clone();
        match first.as_str() {
            "crate" | "paced" => names.clear(),
            "self" => {}
            "super" => {
                names.pop();
                while let Some(("super", after)) =
                    rest.split_first().map(|(name, after)| (name.as_str(), after))
                {
                    names.pop();
                    rest = after;
                }
            }
            _ => {
                names.push(first.clone());
                if !is_module(&names) {
                    return None;
                }
            }
        }
        names.extend_from_slice(rest);
        Some(names)
    }

    pub(super) fn defines(&self, name: &str) -> bool {
        self.items.iter().any(|item| match item {
            Item::Const(item) => item.ident == name,
            Item::Enum(item) => item.ident == name,
            Item::Fn(item) => item.sig.ident == name,
            Item::Static(item) => item.ident == name,
            Item::Struct(item) => item.ident == name,
            Item::Trait(item) => item.ident == name,
            Item::Type(item) => item.ident == name,
            _ => false,
        })
    }
}

/// Collects what a `use` names: each path with the name that it has here; without one for everything of a module.
pub(super) fn collect(tree: &UseTree, before: &mut Names, leaves: &mut Vec<(Names, Option<String>)>) {
    let mut leaf = |name: &syn::Ident, here: &syn::Ident, before: &Names| {
        let mut path = before.clone();
        if name != "self" {
            path.push(name.to_string());
        }
        let here = if here == "self" { path.last().cloned().unwrap_or_default() } else { here.to_string() };
        leaves.push((path, Some(here)));
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            collect(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Name(name) => leaf(&name.ident, &name.ident, before),
        UseTree::Rename(rename) => leaf(&rename.ident, &rename.rename, before),
        UseTree::Glob(_) => leaves.push((before.clone(), None)),
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, before, leaves)),
    }
}

/// Finds all paths, also within macros: names that `::` joins, and names alone.
fn find_paths(tokens: TokenStream, paths: &mut BTreeSet<Names>) {
    let mut path = Names::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 && !path.is_empty() {
                    paths.insert(std::mem::take(&mut path));
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            other => {
                if !path.is_empty() {
                    paths.insert(std::mem::take(&mut path));
                }
                colons = 0;
                if let TokenTree::Group(group) = other {
                    find_paths(group.stream(), paths);
                }
            }
        }
    }
    if !path.is_empty() {
        paths.insert(path);
    }
}
