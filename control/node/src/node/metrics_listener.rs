//! The listener for metrics, at the configured address. If listening fails, for example because the
//! address is in use, the node reports a notice, retries, and runs on.

use super::notice::NodeNotice;
use crate::config::MetricsAddress;
use crate::telemetry::server::{MakeBody, MetricsServer};
use pollux_verbs::time::Time;
use rustix::event::PollFd;
use std::time::Duration;

const RETRY_EVERY: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct MetricsListener {
    address: Option<MetricsAddress>,
    server: Option<MetricsServer>,
    retry_at: Option<Time>,
}

impl MetricsListener {
    /// Listens as configured. `say` gets a notice of the first failure, and of the success that
    /// follows.
    pub(super) fn update(
        &mut self,
        now: Time,
        address: Option<&MetricsAddress>,
        say: &mut impl FnMut(&NodeNotice),
    ) {
        if self.address.as_ref() != address {
            *self = Self { address: address.cloned(), ..Self::default() };
        }
        let Some(address) = &self.address else { return };
        if self.server.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let was_reported = self.retry_at.is_some();
        match MetricsServer::listen(address) {
            Ok(server) => {
                (self.server, self.retry_at) = (Some(server), None);
                if was_reported {
                    let message = format!("metrics are at {address} now");
                    say(&NodeNotice::info("telemetry", message));
                }
            }
            Err(error) => {
                self.retry_at = Some(now + RETRY_EVERY);
                if !was_reported {
                    let message = format!("no metrics at {address}: {error}; retrying");
                    say(&NodeNotice::warning("telemetry", message));
                }
            }
        }
    }

    pub(super) fn turn(&mut self, now: Time, make: MakeBody<'_>) {
        if let Some(server) = &mut self.server {
            server.turn(now, make);
        }
    }

    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.server.iter().flat_map(MetricsServer::poll_fds)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let server = self.server.as_ref().and_then(MetricsServer::poll_timeout);
        server.into_iter().chain(self.retry_at).min()
    }
}
