//! The parameters and the results of a test.

use super::wire::{Count, Protocol, Test};
use std::fmt;

#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub test: Test,
    pub sent: Count,
    pub received: Count,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, received) = (self.sent, self.received);
        let mbit_s = received.bytes as f64 * 8.0 / received.seconds / 1e6;
        writeln!(f, "sent     {:>12} bytes in {:.3} s", sent.bytes, sent.seconds)?;
        write!(
            f,
            "received {:>12} bytes in {:.3} s, {mbit_s:.1} Mbit/s",
            received.bytes, received.seconds
        )?;
        if self.test.protocol == Protocol::Udp {
            write!(
                f,
                ", {} of {} datagrams lost, jitter {:.3} ms",
                received.lost,
                sent.datagrams,
                received.jitter_s * 1e3
            )?;
        }
        Ok(())
    }
}
