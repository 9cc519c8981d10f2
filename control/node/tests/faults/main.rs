//! Nodes of which a part stands still, and clients that do not what they should: what fits the
//! rings waits there, what does not is counted, and others are served.

mod clients;
mod debugger;
#[expect(dead_code, reason = "other tests need the rest")]
#[path = "../node/host.rs"]
mod host;
mod pair;
mod rings;
#[path = "../node/running_node.rs"]
mod running_node;
mod watchdog;
