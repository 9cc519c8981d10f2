//! The command as its users meet it.
#![expect(clippy::disallowed_methods, reason = "programs take their time, and tests wait for them")]

mod demo;
mod fabric;
mod nodes;
mod operator;
mod processes;
mod program;
mod running;
mod suite;
mod trunks;
