//! Rules about manifests: which crate may depend on which, and that all keep the workspace's lints.

use toml::{Table, Value};

use crate::{Finding, Tree};

/// A crate of ours.
#[derive(Debug)]
pub struct Package<'a> {
    /// Its directory, from the root of the tree.
    pub directory: &'a str,
    manifest: Table,
}

/// Allowed dependencies: upwards only, so that bytes know no protocol, and protocols no device. A
/// crate may also use the dependencies of its dependencies, except for [`BACKENDS`].
const DIRECTION: [(&str, &[&str]); 22] = [
    ("dataplane/wire", &[]),
    ("dataplane/wire/referee", &["dataplane/wire"]),
    ("dataplane/wire/referee/roce", &["dataplane/wire/referee", BACKENDS[0]]),
    ("dataplane/mem", &[]),
    ("dataplane/mem/counted", &[]),
    ("dataplane/verbs", &["dataplane/wire", "dataplane/mem"]),
    // A dependency of tests only, which this table does not restrict.
    ("dataplane/verbs/conformance", &["dataplane/verbs"]),
    ("dataplane/hca", &["dataplane/verbs"]),
    ("dataplane/subnet", &["dataplane/hca"]),
    ("dataplane/fabric", &["dataplane/subnet"]),
    ("dataplane/connectx", &[BACKENDS[0]]),
    ("dataplane/ibverbs", &["dataplane/verbs"]),
    ("dataplane/mlx5", &["dataplane/ibverbs"]),
    ("dataplane", &["dataplane/verbs"]),
    ("control", &["dataplane"]),
    ("control/node", &["control", BACKENDS[0], BACKENDS[1], BACKENDS[2]]),
    ("smoltcp-glue", &["control/node"]),
    ("smoltcp-glue/programs", &["smoltcp-glue"]),
    ("smoltcp-glue/tasks", &["smoltcp-glue"]),
    // The demonstration shows what applications link.
    ("control/appliance", &["control/node", "smoltcp-glue"]),
    ("benches", &["smoltcp-glue", BACKENDS[0], BACKENDS[1], BACKENDS[2]]),
    ("scripts/tidy", &[]),
];

/// Kinds of device. Only crates that stand beside them in [`DIRECTION`] name one; the others open
/// devices by name, through the node.
const BACKENDS: [&str; 3] = ["dataplane/fabric", "dataplane/ibverbs", "dataplane/mlx5"];

/// Every crate of the tree. A manifest that is no TOML is left to cargo to refuse.
pub fn packages(tree: &Tree) -> Vec<Package<'_>> {
    let manifests = tree.files.iter().filter_map(|file| {
        let directory = file.path.strip_suffix("/Cargo.toml")?;
        Some(Package { directory, manifest: file.text.parse().ok()? })
    });
    manifests.filter(|package| package.manifest.contains_key("package")).collect()
}

impl Package<'_> {
    fn path(&self) -> String {
        format!("{}/Cargo.toml", self.directory)
    }

    fn name(&self) -> Option<&str> {
        self.manifest.get("package")?.get("name")?.as_str()
    }

    /// Whether it is a workspace of its own, as fuzz targets are.
    fn stands_alone(&self) -> bool {
        self.manifest.contains_key("workspace")
    }

    /// The names of all crates that it is built from, whatever the target, without those for tests.
    fn dependencies(&self) -> Vec<&str> {
        let targets = self.manifest.get("target").and_then(Value::as_table);
        let tables = targets.into_iter().flatten().filter_map(|(_, table)| table.as_table());
        [&self.manifest]
            .into_iter()
            .chain(tables)
            .flat_map(|table| [table.get("dependencies"), table.get("build-dependencies")])
            .filter_map(|table| table.and_then(Value::as_table))
            .flatten()
            .map(|(key, value)| value.get("package").and_then(Value::as_str).unwrap_or(key))
            .collect()
    }
}

