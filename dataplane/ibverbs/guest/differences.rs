//! Where rxe of Linux 6.1 is not what the contract says, and who is right.
//!
//! In all of these the contract is: each case names the clause of IBA that it comes from. A case
//! that begins to pass fails the run, so that the list does not outlive its reasons.

/// A reason, and the cases that it explains; a `*` at the end stands for any rest.
const DIFFERENCES: &[(&str, &[&str])] = &[
    (
        "rxe tells a local protection error as a local operation error (IBA 11.6.2)",
        &[
            "signalling/silent-failures-complete",
            "local-rights/send-unknown-key",
            "local-rights/send-other-domain",
            "local-rights/send-region-gone",
            "local-rights/send-second-entry-wrong",
            "local-rights/recv-unknown-key",
            "local-rights/recv-over-by-one",
            "local-rights/recv-before",
            "local-rights/recv-other-domain",
            "local-rights/recv-region-gone",
            "local-rights/recv-read-only",
            "local-rights/write-unknown-key",
            "local-rights/uc-send-unknown-key",
            "local-rights/ud-send-unknown-key",
            "local-rights/uc-recv-unknown-key",
            "local-rights/ud-recv-unknown-key",
            "flush/behind-a-failure",
            "flush/receives-behind-a-failed-send",
            "state/sqe-illegal",
        ],
    ),
    (
        "rxe tells a receive that is too short as a remote, or local, operation error (IBA 9.9.3)",
        &[
            "length/rc-receive-too-short",
            "length/rc-receive-of-nothing",
            "length/rc-too-short-in-a-later-packet",
            "length/uc-receive-too-short",
            "length/ud-receive-too-short",
            "length/ud-receive-without-grh-room",
            "shared-receive/no-limit-event-for-nothing-ud",
            "shared-receive/no-limit-event-for-nothing-uc",
        ],
    ),
    (
        "rxe ends the responder's receive with the requester's status (IBA 11.6.2)",
        &[
            "remote-rights/write-imm-unknown-key",
            "remote-rights/write-imm-over-by-one",
            "remote-rights/write-imm-before",
            "remote-rights/write-imm-wraps",
            "remote-rights/write-imm-not-in-region",
            "remote-rights/write-imm-other-domain",
            "remote-rights/write-imm-region-gone",
        ],
    ),
    (
        "rxe sends the Q_Key of the request even if its high bit is set (IBA 10.2.4.2)",
        &["datagram/qkey-high-bit*"],
    ),
    (
        "rxe does not flush a receive that is posted in the error state (IBA 10.8.3)",
        &["flush/posted-in-err*"],
    ),
    (
        "rxe does not tell that the last receive was taken from a shared queue (IBA 11.6.3.1)",
        &["shared-receive/error-leaves-it-alone", "shared-receive/last-receive-event"],
    ),
    (
        "rxe's library refuses an atomic that is not on eight octets when it is posted, and IBA \
         lets the responder do it (9.4.5)",
        &["atomic/add-not-on-eight", "atomic/swap-not-on-eight"],
    ),
    (
        "rxe takes a send that invalidates nothing as a plain one (IBA 9.4.1.1)",
        &["operation/rc-send-invalidate-of-nothing"],
    ),
    (
        "rxe waits for ever with a read on a connection that has room for none (IBA 9.4.4.1)",
        &["connection/depth-zero-has-no-reads"],
    ),
    (
        "rxe tells of every completion that a full queue loses, and not once (IBA 11.6.3.1)",
        &["completion/overflow"],
    ),
    (
        "rxe takes packets that are longer than the receiver's path MTU (IBA 9.7.4.1.6, 9.8.3.2)",
        &["connection/rc-mtus-differ", "connection/uc-mtus-differ"],
    ),
    (
        "rxe takes seven retries for retries without end (IBA 9.9.2.1.1)",
        &["absent/seven-retries-end"],
    ),
];

/// Why this case cannot pass on rxe, if so.
pub fn rxe_differs(name: &str) -> Option<&'static str> {
    let is_it = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    DIFFERENCES.iter().find(|(_, cases)| cases.iter().any(is_it)).map(|(why, _)| *why)
}
