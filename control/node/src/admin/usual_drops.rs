//! Drops that indicate no fault: a healthy node counts them, too.

const USUAL: &[(&str, &[&str])] = &[
    ("arp", &["own", "not_for_us"]),
    ("cm", &["repeated"]),
    // Connections that end, and requests of both ends at once.
    ("connection", &["crossing", "forgotten", "idle", "peer_ended", "policy"]),
    ("dhcp", &["not_for_us", "other_server"]),
    // Frames for the kernel.
    ("frame", &["not_ours", "other_vlan", "unknown_type"]),
    // Packets without a receiver on the link, such as reports to routers where there are none.
    ("interface", &["link_protocol", "no_group", "request_put_off"]),
    // Late answers: the request was sent again, and another answer came first.
    ("mad", &["late"]),
    ("membership", &["not_for_hosts"]),
    ("nd", &["own", "not_for_us"]),
    ("neighbor", &["claim_unasked"]),
    ("received", &["echo"]),
    // Packets that wait, are punted to the control thread, or are sent again.
    ("refused", &["disconnected", "full", "pending", "stale", "too_big", "unknown"]),
    ("sa", &["repeated"]),
];

pub(super) fn is_usual(of: &str, why: &str) -> bool {
    USUAL.iter().any(|(part, reasons)| *part == of && reasons.contains(&why))
}
