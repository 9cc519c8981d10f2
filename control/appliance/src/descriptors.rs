//! The limit of file descriptors of a process that serves.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system allows: a node takes two descriptors for each peer and
/// worker, and a fabric one for each client. The usual limit of 1,024 is for programs that call
/// `select`.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised, packets to the peers beyond the limit go through the fabric's
    // process, which is slower.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
