//! The control connection between the two ends of a measurement: lines of JSON on a Unix or TCP
//! stream socket.
//!
//! A message of the client, or its hang-up, ends the measurement. The server checks for this only
//! after it received no data for a while, so the check does not affect the figures.

use crate::cpu::{self, CpuWatch};
use crate::error::PerfError;
use crate::plan::{Measured, MeasurementOutcome, Plan};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest line. Without a limit, a peer could send an endless line.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub struct Exchange {
    /// A Unix or TCP socket: only calls that work on both are used.
    stream: BufReader<UnixStream>,
    opened: Instant,
    /// Set when both ends are ready: the CPU usage since then, and the time of the setup before.
    begun: Option<(CpuWatch, Duration)>,
    /// Messages with a wrong payload that this end has received.
    wrong_payloads: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndFailure {
    failed: String,
}

/// The report of the server after a measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ServerReport {
    pub cores_busy: Option<f64>,
    /// The CPU time of the server's process since it started.
    pub process_seconds: f64,
    pub wrong_payloads: u64,
}

impl Exchange {
    #[expect(clippy::disallowed_methods, reason = "it is measured how long an end takes")]
    pub fn new(stream: impl Into<OwnedFd>) -> io::Result<Self> {
        let stream = UnixStream::from(stream.into());
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self {
            stream: BufReader::new(stream),
            opened: Instant::now(),
            begun: None,
            wrong_payloads: 0,
        })
    }

    pub fn send(&mut self, what: &impl Serialize) -> Result<(), PerfError> {
        let line = serde_json::to_string(what).map_err(io::Error::from)?;
        writeln!(self.stream.get_mut(), "{line}").map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => PerfError::OtherEnd("it has exited".into()),
            _ => error.into(),
        })
    }

    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, PerfError> {
        let mut line = String::new();
        match self.stream.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => Err(PerfError::OtherEnd("it has exited".into())),
            Ok(_) => serde_json::from_str(&line).map_err(|error| {
                PerfError::OtherEnd(match serde_json::from_str(&line) {
                    Ok(EndFailure { failed }) => failed,
                    Err(_) => format!("invalid message {line:?}: {error}"),
                })
            }),
            Err(_) => Err(PerfError::OtherEnd(format!("no message within {TIMEOUT:?}"))),
        }
    }

    /// Sends an error to the other end, which gets it in place of the message that it waits for.
    pub fn fail(&mut self, error: &PerfError) {
        let _ = self.send(&EndFailure { failed: error.to_string() });
    }

    /// Sends a message and receives a message of the same type.
    pub fn swap<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<T, PerfError> {
        self.send(mine)?;
        self.receive()
    }

    /// Waits until the other end also calls this.
    pub fn meet(&mut self) -> Result<(), PerfError> {
        self.swap(&()).map(drop)
    }

    pub const fn add_wrong_payloads(&mut self, count: u64) {
        self.wrong_payloads += count;
    }

    /// Like [`Exchange::meet`], at the start of the measurement: also starts to measure CPU usage.
    pub fn begin(&mut self, plan: &Plan) -> Result<(), PerfError> {
        self.meet()?;
        self.begun = Some((CpuWatch::start(plan), self.opened.elapsed()));
        Ok(())
    }

    /// Ends a measurement. The client passes its outcome, and gets the measurement and the server's
    /// report. The server passes `None`, waits for the client, and gets `None`.
    pub fn end(
        &mut self,
        outcome: Option<MeasurementOutcome>,
    ) -> Result<Option<(Measured, ServerReport)>, PerfError> {
        let (cores_busy, setup) = match &self.begun {
            Some((watch, setup)) => (watch.cores_busy(), *setup),
            None => return Err(PerfError::Local("the measurement has not begun".into())),
        };
        let Some(outcome) = outcome else {
            // No timeout: the client may measure for an hour. If it fails, it hangs up.
            self.stream.get_ref().set_read_timeout(None)?;
            let (process_seconds, wrong_payloads) = (cpu::process_seconds(), self.wrong_payloads);
            let report = ServerReport { cores_busy, process_seconds, wrong_payloads };
            return match self.receive() {
                Ok(()) => self.send(&report).map(|()| None),
                Err(_) => Ok(None),
            };
        };
        let report: ServerReport = self.send(&()).and_then(|()| self.receive())?;
        match self.wrong_payloads + report.wrong_payloads {
            0 => {}
            wrong => return Err(PerfError::WrongPayloads(wrong)),
        }
        let measured = Measured {
            outcome,
            setup_seconds: setup.as_secs_f64(),
            cores_busy: [cores_busy, report.cores_busy],
            disturbance: None,
        };
        Ok(Some((measured, report)))
    }

    /// Whether the other end has sent a message or hung up. Does not block.
    pub fn is_over(&mut self) -> bool {
        let is_quiet = self.stream.get_ref().set_nonblocking(true).is_ok()
            && self.stream.fill_buf().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        let waits_again = self.stream.get_ref().set_nonblocking(false).is_ok();
        !(is_quiet && waits_again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Layer, MeasuredTransport, What};

    #[test]
    fn ends_exchange_lines_and_detect_the_end() {
        let (one, other) = UnixStream::pair().expect("there are sockets");
        let mut one = Exchange::new(one).expect("a stream");
        let mut other = Exchange::new(other).expect("a stream");
        one.send(&7u32).expect("it is sent");
        assert_eq!(other.swap(&8u32).expect("it is received"), 7);
        assert_eq!(one.receive::<u32>().expect("it is received"), 8);
        assert!(!one.is_over() && !other.is_over());
        one.send(&"no number").expect("it is sent");
        assert!(other.is_over(), "there is a message");
        assert!(other.receive::<u32>().is_err());
        other.fail(&PerfError::Local("no device".into()));
        let error = one.receive::<Vec<u64>>().expect_err("it has failed").to_string();
        assert_eq!(error, "the other end: no device");
        drop(other);
        assert!(one.is_over());
        assert!(one.receive::<u32>().is_err());
    }

    #[test]
    fn a_wrong_payload_at_either_end_is_no_measurement() {
        for wrong in [[0, 0], [1, 0], [0, 2]] {
            let (client, server) = UnixStream::pair().expect("there are sockets");
            let plan = Plan::new(What::Connect, Layer::Verbs, MeasuredTransport::Rc, 64);
            let play = |stream, wrong, outcome| {
                let mut exchange = Exchange::new(stream).expect("a stream");
                exchange.begin(&plan).expect("the other end is there");
                exchange.add_wrong_payloads(wrong);
                exchange.end(outcome)
            };
            let outcome = MeasurementOutcome::Connections { per_second: 1.0, first_ns: None };
            let measured = std::thread::scope(|scope| {
                let server = scope.spawn(|| play(server, wrong[1], None));
                let measured = play(client, wrong[0], Some(outcome));
                assert!(
                    server.join().expect("it does not panic").expect("all goes well").is_none()
                );
                measured
            });
            match measured {
                Ok(measured) => assert!(measured.is_some() && wrong == [0, 0]),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with(&(wrong[0] + wrong[1]).to_string()), "{text}");
                }
            }
        }
    }
}
