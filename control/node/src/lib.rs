//! Threads, clock and devices for the state machines of the other crates.
//!
//! 1. [`config`]: the configuration of a node; [`device`]: devices by name; [`port`]: MAD
//!    transports of a port, and ports that several interfaces share;
//! 2. [`interface`]: the control plane of an IPoIB interface, and its workers; [`node`]: interfaces
//!    in worker threads;
//! 3. [`fabric`]: a software fabric in a thread, with processes at its ports;
//! 4. [`kernel`]: the Linux kernel beside a router: its routes by netlink, and TUN devices;
//!    `plain`: interfaces at TUN and Ethernet devices of the kernel;
//! 5. [`admin`]: the admin socket of a node or a fabric; [`telemetry`]: metrics for Prometheus;
//!    [`examine`]: `pollux check`, which checks a configuration and the machine for it;
//! 6. [`programs`]: the environment of rdma-core programs at a port of a fabric; [`rdma_cm`]: IP
//!    addresses and connection management for these programs;
//! 7. [`service`]: messages to a service manager, such as systemd; [`doctor`]: `pollux doctor`,
//!    which finds what this machine lacks; [`calendar`]: the time of day as text.
//!
//! # The path of a CM REQ
//!
//! Arrows down are commands to the worker; arrows up are its events.
//!
//! ```text
//!   REQ --> queue pair 1, or umad --> port::PortHandle::poll   wakes the control thread; the
//!            |                                                 interface of the partition gets it
//!   interface::IpoibLink::step --> pollux_control  handle_mad
//!            |  Connect: make a queue pair         ^  Made
//!            v                                     |
//!   interface::InterfaceWorker --> port driver     (`worker_channel`: a ring each way)
//!            |  Modify to RTR and RTS              ^  carried out
//!            v                                     |
//!   REP <-- port::PortHandle::send <-- pollux_control: the queue pair can receive before the peer
//!                                                      sends to it
//!   RTU, or the first packet --> pollux_control: the connection is open
//!            |  SetPeer: the adjacency of the peer is this connection
//!            v
//!   port driver --> neighbor::RouteTable::publish: packets to the peer use the connection
//! ```
//!
//! # The path of `pollux show`
//!
//! Workers take no part in this.
//!
//! ```text
//!   client --> admin socket --> admin::Admin::turn      a typed request, read from JSON
//!                                    |
//!                          node::NodeRunner::respond    state of control, in the same thread;
//!                                    |                  workers' counters, from shared memory
//!   client <-- admin socket <-- a page of a typed reply, written as JSON
//! ```
#![forbid(unsafe_code)]

/// Implements `Display` for enums without data, by the names that serde gives to their variants.
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
