//! The router: what the kernel of the machine tells of routes and of multicast groups.
//!
//! [`kernel_routes`] mirrors the tables that routing daemons fill in the kernel. [`group_reports`]
//! reads what programs there listen to.

pub mod group_reports;
pub mod kernel_routes;
