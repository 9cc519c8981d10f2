//! Rules about modules: siblings use each other in one direction only.
//!
//! A circle of modules is one module in several files: a reader needs all of it at once, and no
//! line says what it may touch. A parent and its children may use each other, because a parent's
//! file is the place of what its children share. The check compares children of one module: there
//! is an arrow from `a` to `b` if a file of `a` names a path into `b`. Unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::manifest;
use crate::rust::Line;
use crate::source::before_tests;
use crate::{Finding, Tree};

/// A path of module names from the root of a crate.
type Path = Vec<String>;

/// The modules of a crate: for each, the paths it names.
struct Modules {
    uses: BTreeMap<Path, Vec<Path>>,
    /// Items that `pub use` exports again: their path here, and their own.
    reexports: BTreeMap<Path, Path>,
}

/// No modules use each other in circles.
pub fn no_circles(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in manifest::packages(tree) {
        for circle in Modules::read(tree, package.directory).circles() {
            let message = format!("modules use each other in a circle: {circle}");
            findings.push(Finding::new(package.directory, 0, message));
        }
    }
    findings
}

/// Sibling modules each of which leads to all others.
struct Circle {
    parent: String,
    names: Vec<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{{}}}", self.parent, self.names.join(", "))
    }
}

impl Modules {
    fn read(tree: &Tree, directory: &str) -> Self {
        let prefix = format!("{directory}/src/");
        let mut modules = Self { uses: BTreeMap::new(), reexports: BTreeMap::new() };
        for file in tree.rust() {
            let Some(path) = file.path.strip_prefix(&prefix) else { continue };
            let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
            if is_test || path == "main.rs" || path.starts_with("bin/") {
                continue;
            }
            let module = module_of(path);
            for (is_public, used) in used_paths(before_tests(&file.rust)) {
                let Some(target) = resolve(&module, &used) else { continue };
                if is_public && let Some(name) = target.last() {
                    let mut here = module.clone();
                    here.push(name.clone());
                    modules.reexports.insert(here, target.clone());
                }
                modules.uses.entry(module.clone()).or_default().push(target);
            }
            modules.uses.entry(module).or_default();
        }
        modules
    }

    /// The module that a path leads to, by way of what is exported again on it.
    fn module_at(&self, path: &Path) -> Path {
        let mut path = path.clone();
        // An export of an export; a circle of them would not compile.
        for _ in 0..4 {
            let known = (1..=path.len()).rev().find(|len| {
                !self.uses.contains_key(&path[..*len]) && self.reexports.contains_key(&path[..*len])
            });
            let Some(len) = known else { break };
            let rest = path.split_off(len);
            path = self.reexports[&path].clone();
            path.extend(rest);
        }
        while !path.is_empty() && !self.uses.contains_key(&path) {
            path.pop();
        }
        path
    }

    fn circles(&self) -> Vec<Circle> {
        // Of each parent, which child uses which.
        let mut arrows: BTreeMap<&[String], BTreeMap<&str, BTreeSet<String>>> = BTreeMap::new();
        for (from, targets) in &self.uses {
            for target in targets {
                let to = self.module_at(target);
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) {
                    let children = arrows.entry(&from[..shared]).or_default();
                    children.entry(a).or_default().insert(b.clone());
                }
            }
        }
        let mut circles = Vec::new();
        for (parent, children) in &arrows {
            let mut left: BTreeSet<&str> = children.keys().copied().collect();
            while let Some(first) = left.pop_first() {
                let circle: BTreeSet<&str> = left
                    .iter()
                    .copied()
                    .filter(|other| {
                        reaches(children, first, other) && reaches(children, other, first)
                    })
                    .collect();
                if circle.is_empty() {
                    continue;
                }
                left.retain(|name| !circle.contains(name));
                let names = [first].into_iter().chain(circle).map(String::from).collect();
                let parent = parent.iter().map(|name| format!("{name}::")).collect();
                circles.push(Circle { parent, names });
            }
        }
        circles
    }
}

fn reaches(arrows: &BTreeMap<&str, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        for next in arrows.get(at).into_iter().flatten() {
            if next == to {
                return true;
            }
            if seen.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    false
}

/// The module of a file, from its path below `src`.
fn module_of(path: &str) -> Path {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" | "mod" => Path::new(),
        _ => path.split('/').map(String::from).collect(),
    }
}

