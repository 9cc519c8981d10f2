//! Where a node does otherwise than the kernel, and why.

use super::packets::{Case, Twist};

/// A difference: which packets, what the kernel and a node make of them, and the reason.
#[derive(Debug)]
pub struct Difference {
    twist: Twist,
    /// The fate by the kernel, and by a node. `*` stands for any end.
    kernel: &'static str,
    node: &'static str,
    /// The differences between two of the same kind.
    what: &'static str,
    #[expect(dead_code, reason = "it is for readers, and printed")]
    why: &'static str,
}

impl Difference {
    /// Whether this is the difference between two fates of a packet.
    pub fn is_met(&self, case: &Case, kernel: &str, node: &str, what: &str) -> bool {
        let is_kind = |pattern: &str, fate: &str| match pattern.strip_suffix('*') {
            Some(start) => fate.starts_with(start),
            None => fate == pattern,
        };
        let is_same_kind = self.what.is_empty() || kernel == node && self.what == what;
        case.twists.contains(&self.twist)
            && is_kind(self.kernel, kernel)
            && is_kind(self.node, node)
            && is_same_kind
    }
}

/// A row: the fates differ.
const fn fate(
    twist: Twist,
    kernel: &'static str,
    node: &'static str,
    why: &'static str,
) -> Difference {
    Difference { twist, kernel, node, what: "", why }
}

/// A row: the fates are of one kind, and differ in something.
const fn detail(
    twist: Twist,
    both: &'static str,
    what: &'static str,
    why: &'static str,
) -> Difference {
    Difference { twist, kernel: both, node: both, what, why }
}

/// An address that no packet in transit has: the kernel decides by its routes.
const MARTIAN_V4: &str = "RFC 1812 5.3.7, RFC 6890 2.2.2: no source or destination in transit";
const MARTIAN_V6: &str = "RFC 4291 2.5: no source or destination in transit";
const HOP_BY_HOP: &str = "RFC 8200 4.3: a router looks at hop-by-hop options only if configured to";
const RECORDED: &str = "RFC 7126 4.5.5, 4.7.5: routers need not record routes and times";

/// All of them.
pub const DIFFERENCES: &[Difference] = &[
    fate(Twist::Destination("0/8"), "error *", "dropped", MARTIAN_V4),
    fate(Twist::Destination("169.254/16"), "error *", "dropped", MARTIAN_V4),
    fate(Twist::Destination("240/4"), "error *", "dropped", MARTIAN_V4),
    fate(Twist::Source("0/8"), "*", "dropped", MARTIAN_V4),
    fate(Twist::Source("169.254/16"), "*", "dropped", MARTIAN_V4),
    fate(Twist::Source("240/4"), "*", "dropped", MARTIAN_V4),
    fate(Twist::Destination("::"), "error *", "dropped", MARTIAN_V6),
    fate(Twist::Destination("compatible"), "error *", "dropped", MARTIAN_V6),
    fate(Twist::Destination("mapped"), "error *", "dropped", MARTIAN_V6),
    fate(Twist::Destination("link-local"), "error *", "dropped", MARTIAN_V6),
    fate(Twist::Source("::"), "*", "dropped", MARTIAN_V6),
    fate(Twist::Source("compatible"), "*", "dropped", MARTIAN_V6),
    fate(Twist::Source("mapped"), "*", "dropped", MARTIAN_V6),
    fate(Twist::Source("link-local"), "*", "dropped", MARTIAN_V6),
    fate(
        Twist::Destination("anycast"),
        "dropped",
        "*",
        "RFC 4291 2.6.1: a node does not have the anycast address of the routers of a subnet",
    ),
    fate(
        Twist::Source("broadcast"),
        "error *",
        "dropped",
        "RFC 1122 3.2.2: no error to a broadcast address",
    ),
    detail(
        Twist::Source("other link"),
        "error *",
        "addresses",
        "RFC 6724 5, rule 5: the source of an error has the interface that it leaves by",
    ),
    fate(
        Twist::Unreachable,
        "error 1/0",
        "error 1/6",
        "RFC 4443 3.1: the code of a route that rejects",
    ),
    fate(Twist::Discovery, "error *", "dropped", "RFC 4443 2.4 (e.2): no error about a redirect"),
    detail(
        Twist::Big,
        "error *",
        "hops of the quoted packet",
        "RFC 1812 4.3.2.3: a router may quote the header as it was changed until then",
    ),
    detail(
        Twist::Class,
        "error *",
        "class",
        "RFC 1349 5.1: errors have the default type of service; RFC 1812 4.3.2.5: precedence 6",
    ),
    fate(Twist::HopByHopUnknown, "dropped", "*", HOP_BY_HOP),
    fate(Twist::HopByHopUnknown, "error 4/2", "*", HOP_BY_HOP),
    fate(Twist::HopByHopBroken, "*", "*", HOP_BY_HOP),
    fate(Twist::Jumbo, "*", "*", HOP_BY_HOP),
    fate(
        Twist::BrokenChain,
        "dropped",
        "error *",
        "RFC 4443 2.4 (e.1): what cannot be reached behind other headers is no error message",
    ),
    fate(
        Twist::Blackhole,
        "error 12/0",
        "dropped",
        "RFC 1812 5.3.8: what is filtered is dropped silently, also with wrong options",
    ),
    fate(
        Twist::Source("own"),
        "sent to *",
        "dropped",
        "RFC 2827 3: nobody else has the addresses of a router; the kernel looks in IPv4 alone",
    ),
    detail(Twist::RecordRoute, "*", "bytes", RECORDED),
    detail(Twist::RecordRoute, "error *", "options", RECORDED),
    detail(Twist::Timestamp, "*", "bytes", RECORDED),
    detail(Twist::Timestamp, "error *", "options", RECORDED),
    detail(Twist::BrokenOption, "error *", "options", RECORDED),
];
