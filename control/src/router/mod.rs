//! The router's view of the kernel's routes and multicast groups.
//!
//! [`kernel_routes`] mirrors the tables that routing daemons fill in the kernel. [`group_reports`]
//! reads the membership reports of programs.

pub mod group_reports;
pub mod kernel_routes;