/// A path that starts with `crate`, `self` or `super`, from the root of the crate.
fn resolve(module: &[String], used: &[String]) -> Option<Path> {
    let mut at = module.to_vec();
    let mut rest = used;
    match rest.first()?.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => {
            at.pop()?;
        }
        _ => return None,
    }
    rest = &rest[1..];
    while rest.first().is_some_and(|name| name == "super") {
        at.pop()?;
        rest = &rest[1..];
    }
    at.extend(rest.iter().cloned());
    Some(at)
}

/// Every path in the code that starts with `crate`, `self` or `super` or stands in a `use`, and
/// whether `pub use` names it. Braces are multiplied out; what an inner module names counts for its
/// file. A `use` of a crate reads as a path of this module, which leads nowhere.
fn used_paths(lines: &[Line]) -> Vec<(bool, Path)> {
    let code: String = lines.iter().map(|line| format!("{}\n", line.code)).collect();
    let mut paths = Vec::new();
    for start in ["crate::", "self::", "super::", "use "] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let line = before.rsplit('\n').next().unwrap_or_default();
            let is_public = line.trim_start().starts_with("pub");
            let mut found = Vec::new();
            match code[at..].strip_prefix("use ") {
                Some(path)
                    if ["crate::", "self::", "super::"].iter().any(|it| path.starts_with(it)) => {}
                Some(path) => _ = multiply(path, &vec!["self".into()], &mut found),
                None => _ = multiply(&code[at..], &Path::new(), &mut found),
            }
            let is_public = is_public && (start == "use " || line.contains("use "));
            paths.extend(found.into_iter().map(|path| (is_public, path)));
        }
    }
    paths
}

/// Adds the paths that `code` begins with to `found`, each behind `prefix`; gives what follows.
fn multiply<'a>(code: &'a str, prefix: &Path, found: &mut Vec<Path>) -> &'a str {
    let mut path = prefix.clone();
    let mut rest = code.trim_start();
    loop {
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let after = multiply(rest, &path, found).trim_start();
                let after = after.strip_prefix(',').unwrap_or(after).trim_start();
                // Not a list of paths: an item's own braces.
                if after.len() == rest.len() {
                    break;
                }
                rest = after;
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if len > 0 {
            path.push(rest[..len].to_owned());
        }
        rest = &rest[len..];
        match rest.strip_prefix("::") {
            Some(after) if len > 0 => rest = after,
            _ => break,
        }
    }
    if path.len() > prefix.len() {
        // `use a::{self}` is `a`.
        if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        found.push(path);
    }
    let renamed = rest.trim_start().strip_prefix("as ");
    renamed.map_or(rest, |after| {
        after.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"pollux-a\"\n");

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = [PACKAGE].iter().chain(files).copied().collect();
        let findings = no_circles(&Tree::of(&files));
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn siblings_that_use_each_other_are_a_circle() {
        let one = ("a/src/one.rs", "use crate::two::Two;\n");
        assert_eq!(circles(&[one, ("a/src/two.rs", "use std::fmt;\n")]), [""; 0]);
        let found = circles(&[one, ("a/src/two.rs", "fn f() { super::one::g() }\n")]);
        assert!(matches!(&found[..], [found] if found.contains("{one, two}")), "{found:?}");
    }

    #[test]
    fn a_circle_may_lead_through_others_and_through_exports() {
        let files = [
            ("a/src/lib.rs", "pub mod three;\npub use three::{Three, deep::Deeper as Deep};\n"),
            ("a/src/one.rs", "use crate::{\n    two::{self, Two},\n};\n"),
            ("a/src/two.rs", "use crate::Three;\n"),
            ("a/src/three/mod.rs", ""),
            ("a/src/three/deep.rs", "use crate::one::One;\n"),
        ];
        let found = circles(&files);
        assert!(matches!(&found[..], [found] if found.contains("{one, three, two}")), "{found:?}");
    }

    #[test]
    fn parents_children_and_tests_may_use_each_other() {
        let files = [
            ("a/src/one/mod.rs", "use self::inner::Inner;\n"),
            ("a/src/one/inner.rs", "use super::One;\n"),
            ("a/src/two.rs", "use crate::one::One;\n"),
            ("a/src/one/tests.rs", "use crate::two::Two;\n"),
            ("a/src/three.rs", "#[cfg(test)]\nmod tests {\n    use crate::four::F;\n}\n"),
            ("a/src/four.rs", "use crate::three::T;\n"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }
}
