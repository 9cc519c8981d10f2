//! Captures at all workers of an interface.

use super::Interface;
use pollux_dataplane::capture::{CaptureReader, CaptureTerms};

impl Interface {
    /// Begins a capture, with a reader for each worker. It ends when they are dropped.
    pub fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        self.workers.capture(terms)
    }
}
