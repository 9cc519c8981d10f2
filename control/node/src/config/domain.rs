//! Routing domains (VRFs): `[domain.NAME]`.
//!
//! Each domain has its own routes and local addresses, so the same prefix or address may occur in
//! several domains. Packets pass from one domain to another by a route with `next_domain`, or by a
//! route of the kernel with a next hop at an interface of another domain.
//!
//! Why each domain needs a table in the file: otherwise, a misspelled name would silently add
//! another domain, without routes.

use serde::{Deserialize, Serialize};

/// The domain of interfaces and routes that name no domain.
pub const DEFAULT_DOMAIN: &str = "default";
/// Maximum number of domains of a node, the default domain included. Each has its own FIB.
pub(super) const DOMAINS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainSettings {
    /// The kernel's routing table whose routes the domain uses. The default domain has this key in
    /// `[router]`.
    pub kernel_table: Option<u32>,
}

pub(super) fn default_domain() -> String {
    DEFAULT_DOMAIN.into()
}
