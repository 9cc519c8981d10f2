//! The kernel side of a router against the running kernel, each test in network namespaces of its
//! own: netlink notifications, TUN devices, and nodes that are driven by them. The judges are the
//! command `ip`, and the routing daemons FRR and BIRD.
#![forbid(unsafe_code)]

mod bird;
mod churn;
#[path = "../faults/debugger.rs"]
mod debugger;
mod ethernet;
mod forwarding;
mod frr;
mod full_table;
mod multicast;
mod namespace;
mod nodes;
mod pair;
mod routes;
mod shadow;
mod shown;
mod silent;
mod tun;
mod watched;
