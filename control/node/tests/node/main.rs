//! Nodes that run: with each other, and with the Linux kernel's own IP over InfiniBand.

mod fabric;
mod guest;
mod host;
mod linux;
mod nodes;
