//! Metrics for Prometheus: an HTTP listener in the control thread, and the two formats of a reply.
//!
//! ```text
//!   Prometheus --GET /metrics, Accept--> server --> request --> 404, 405, ...
//!                                                      |
//!   node::metrics, from state of control and counters that workers published: families, samples
//!                                                      |
//!              <--one body, then closed-- server <-- exposition: OpenMetrics 1.0.0, or text 0.0.4
//! ```
//!
//! 1. [`families`]: names, types, units and help of all metrics;
//! 2. [`exposition`]: the writer of both formats;
//! 3. `request`: the head of an HTTP request; [`server`]: the listener and its connections.
//!
//! Why this is not a library: a scrape is one request and one text. That takes a few hundred lines,
//! without a thread, a runtime, or a second registry of counters.

pub mod exposition;
pub mod families;
mod request;
pub mod server;
