//! Threads, clock and devices for the state machines of the other crates.
//!
//! 1. [`config`]: the configuration of a node; [`device`]: devices by name; [`port`]: MAD
//!    transports of a port, and ports that several interfaces share;
//! 2. [`interface`]: a control plane and its port drivers; [`node`]: interfaces in worker threads;
//! 3. [`fabric`]: a software fabric in a thread, with processes at its ports;
//! 4. [`kernel`]: the Linux kernel beside a router: its routes by netlink, TUN devices; `plain`:
//!    interfaces at those;
//! 5. [`admin`]: the admin socket of a node or a fabric; [`telemetry`]: metrics for Prometheus;
//!    [`examine`]: a configuration and the machine that is to run it;
//! 6. [`programs`]: programs of rdma-core at a port of a fabric; [`rdma_cm`]: their host, if it has
//!    IP addresses;
//! 7. [`service`]: a service manager that starts the node, such as systemd; [`doctor`]: what this
//!    machine lacks; [`calendar`]: the time of day as text.
//!
//! # The path of a CM REQ
//!
//! Each arrow down is a command to the worker, each arrow up its event.
//!
//! ```text
//!   REQ --> queue pair 1, or umad --> port::PortHandle::poll   wakes the control thread; the
//!            |                                                 interface of the partition gets it
//!   interface::Interface::step --> pollux_control  handle_mad
//!            |  Connect: make a queue pair         ^  Made
//!            v                                     |
//!   interface::InterfaceWorker --> port driver     (`worker_channel`: a ring each way)
//!            |  Modify to RTR and RTS              ^  modified
//!            v                                     |
//!   REP <-- port::PortHandle::send <-- pollux_control: the queue pair receives before the peer
//!                                                      knows of it
//!   RTU, or the first packet --> pollux_control: the connection is open
//!            |  SetPeer: the adjacency of the peer is this connection
//!            v
//!   port driver --> neighbor::RouteTable::publish: packets to the peer go by it
//! ```
//!
//! # The path of `pollux show`
//!
//! No worker has a part in it.
//!
//! ```text
//!   client --> admin socket --> admin::Admin::turn      a typed request, read from JSON
//!                                    |
//!                          node::Requests::respond      state of control, in the same thread;
//!                                    |                  workers' counters, from shared memory
//!   client <-- admin socket <-- a page of a typed reply, written as JSON
//! ```
#![forbid(unsafe_code)]

/// Gives enums without data the text by which serde writes and reads their variants.
macro_rules! display_as_serialized {
    ($($name:ident)+) => {
        $(impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        })+
    };
}

pub mod admin;
pub mod calendar;
pub mod config;
pub mod device;
pub mod doctor;
pub mod examine;
pub mod fabric;
pub mod interface;
pub mod kernel;
pub mod node;
mod plain;
pub mod port;
pub mod programs;
pub mod rdma_cm;
pub mod service;
pub mod telemetry;

pub use device::{DeviceOpenError, Opened, open};
pub use doctor::diagnose;
pub use pollux_ibverbs::doctor::{DoctorFinding, DoctorVerdict};
