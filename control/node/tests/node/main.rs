//! Nodes that run: with each other, and with the Linux kernel's own IP over InfiniBand.

mod device;
mod fabric;
mod guest;
mod host;
mod illness;
mod linux;
mod nodes;
