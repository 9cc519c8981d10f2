//! Management datagrams: 256 bytes, sent to queue pair 0 or 1 (IBA 13.4).
//!
//! Each datagram begins with a [`MadHeader`]; the rest depends on the class: [`smp`] for subnet
//! management, [`sa`] for subnet administration (segmented by [`rmpp`]), [`perf`] for performance
//! counters, and [`cm`] for connection management. [`class_port_info`], [`notice`] and
//! [`service_id`] are shared by classes. Management is a slow path, so messages are values, not
//! views.

mod attribute;
pub mod class_port_info;
pub mod cm;
mod header;
pub mod notice;
pub mod perf;
pub mod rmpp;
pub mod sa;
pub mod service_id;
pub mod smp;
#[cfg(test)]
mod tests;

pub use attribute::Attribute;
use attribute::attributes;
pub use header::{AttributeId, MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