/// Crates depend on each other in one direction: that of the table in this file.
pub fn direction(tree: &Tree) -> Vec<Finding> {
    let packages = packages(tree);
    let mut findings = Vec::new();
    for package in packages.iter().filter(|package| !package.stands_alone()) {
        let from = package.directory;
        if !DIRECTION.iter().any(|(directory, _)| *directory == from) {
            let message = "a crate without a place in scripts/tidy/src/manifest.rs";
            findings.push(Finding::new(&package.path(), 0, message));
            continue;
        }
        for name in package.dependencies() {
            let Some(to) = packages.iter().find(|other| other.name() == Some(name)) else {
                continue;
            };
            if !may_use(from, to.directory) {
                let message = format!("{from} must not depend on {}", to.directory);
                findings.push(Finding::new(&package.path(), 0, message));
            }
        }
    }
    findings
}

fn may_use(from: &str, to: &str) -> bool {
    let direct = DIRECTION.iter().find(|(directory, _)| *directory == from);
    let direct = direct.map_or(&[][..], |(_, direct)| direct);
    direct.contains(&to)
        || !BACKENDS.contains(&to) && direct.iter().any(|between| may_use(between, to))
}

/// Every crate of the workspace keeps its lints.
pub fn shared_lints(tree: &Tree) -> Vec<Finding> {
    let keeps = |package: &Package| {
        let lints = package.manifest.get("lints").and_then(|lints| lints.get("workspace"));
        lints.and_then(Value::as_bool) == Some(true)
    };
    packages(tree)
        .iter()
        .filter(|package| !package.stands_alone() && !keeps(package))
        .map(|package| Finding::new(&package.path(), 0, "add `[lints] workspace = true`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: (&str, &str) = ("dataplane/wire/Cargo.toml", "[package]\nname = \"pollux-wire\"");
    const FABRIC: (&str, &str) =
        ("dataplane/fabric/Cargo.toml", "[package]\nname = \"pollux-fabric\"");

    fn found(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        rule(&Tree::of(files)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_dependency_against_the_direction_is_found() {
        for dependency in [
            "[dependencies]\npollux-fabric.workspace = true",
            "[dependencies]\nsoft = { package = \"pollux-fabric\", path = \"../fabric\" }",
            "[build-dependencies]\npollux-fabric = { path = \"../fabric\" }",
            "[target.'cfg(unix)'.dependencies]\npollux-fabric = { path = \"../fabric\" }",
        ] {
            let wire = format!("{}\n{dependency}", WIRE.1);
            let found = found(direction, &[(WIRE.0, &wire), FABRIC]);
            assert_eq!(found, ["dataplane/wire must not depend on dataplane/fabric"]);
        }
    }

    #[test]
    fn tests_may_use_any_crate_and_all_may_use_strangers() {
        let tests =
            "[dev-dependencies]\npollux-fabric.workspace = true\n[dependencies]\ncrc = \"3\"";
        let wire = format!("{}\n{tests}", WIRE.1);
        assert_eq!(found(direction, &[(WIRE.0, &wire), FABRIC]), [""; 0]);
    }

    #[test]
    fn backends_are_named_beside_them_only() {
        assert!(may_use("control", "dataplane/wire"));
        assert!(may_use("control/node", "dataplane/fabric"));
        assert!(may_use("dataplane/mlx5", "dataplane/ibverbs"));
        assert!(!may_use("smoltcp-glue", "dataplane/fabric"));
        assert!(!may_use("dataplane", "control"));
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        let stranger = ("extra/Cargo.toml", "[package]\nname = \"pollux-extra\"");
        assert_eq!(found(direction, &[stranger]).len(), 1);
        let fuzz = ("extra/Cargo.toml", "[package]\nname = \"pollux-fuzz\"\n[workspace]");
        assert_eq!(found(direction, &[fuzz]), [""; 0]);
    }

    #[test]
    fn a_crate_with_its_own_lints_is_found() {
        assert_eq!(found(shared_lints, &[WIRE]).len(), 1);
        let keeps = format!("{}\n[lints]\nworkspace = true", WIRE.1);
        assert_eq!(found(shared_lints, &[(WIRE.0, &keeps)]), [""; 0]);
    }
}
