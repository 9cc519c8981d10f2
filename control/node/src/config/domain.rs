//! Routing domains (VRFs): `[domain.NAME]`.
//!
//! Each domain has routes and local addresses of its own, so prefixes and addresses may occur in
//! several. Packets cross by routes with `next_domain`, and by routes of the kernel whose next hop
//! is at an interface of another domain.
//!
//! Why a domain has to have a table of its own in the file: a misspelled name would otherwise be
//! one more domain, without routes.

use serde::{Deserialize, Serialize};

/// The name of the domain of interfaces and routes that name none.
pub const DEFAULT_DOMAIN: &str = "default";
/// Domains of a node, at most: each has a FIB of its own.
pub(super) const DOMAINS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainSettings {
    /// The routing table of the kernel whose routes the domain uses; `[router]` has that of the
    /// default domain.
    pub kernel_table: Option<u32>,
}

pub(super) fn default_domain() -> String {
    DEFAULT_DOMAIN.into()
}
