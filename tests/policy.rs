//! What Sluicegate depends on keeps to `deny.toml`, the policy that cargo-deny applies as well.
//!
//! cargo-deny itself is some three hundred crates: to build it takes a tenth of all that a test run does. Its
//! advisories need the network, and stay with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::Path,
    process::Command,
};

use serde::Deserialize;
use spdx::{Expression, ParseMode};

#[derive(Deserialize)]
struct Policy {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    package: String,
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    name: String,
}

/// What `cargo metadata` says.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Graph,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    source: Option<String>,
    publish: Option<Vec<String>>,
    dependencies: Vec<Requirement>,
}

#[derive(Deserialize)]
struct Requirement {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

impl Metadata {
    /// With every feature, for every platform.
    fn of_this_workspace() -> Self {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["metadata", "--format-version", "1", "--all-features", "--locked"]);
        let output = cargo.current_dir(root()).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("metadata")
    }

    /// The packages that are published, and all that is built for them and their tests.
    fn needed(self) -> Vec<Package> {
        let edges: BTreeMap<_, _> = self.resolve.nodes.into_iter().map(|node| (node.id, node.dependencies)).collect();
        let published = self.packages.iter().filter(|package| package.source.is_none() && package.publish.is_none());
        let mut open: Vec<String> = published.map(|package| package.id.clone()).collect();
        assert_eq!(open.len(), 6, "published are {open:?}");
        let mut needed = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !needed.contains(&id) {
                open.extend_from_slice(&edges[&id]);
                needed.insert(id);
            }
        }
        self.packages.into_iter().filter(|package| needed.contains(&package.id)).collect()
    }
}

impl Policy {
    fn read() -> Self {
        let text = std::fs::read_to_string(root().join("deny.toml")).expect("there is a policy");
        toml::from_str(&text).expect("the policy is understood")
    }

    /// What is wrong with a package.
    fn breaches(&self, package: &Package) -> Vec<String> {
        let mut breaches = Vec::new();
        let licence = package.license.as_deref().unwrap_or_default();
        if !self.allows(&package.name, licence) {
            breaches.push(format!("the licence {licence:?} is not allowed"));
        }
        if self.bans.deny.iter().any(|ban| ban.name == package.name) {
            breaches.push("it is banned".to_owned());
        }
        match &package.source {
            Some(source) if !(source.starts_with("registry+") && source.ends_with("/crates.io-index")) => {
                breaches.push(format!("it comes from {source}"));
            }
            Some(_) => {}
            None => {
                let loose = package.dependencies.iter().filter(|wanted| wanted.req == "*" && wanted.path.is_none());
                breaches.extend(loose.map(|wanted| format!("any version of {} will do", wanted.name)));
            }
        }
        breaches
    }

    fn allows(&self, package: &str, licence: &str) -> bool {
        let Ok(licence) = Expression::parse_mode(licence, ParseMode::LAX) else { return false };
        let exceptions = self.licenses.exceptions.iter().filter(|exception| exception.package == package);
        let allowed: Vec<_> = exceptions.map(|exception| &exception.allow).chain([&self.licenses.allow]).collect();
        licence.evaluate(|wanted| {
            let name = wanted.license.id().map(|id| id.name);
            wanted.addition.is_none() && name.is_some_and(|name| allowed.iter().any(|names| names.contains(name)))
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn whatever_is_needed_has_an_allowed_licence_and_source_and_is_not_banned() {
    let policy = Policy::read();
    let needed = Metadata::of_this_workspace().needed();
    let breaches: Vec<_> = needed
        .iter()
        .flat_map(|package| policy.breaches(package).into_iter().map(|breach| format!("{}: {breach}", package.name)))
        .collect();
    assert!(breaches.is_empty(), "{breaches:#?}");
    for name in ["tokio", "sluicegate", "proptest", "rpc-macros"] {
        assert!(needed.iter().any(|package| package.name == name), "{name} was not looked at");
    }
}

#[test]
fn each_breach_of_the_policy_is_found() {
    let policy = Policy::read();
    let good = || Package {
        id: String::new(),
        name: "good".to_owned(),
        license: Some("MIT/Apache-2.0".to_owned()),
        source: Some("registry+https://example.org/crates.io-index".to_owned()),
        publish: None,
        dependencies: Vec::new(),
    };
    assert!(policy.breaches(&good()).is_empty());
    let wildcard = Requirement { name: "any".to_owned(), req: "*".to_owned(), path: None };
    for (bad, why) in [
        (Package { license: None, ..good() }, "\"\" is not allowed"),
        (Package { license: Some("GPL-3.0-only".to_owned()), ..good() }, "\"GPL-3.0-only\" is not allowed"),
        (Package { license: Some("MIT AND BSD-3-Clause".to_owned()), ..good() }, "is not allowed"),
        (Package { license: Some("MIT WITH LLVM-exception".to_owned()), ..good() }, "is not allowed"),
        (Package { name: "openssl".to_owned(), ..good() }, "it is banned"),
        (Package { source: Some("git+https://example.org/good".to_owned()), ..good() }, "it comes from git+"),
        (Package { source: None, dependencies: vec![wildcard], ..good() }, "any version of any will do"),
    ] {
        let breaches = policy.breaches(&bad);
        assert!(matches!(&breaches[..], [breach] if breach.contains(why)), "{why}: {breaches:?}");
    }
    let excepted = Package { name: "matchit".to_owned(), license: Some("MIT AND BSD-3-Clause".to_owned()), ..good() };
    assert!(policy.breaches(&excepted).is_empty());
}
