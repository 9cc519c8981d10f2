//! The rate limit of ICMP errors of a node: a token bucket for each family, which all interfaces of
//! the node share (RFC 4443 2.4 (f), RFC 1812 4.3.2.8).
//!
//! Why per node and not per interface: a remote sender can cause errors at many interfaces, and the
//! sum of their errors would have no known limit.

use super::IcmpConfig;
use crate::bounded::RateLimit;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Debug)]
pub struct ErrorBudget(Arc<Mutex<[RateLimit; 2]>>);

impl ErrorBudget {
    pub fn new(config: &IcmpConfig) -> Self {
        let one = || RateLimit::new(config.errors_per_second_max, config.errors_burst_max);
        Self(Arc::new(Mutex::new([one(), one()])))
    }

    pub(super) fn take(&self, now: Time, ether_type: EtherType) -> bool {
        // Only the control thread takes this lock, so it is never contended.
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        budgets[usize::from(ether_type == EtherType::IPV6)].take(now)
    }
}
