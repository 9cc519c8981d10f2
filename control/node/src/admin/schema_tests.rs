//! The JSON schemas of requests and replies, for programs in other languages. The types generate
//! them, and they are committed, so that a change of the format shows in the diff.
//!
//! `POLLUX_SCHEMA=write cargo test --package pollux-node schema` writes them.

use super::capture::{CaptureStatus, CapturedPackets};
use super::finding::CheckReport;
use super::reply::{AdminAnswer, AdminReply, ConfigText, PingOutcome};
use super::request::AdminRequest;
use super::route::{RouteDecision, TraceStep};
use super::rows::{
    AclStatus, ChangeStatus, ConnectionStatus, DropCount, FaultStatus, GroupStatus,
    InterfaceStatus, KernelStatus, LinkStatus, MulticastStatus, NeighborStatus, NodeStatus,
    PortDetails, PortStatus, RouteStatus, SocketStatus, TopologyNode, WorkerStatus,
};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use std::path::Path;

/// All replies: `reply` is one line of a server, the others are what a request returns and what
/// `pollux show TABLE --json` prints.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is of use")]
struct AdminReplies {
    reply: AdminReply<AdminAnswer>,
    interfaces: Vec<InterfaceStatus>,
    neighbors: Vec<NeighborStatus>,
    connections: Vec<ConnectionStatus>,
    groups: Vec<GroupStatus>,
    workers: Vec<WorkerStatus>,
    routes: Vec<RouteStatus>,
    acl: Vec<AclStatus>,
    multicast: Vec<MulticastStatus>,
    drops: Vec<DropCount>,
    kernel: Vec<KernelStatus>,
    sockets: Vec<SocketStatus>,
    nodes: Vec<NodeStatus>,
    ports: Vec<PortStatus>,
    port: PortDetails,
    links: Vec<LinkStatus>,
    topology: Vec<TopologyNode>,
    faults: Vec<FaultStatus>,
    changes: Vec<ChangeStatus>,
    route: RouteDecision,
    trace: Vec<TraceStep>,
    capture: CaptureStatus,
    captured: CapturedPackets,
    config: ConfigText,
    check: CheckReport,
    ping: PingOutcome,
}

#[expect(clippy::disallowed_methods, reason = "the environment asks for new files")]
fn compare<T: JsonSchema>(name: &str, settings: SchemaSettings) {
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let generated = serde_json::to_string_pretty(&schema).expect("it has no keys but strings");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(name);
    if std::env::var_os("POLLUX_SCHEMA").is_some_and(|what| what == "write") {
        std::fs::write(&path, generated.clone() + "\n").expect("the work tree can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed.trim_end() == generated,
        "{} is not the schema of the types; write it with `POLLUX_SCHEMA=write cargo test \
         --package pollux-node schema`, and see what programs have to change",
        path.display()
    );
}

#[test]
fn the_schema_of_requests_is_that_of_the_types() {
    compare::<AdminRequest>("request.json", SchemaSettings::draft2020_12().for_deserialize());
}

#[test]
fn the_schema_of_replies_is_that_of_the_types() {
    compare::<AdminReplies>("reply.json", SchemaSettings::draft2020_12().for_serialize());
}
