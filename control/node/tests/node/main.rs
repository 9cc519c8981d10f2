//! Nodes that run, with each other.

mod fabric;
mod host;
mod nodes;
