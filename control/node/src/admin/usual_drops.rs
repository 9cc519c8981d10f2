//! The drops that say of no fault: a node that works as it should counts them, too.

const USUAL: &[(&str, &[&str])] = &[
    ("arp", &["own", "not_for_us"]),
    ("cm", &["repeated"]),
    // Connections that end, and requests of both ends at once.
    ("connection", &["crossing", "forgotten", "idle", "peer_ended", "policy"]),
    ("dhcp", &["not_for_us", "other_server"]),
    // Frames that are the kernel's.
    ("frame", &["not_ours", "other_vlan", "unknown_type"]),
    // What nobody on the link wants: reports to routers where there are none.
    ("interface", &["link_protocol", "no_group", "request_put_off"]),
    ("membership", &["not_for_hosts"]),
    ("nd", &["own", "not_for_us"]),
    ("neighbor", &["claim_unasked"]),
    ("received", &["echo"]),
    // Packets that wait, go to control, or come again.
    ("refused", &["disconnected", "full", "pending", "stale", "too_big", "unknown"]),
    ("sa", &["repeated"]),
];

pub(super) fn is_usual(of: &str, why: &str) -> bool {
    USUAL.iter().any(|(part, reasons)| *part == of && reasons.contains(&why))
}
