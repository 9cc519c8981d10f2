//! Deviations from the contract: of rxe of Linux 6.1, and of libmlx5 on the ConnectX in software.
//!
//! In all of these the contract is right: each case names its clause of IBA. A case that begins to
//! pass fails the run, so that the list does not outlive its reasons; so does a case that fails in
//! another way than listed.
//!
//! Most of rxe are about the status of a wrong key, right or bound of our own memory. IBA has two
//! (11.6.2): the local protection error is for an entry that names no region which allows the
//! access, the local operation error for a queue pair that is inconsistent in itself. A caller
//! fixes these in different places, so the contract distinguishes them. rxe detects both where it
//! copies, and has one status for all failures there.

/// A deviation, and the failures that show it.
pub struct Difference {
    /// The behavior, and the clause that it violates.
    pub reason: &'static str,
    /// The findings of the case then: one of these.
    found: &'static [&'static str],
    /// The cases; a `*` at the end stands for any rest.
    cases: &'static [&'static str],
}

pub const OF_RXE: &[Difference] = &[
    Difference {
        reason: "rxe tells a local protection error as a local operation error (IBA 11.6.2)",
        found: &["status: LocalQpOperation"],
        cases: &[
            "signaling/silent-failures-complete",
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
    },
    Difference {
        reason: "rxe tells a receive that is too short as a remote, or local, operation error (IBA \
                 9.9.3)",
        found: &["status: RemoteOperation", "LocalQpOperation"],
        cases: &[
            "length/rc-receive-too-short",
            "length/rc-receive-of-nothing",
            "length/rc-too-short-in-a-later-packet",
            "length/uc-receive-too-short",
            "length/ud-receive-too-short",
            "length/ud-receive-without-grh-room",
            "shared-receive/no-limit-event-for-nothing-ud",
            "shared-receive/no-limit-event-for-nothing-uc",
        ],
    },
    Difference {
        reason: "rxe ends the responder's receive with the requester's status (IBA 11.6.2)",
        found: &["status: RemoteAccess"],
        cases: &[
            "remote-rights/write-imm-unknown-key",
            "remote-rights/write-imm-over-by-one",
            "remote-rights/write-imm-before",
            "remote-rights/write-imm-wraps",
            "remote-rights/write-imm-not-in-region",
            "remote-rights/write-imm-other-domain",
            "remote-rights/write-imm-region-gone",
        ],
    },
    Difference {
        reason: "rxe sends the Q_Key of the request even if its high bit is set (IBA 10.2.4.2)",
        found: &["found that nothing came", "expected no more completions"],
        cases: &["datagram/qkey-high-bit*"],
    },
    Difference {
        reason: "rxe does not flush a receive that is posted in the error state (IBA 10.8.3)",
        found: &["found that nothing came"],
        cases: &["flush/posted-in-err*"],
    },
    Difference {
        reason: "rxe does not tell that the last receive was taken from a shared queue (IBA \
                 11.6.3.1)",
        found: &["the event LastWqeReached"],
        cases: &["shared-receive/error-leaves-it-alone", "shared-receive/last-receive-event"],
    },
    Difference {
        reason: "rxe's library refuses an atomic that is not on eight bytes when it is posted, \
                 and IBA lets the responder do it (9.4.5)",
        found: &["this transport has no such request"],
        cases: &["atomic/add-not-on-eight", "atomic/swap-not-on-eight"],
    },
    Difference {
        reason: "rxe takes a send that invalidates nothing as a plain one (IBA 9.4.1.1)",
        found: &["status: Success"],
        cases: &["operation/rc-send-invalidate-of-nothing"],
    },
    Difference {
        reason: "rxe waits for ever with a read on a connection that has room for none (IBA \
                 9.4.4.1)",
        found: &["found that nothing came"],
        cases: &["connection/depth-zero-has-no-reads"],
    },
    Difference {
        reason: "rxe takes seven retries for retries without end (IBA 9.9.2.1.1)",
        found: &["found that nothing came"],
        cases: &["absent/seven-retries-end"],
    },
    Difference {
        reason: "rxe tells of an overrun with each completion that is lost (IBA 11.6.3.1)",
        found: &["times that the queue was told to be lost"],
        cases: &["completion/overflow"],
    },
    Difference {
        reason: "rxe takes packets of another MTU than the connection's (IBA 9.7.4.1.6, 9.8.3.2)",
        found: &["status: Success"],
        cases: &["connection/rc-mtus-differ", "connection/uc-mtus-differ"],
    },
];

pub const OF_LIBMLX5: &[Difference] = &[
    Difference {
        reason: "libmlx5 writes eight bytes as the length of each entry of an atomic's answer, so \
                 an answer over two entries does not fit (IBA 9.4.5)",
        found: &["status: LocalLength"],
        cases: &["atomic/answer-is-scattered"],
    },
    Difference {
        reason: "libmlx5 writes eight bytes as the length of an entry that is shorter (IBA 9.4.5)",
        found: &["status: Success"],
        cases: &["atomic/answer-too-short"],
    },
];

impl Difference {
    /// Whether this deviation explains a failed case with such a text.
    pub fn explains(&self, text: &str) -> bool {
        self.found.iter().any(|found| text.contains(found))
    }
}

/// The deviation for which this case cannot pass, if any.
pub fn find(differences: &'static [Difference], name: &str) -> Option<&'static Difference> {
    let is_it = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    differences.iter().find(|difference| difference.cases.iter().any(is_it))
}
