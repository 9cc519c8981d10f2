//! The command as its users meet it.
#![expect(clippy::disallowed_methods, reason = "programs take their time, and tests wait for them")]

mod acl;
mod capture;
mod config;
mod demo;
mod domains;
mod drops;
mod exec;
mod fabric;
mod failover;
mod floods;
mod health;
mod manual;
mod metrics;
#[cfg(feature = "hca")]
mod mlx5;
#[expect(dead_code, reason = "other tests need the rest")]
#[path = "../../../node/tests/kernel/namespace.rs"]
mod namespace;
mod no_loss;
mod nodes;
mod operator;
mod outages;
mod package;
mod processes;
mod program;
mod reload;
mod restart;
mod route;
mod router;
mod running;
mod schema;
mod service;
mod service_manager;
mod session;
mod sockets;
mod stream;
mod suite;
mod top;
mod topology;
mod trace;
mod trunks;
#[cfg(feature = "hca")]
mod umad;
